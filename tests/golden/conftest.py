"""Golden files: compared as they are, written anew with --update-goldens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Check = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew; read the difference before you commit it")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Check:
    """`check_golden(path, text)` fails unless the golden file at `path` holds exactly `text`."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-goldens"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path.name} is missing; run make goldens"
        assert path.read_text(encoding="utf-8") == text, f"{path.name} differs; if that is meant, run make goldens and read the difference"

    return check
