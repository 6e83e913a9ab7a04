"""Runs with math-verify on the path: scores [gold, completion] pairs as NeMo RL's HFVerifyWorker does (math_environment.py)."""

from __future__ import annotations

import json
import sys

from math_verify.errors import TimeoutException
from math_verify.metric import math_metric
from math_verify.parser import ExprExtractionConfig, LatexExtractionConfig

if __name__ == "__main__":
    verify = math_metric(
        gold_extraction_target=(LatexExtractionConfig(),), pred_extraction_target=(ExprExtractionConfig(), LatexExtractionConfig())
    )
    scores = []
    for gold, completion in json.load(sys.stdin):
        try:
            scores.append(float(verify(["\\boxed{" + gold + "}"], [completion])[0]))
        except (Exception, TimeoutException):
            scores.append(0.0)
    print(json.dumps(scores))
