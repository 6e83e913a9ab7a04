"""Rows for NeMo RL: `{"input": prompt, "output": gold}`, one JSON object a line.

NeMo RL hands `output` to its math verifier as the gold answer, in `\\boxed{}`. A whole rationale ("… #### 18") is no answer that it can
parse: every completion then scores 0. So the gold is the bare answer.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tuneline.core.errors import StagingError

_RATIONALE = re.compile(r"####|\n")


def line(row: dict[str, Any]) -> str:
    """A row in verl's schema as a line for NeMo RL.

    Raises:
        StagingError: The prompt has more than one user message, or the ground truth is no bare answer.
    """
    turns, truth = row["prompt"], row["reward_model"]["ground_truth"]
    if [turn["role"] for turn in turns] != ["user"]:
        raise StagingError(
            "NeMo RL takes prompts of one user message",
            found=", ".join(turn["role"] for turn in turns),
            next_move="write the system prompt into the user message, or train with verl",
        )
    if not truth.strip() or _RATIONALE.search(truth):
        raise StagingError(
            "the ground truth is no bare answer, so NeMo RL's verifier would score every completion 0",
            asked="a number or a LaTeX expression",
            found=truth[-80:],
            next_move="choose an adapter that extracts the answer (gsm8k takes what follows ####)",
        )
    return json.dumps({"input": turns[0]["content"], "output": truth.strip()}, ensure_ascii=False) + "\n"
