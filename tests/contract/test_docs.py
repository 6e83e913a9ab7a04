"""What docs say of the code is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuneline.core.errors import TunelineError
from tuneline.gcp import errors as _gcp  # noqa: F401
from tuneline.kube import errors as _kube  # noqa: F401
from tuneline.resources import teardown as _resources  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
DOCS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def subclasses(kind: type[TunelineError]) -> list[type[TunelineError]]:
    """Every class of error that a user can meet."""
    below = [found for one in kind.__subclasses__() for found in (one, *subclasses(one))]
    return [found for found in below if found.__module__.startswith("tuneline.")]


def test_the_runbook_explains_every_error_code() -> None:
    raised = {kind.code: kind.__name__ for kind in subclasses(TunelineError) if "code" in vars(kind)}
    explained = dict(re.findall(r"(?m)^\| (TL\d+) \| (\w+) \|", (ROOT / "docs" / "runbook.md").read_text()))
    assert explained == raised


def test_no_two_errors_have_one_code() -> None:
    codes = [kind.code for kind in subclasses(TunelineError) if "code" in vars(kind)]
    assert len(codes) == len(set(codes)) > 30


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    dead = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert dead == []


def test_the_readme_names_the_two_commands_and_they_exist() -> None:
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert re.search(rf"(?m)^{target}:", makefile)
