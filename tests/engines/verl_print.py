"""Runs with verl on the path: prints the steps of a short training with verl's own console logger, on invented values."""

from __future__ import annotations

import numpy as np
from verl.utils.logger import LocalLogger

if __name__ == "__main__":
    console = LocalLogger(print_to_console=True)
    score = "val-core/openai/gsm8k/reward/mean@1"
    console.log({score: np.float64(0.25), "val-aux/num_turns/mean": np.float64(2.0), "val-aux/num_turns/max": np.int32(2)}, 0)
    for step in (1, 2):
        metrics: dict[str, object] = {
            "global_seqlen/min": 4096,
            "actor/entropy": 0.5 / step,
            "actor/pg_loss": -0.00012345678901234 * step,
            "actor/kl_loss": np.float64(0.001),
            "actor/grad_norm": float("nan") if step == 2 else 0.125,
            "actor/lr": 1e-06,
            "training/global_step": step,
            "critic/score/mean": 0.5,
            "critic/score/max": 1.0,
            "critic/score/min": 0.0,
            "critic/rewards/mean": 0.5,
            "critic/advantages/max": 2.4748666286468506,
            "critic/advantages/min": -2.4748666286468506,
            "response_length/mean": 201.5,
            "perf/total_num_tokens": 123456,
            "perf/time_per_step": 61.728,
            "perf/throughput": 125.0,
            "timing_s/step": 61.728,
            "not/a number": "dropped",
        }
        if step == 2:
            metrics[score] = np.float64(0.75)
        console.log(metrics, step)
