"""The store's layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneline.config.spec import RunSpec
from tuneline.core.errors import StoreError
from tuneline.tasks import provision_cluster, provision_filesystem, provision_network, provision_storage


def test_the_layout_is_made_and_what_is_there_stays(tmp_path: Path) -> None:
    spec = RunSpec.build({"output_root": str(tmp_path)})
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine").write_text("kept")
    assert provision_storage.run(spec.to_json(), "job") == str(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"models", "datasets", "code", "checkpoints", "hf", "runs", "leases", "lineage"}
    assert (tmp_path / "models" / "mine").read_text() == "kept"


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("in the way")
    with pytest.raises(StoreError, match="a folder cannot be made") as caught:
        provision_storage.run(RunSpec.build({"output_root": str(tmp_path)}).to_json(), "job")
    assert caught.value.asked == str(tmp_path / "hf")


@pytest.mark.parametrize("task", [provision_network, provision_cluster, provision_filesystem])
def test_this_computer_needs_none_and_says_so(task: object, tmp_path: Path) -> None:
    spec = RunSpec.build({"output_root": str(tmp_path)})
    assert task.run(spec.to_json(), "job").startswith("nothing to do on this computer")  # type: ignore[attr-defined]
