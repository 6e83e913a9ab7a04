"""Golden files: compared as they are, written anew with --update-goldens; the difference is for a person to read before it is committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Check = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew")


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    # Without tests/golden on the command line this file is read too late to add the option.
    return bool(request.config.getoption("--update-goldens", default=False))


@pytest.fixture
def check_golden(update_goldens: bool) -> Check:
    """`check_golden(path, text)` fails unless the golden file at `path` holds exactly `text`."""

    def check(path: Path, text: str) -> None:
        if update_goldens:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path.name} is missing; run make goldens"
        assert path.read_text(encoding="utf-8") == text, f"{path.name} differs; if that is meant, run make goldens and read the difference"

    return check
