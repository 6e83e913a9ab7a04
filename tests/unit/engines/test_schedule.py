"""Which prompts a step trains on, and in how many pieces."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.core.errors import StagingError
from tuneline.engines.schedule import MICRO_BATCH_TOKENS, accumulation, prompts_of_steps, refuse_long_prompts


@settings(deadline=None)
@given(rows=st.integers(1, 50), prompts=st.integers(1, 40), steps=st.integers(1, 20), seed=st.integers(0, 3))
def test_every_row_is_as_often_used_as_every_other(rows: int, prompts: int, steps: int, seed: int) -> None:
    chosen = list(prompts_of_steps(rows=rows, prompts=prompts, steps=steps, seed=seed))
    assert [len(step) for step in chosen] == [prompts] * steps
    counts = Counter(row for step in chosen for row in step)
    assert set(counts) <= set(range(rows))
    assert max(counts.values()) - min(counts[row] for row in range(rows)) <= 1


@settings(deadline=None)
@given(steps=st.integers(1, 30), more=st.integers(0, 30))
def test_a_steps_prompts_do_not_depend_on_how_many_follow(steps: int, more: int) -> None:
    short = prompts_of_steps(rows=13, prompts=5, steps=steps, seed=7)
    assert list(short) == list(islice(prompts_of_steps(rows=13, prompts=5, steps=steps + more, seed=7), steps))


def test_the_seed_and_the_pass_decide_the_order() -> None:
    first, second = prompts_of_steps(rows=30, prompts=30, steps=2, seed=0)
    assert first != second
    assert next(prompts_of_steps(rows=30, prompts=30, steps=1, seed=1)) != first


@settings(deadline=None)
@given(completions=st.integers(1, 600), tokens=st.integers(1, 40_000))
def test_micro_batches_are_equal_fit_and_are_as_few_as_can_be(completions: int, tokens: int) -> None:
    pieces = accumulation(completions, tokens)
    assert completions % pieces == 0
    assert completions // pieces * tokens <= MICRO_BATCH_TOKENS or pieces == completions
    for fewer in range(1, pieces):
        assert completions % fewer or completions // fewer * tokens > MICRO_BATCH_TOKENS


def test_a_prompt_longer_than_allowed_is_named() -> None:
    refuse_long_prompts("train", [8, 16, 3], 16)
    with pytest.raises(StagingError, match="2 of 4 test prompts are longer than train_prompt_tokens") as caught:
        refuse_long_prompts("test", [8, 17, 3, 40], 16)
    assert caught.value.found == "40 tokens at most, 17 in test row 1"
