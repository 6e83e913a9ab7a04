"""Rewards: named ones, or a user's function. A reward maps completions and ground truths to one number each."""

from __future__ import annotations

import importlib
import inspect
import math
import reprlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tuneline.core.errors import JobError, StagingError
from tuneline.core.names import sha256_text
from tuneline.engines import scoring
from tuneline.engines.scoring import NAMED

Reward = Callable[[Sequence[str], Sequence[str]], list[float]]


def load_reward(name: str, code_dir: str = "") -> Reward:
    """The reward `gsm8k`, `exact`, or `module:function` from a folder of user code, which is put first on sys.path.

    Raises:
        StagingError: No such name, folder, module or function, or it does not take (completions, ground_truths).
    """
    if name in NAMED:
        return NAMED[name]
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise StagingError(f"{name!r} is no reward", asked=name, choices=[*NAMED, "module:function"], next_move="correct train_reward")
    if not code_dir or not Path(code_dir).is_dir():
        raise StagingError(
            f"reward {name!r} is user code, but there is no code folder",
            asked=name,
            found=code_dir or "''",
            next_move="give train_code_uri",
        )
    if code_dir not in sys.path:
        sys.path.insert(0, code_dir)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise StagingError(
            f"reward module {module_name!r} cannot be imported: {type(error).__name__}: {error}",
            asked=name,
            found=", ".join(sorted(path.name for path in Path(code_dir).glob("*.py"))) or f"no .py file in {code_dir}",
            next_move="correct train_reward or the module",
        ) from error
    if code_dir not in {str(parent) for parent in Path(module.__file__ or "").parents}:
        raise StagingError(
            f"reward module {module_name!r} comes from {module.__file__}, not from the code folder",
            asked=name,
            found=str(module.__file__),
            next_move="give the module a name that no installed package has",
        )
    function = getattr(module, function_name, None)
    if not callable(function):
        callables = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise StagingError(
            f"module {module_name!r} has no function {function_name!r}", asked=name, choices=callables, next_move="correct train_reward"
        )
    try:
        inspect.signature(function).bind([], [])
    except TypeError as error:
        raise StagingError(
            f"reward {name!r} must take (completions, ground_truths)",
            asked="def reward(completions: Sequence[str], ground_truths: Sequence[str]) -> list[float]",
            found=f"{function_name}{inspect.signature(function)}",
            next_move="correct its signature",
        ) from error
    return checked(name, function)


def checked(name: str, reward: Reward) -> Reward:
    """`reward`, whose result is checked on every call: one finite number a completion.

    Raises:
        JobError: When called and the result is anything else.
    """

    def call(completions: Sequence[str], ground_truths: Sequence[str]) -> list[float]:
        # Copies: a user's function may empty the lists that it is given.
        try:
            result = reward(list(completions), list(ground_truths))
        except SystemExit as error:  # Ray would take it for a worker that was told to go
            raise JobError(f"reward {name!r} called sys.exit({error.code!r})", next_move="let it raise an error instead") from error
        try:
            values = [float(value) for value in result]
        except (TypeError, ValueError) as error:
            raise JobError(f"reward {name!r} returned {reprlib.repr(result)}", asked="one number a completion") from error
        if len(values) != len(completions) or not all(math.isfinite(value) for value in values):
            raise JobError(
                f"reward {name!r} must return one finite number a completion",
                asked=f"{len(completions)} numbers",
                found=f"{len(values)} of which {sum(not math.isfinite(value) for value in values)} are not finite",
                next_move="correct the reward",
            )
        return values

    return call


def reward_digest(name: str, code_dir: str = "") -> str:
    """sha256 of the reward's source: of scoring.py for a named one, else of the module that holds it. 64 hex characters.

    Raises:
        StagingError: As load_reward, without importing user code.
    """
    if name in NAMED:
        return sha256_text(f"{name}\n{inspect.getsource(scoring)}")
    relative = Path(*name.partition(":")[0].split("."))
    for candidate in (relative.with_suffix(".py"), relative / "__init__.py"):
        path = Path(code_dir) / candidate
        if code_dir and path.is_file():
            return sha256_text(f"{name}\n{path.read_text(encoding='utf-8')}")
    raise StagingError(
        f"reward {name!r} has no source in the code folder",
        asked=name,
        found=code_dir or "''",
        next_move="correct train_reward or train_code_uri",
    )
