"""Rewards: what scores, what is refused, and what changes a digest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuneline.core.errors import JobError, StagingError
from tuneline.engines.rewards import NAMED, load_reward, reward_digest


@pytest.mark.parametrize(
    ("completion", "truth", "reward"),
    [
        ("so it is 18.\n#### 18", "18", 1.0),
        ("#### 18", "She sells 9 * 2 = 18.\n#### 18", 1.0),
        ("#### 1,080", "1080", 1.0),
        ("#### -3", "-3", 1.0),
        ("#### 18.", "18", 1.0),
        ("#### 17, no: #### 18", "18", 1.0),
        ("18", "18", 0.0),
        ("The answer is 18", "18", 0.0),
        ("####18", "18", 0.0),
        ("#### eighteen", "18", 0.0),
        ("#### 18 #### 17", "18", 0.0),
        ("", "18", 0.0),
    ],
)
def test_gsm8k_wants_the_number_behind_the_marker(completion: str, truth: str, reward: float) -> None:
    assert load_reward("gsm8k")([completion], [truth]) == [reward]


def test_exact_wants_the_whole_answer() -> None:
    assert load_reward("exact")([" 7\n", "7 apples", "", "07"], ["7", "7", "7", "7"]) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", sorted(NAMED))
def test_named_rewards_refuse_lists_of_different_lengths(name: str) -> None:
    with pytest.raises(ValueError, match="shorter"):
        NAMED[name](["1", "2"], ["1"])


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    """A folder of user code, forgotten by Python afterwards."""
    modules, path = set(sys.modules), list(sys.path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_user_code_is_loaded_from_its_folder(code: Path) -> None:
    (code / "mine").mkdir()
    (code / "mine" / "__init__.py").write_text("")
    (code / "mine" / "length.py").write_text("def short(completions, ground_truths):\n    return [1 / (1 + len(c)) for c in completions]\n")
    assert load_reward("mine.length:short", str(code))(["", "abc"], ["", ""]) == [1.0, 0.25]


@pytest.mark.parametrize(
    ("name", "source", "says"),
    [
        ("gsm9k", "", "choices: gsm8k, exact, module:function"),
        ("absent:f", "", "No module named 'absent'"),
        ("broken:f", "import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("without:f", "def g(completions, ground_truths): return []", "choices: g"),
        ("one:f", "def f(completions): return []", "found: f(completions)"),
        ("json:dumps", "", "not from the code folder"),
    ],
)
def test_what_cannot_be_a_reward_is_refused_by_name(code: Path, name: str, source: str, says: str) -> None:
    (code / f"{name.split(':')[0]}.py").write_text(source) if source else None
    with pytest.raises(StagingError) as refused:
        load_reward(name, str(code))
    assert says in str(refused.value)


def test_user_code_without_a_folder_is_refused() -> None:
    with pytest.raises(StagingError, match="no code folder"):
        load_reward("mine:f", "")


@pytest.mark.parametrize("result", ["[1.0]", "[1.0, None]", "[1.0, float('nan')]", "None", "['good', 'bad']"])
def test_a_user_reward_that_returns_nonsense_ends_the_training(code: Path, result: str) -> None:
    (code / "bad.py").write_text(f"def f(completions, ground_truths):\n    return {result}\n")
    reward = load_reward("bad:f", str(code))
    with pytest.raises(JobError, match="bad:f"):
        reward(["a", "b"], ["a", "b"])


def test_a_user_reward_that_exits_or_empties_its_input_is_told_of(code: Path) -> None:
    (code / "exits.py").write_text("import sys\ndef f(completions, ground_truths):\n    sys.exit(3)\n")
    with pytest.raises(JobError, match=r"sys\.exit\(3\)"):
        load_reward("exits:f", str(code))(["a"], ["a"])
    (code / "empties.py").write_text("def f(completions, ground_truths):\n    completions.clear()\n    return []\n")
    with pytest.raises(JobError, match="one finite number a completion"):
        load_reward("empties:f", str(code))(["a"], ["a"])
    (code / "leaves.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(StagingError, match="cannot be imported: SystemExit"):
        load_reward("leaves:f", str(code))


def test_what_a_user_reward_returned_is_told_in_short(code: Path) -> None:
    (code / "long.py").write_text("def f(completions, ground_truths):\n    return ['x' * 10**6] * 1000\n")
    with pytest.raises(JobError) as caught:
        load_reward("long:f", str(code))(["a"], ["a"])
    assert len(str(caught.value)) < 1000


def test_a_digest_follows_the_source_and_runs_nothing(code: Path) -> None:
    module = code / "mine.py"
    module.write_text("raise SystemExit('imported')\n")
    first = reward_digest("mine:f", str(code))
    assert first == reward_digest("mine:f", str(code))
    module.write_text("raise SystemExit('imported again')\n")
    others = {reward_digest("mine:f", str(code)), reward_digest("mine:g", str(code)), reward_digest("gsm8k"), reward_digest("exact")}
    assert len(others | {first}) == 5
    with pytest.raises(StagingError, match="no source"):
        reward_digest("other:f", str(code))
