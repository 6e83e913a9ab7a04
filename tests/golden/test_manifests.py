"""The manifests of each system, word for word: the files are documentation, and any change of them is read by a person."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.kube.systems import RUN_ID, SYSTEMS
from tuneline.kube.render import dra_driver_values

FOLDER = Path(__file__).parent / "manifests"


def texts(system: str) -> dict[str, str]:
    """A file for each template, named in the order of applying, and what is in it."""
    found: dict[str, list[str]] = {}
    for manifest in SYSTEMS[system].manifests():
        found.setdefault(Path(manifest.template).name.removesuffix(".yaml.j2"), []).append(manifest.text)
    files = {f"{number:02d}-{name}.yaml": "---\n".join(parts) for number, (name, parts) in enumerate(found.items())}
    if system == "a4x":
        values = dra_driver_values(SYSTEMS[system].spec, RUN_ID, SYSTEMS[system].facts)
        files["dra-driver-values.yaml"] = yaml.safe_dump(values, sort_keys=False)
    return files


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_manifests_are_as_recorded(system: str, update_goldens: bool) -> None:
    folder, rendered = FOLDER / system, texts(system)
    if update_goldens:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in rendered.items():
            (folder / name).write_text(text)
    recorded = {path.name: path.read_text() for path in sorted(folder.glob("*.yaml"))}
    assert rendered == recorded, "`make goldens` records the new ones"


def test_every_template_is_rendered_by_some_system() -> None:
    used = {manifest.template for system in SYSTEMS.values() for manifest in system.manifests()} | {"a4x/dra-driver-values.yaml.j2"}
    root = Path(__file__).resolve().parents[2] / "manifests"
    assert used == {str(path.relative_to(root)) for path in root.rglob("*.j2")}
