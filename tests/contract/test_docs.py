"""What docs say of the code is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuneline.core import errors

ROOT = Path(__file__).resolve().parents[2]
DOCS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_the_runbook_explains_every_error_code() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.TunelineError)]
    raised = {kind.code: kind.__name__ for kind in classes if kind is not errors.TunelineError}
    explained = dict(re.findall(r"(?m)^\| (TL\d+) \| (\w+) \|", (ROOT / "docs" / "runbook.md").read_text()))
    assert explained == raised


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
