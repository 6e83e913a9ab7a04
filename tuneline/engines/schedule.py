"""Which prompts a step trains on, and in how many pieces: functions of the parameters alone, whatever the number of workers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tuneline.core.errors import StagingError

#: Tokens (prompt and longest completion) in one forward and backward pass of one worker; a longer batch is accumulated.
MICRO_BATCH_TOKENS = 16_384


def prompts_of_steps(*, rows: int, prompts: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Row indices of each step's prompts. Every pass over the rows has an order of its own; a step may span two passes.

    Args:
        rows: Rows of the training split.
        prompts: Prompts a step.
    """
    order: list[int] = []
    number = 0
    for _ in range(steps):
        while len(order) < prompts:
            one_pass = list(range(rows))
            random.Random(f"{seed}/{number}").shuffle(one_pass)
            order += one_pass
            number += 1
        yield order[:prompts]
        order = order[prompts:]


def accumulation(completions: int, tokens: int) -> int:
    """Micro batches a step: the fewest equal ones of at most MICRO_BATCH_TOKENS tokens, or of one completion.

    Args:
        completions: Of one worker in one step.
        tokens: Longest prompt and completion together.
    """
    fitting = max(1, MICRO_BATCH_TOKENS // tokens)
    return next(pieces for pieces in range(1, completions + 1) if completions % pieces == 0 and completions // pieces <= fitting)


def refuse_long_prompts(split: str, lengths: Sequence[int], limit: int) -> None:
    """Prove that every prompt of a split, `lengths` tokens each in order of rows, is within train_prompt_tokens.

    Raises:
        StagingError: If one is longer.
    """
    long = [row for row, length in enumerate(lengths) if length > limit]
    if long:
        raise StagingError(
            f"{len(long)} of {len(lengths)} {split} prompts are longer than train_prompt_tokens",
            asked=f"at most {limit} tokens",
            found=f"{max(lengths)} tokens at most, {lengths[long[0]]} in {split} row {long[0]}",
            next_move="raise train_prompt_tokens, or take these rows out of the data set",
        )
