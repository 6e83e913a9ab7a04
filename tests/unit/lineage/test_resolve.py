from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fakes.lineage_chain import SHARD, Chain
from tuneline.lineage.findings import Severity
from tuneline.lineage.model import Artifact
from tuneline.lineage.resolve import Resolution, resolve


def found(chain: Chain, target: str) -> Resolution:
    return resolve(target, chain.store, full=True)


def what(resolution: Resolution) -> str:
    return "\n".join(f"{item.what}; {item.next_move}" for item in resolution.findings)


def test_a_folder_is_the_artifact_that_was_recorded_there(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(chain.path("hf").parent)
    for target in ("model", "./model/", str(chain.path("hf"))):
        resolution = found(chain, target)
        assert (resolution.artifact, resolution.location, resolution.findings) == (chain.artifacts["hf"], chain.path("hf"), ())


def test_a_link_to_a_folder_is_that_folder(chain: Chain, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(chain.path("hf"))
    assert found(chain, str(tmp_path / "latest")).artifact == chain.artifacts["hf"]


def test_a_checkpoint_recorded_before_and_after_it_was_digested_is_one_thing(chain: Chain) -> None:
    assert len(chain.store.find(uri=str(chain.path("checkpoint")))) == 2
    assert found(chain, str(chain.path("checkpoint"))).artifact == chain.artifacts["checkpoint"]


def test_a_registered_version_is_its_weights_and_its_name(chain: Chain) -> None:
    resolution = found(chain, "local-tiny@1")
    assert (resolution.artifact, resolution.names, resolution.location) == (chain.artifacts["hf"], (chain.artifacts["registered"],), None)
    assert found(chain, "tuneline:local-tiny@1") == resolution


def test_a_version_without_a_recorded_registration_is_incomplete(chain: Chain) -> None:
    chain.store.register("by-hand", chain.artifacts["hf"], {}, at=1.0)
    resolution = found(chain, "by-hand@1")
    assert resolution.artifact == chain.artifacts["hf"]
    assert "no execution recorded the registration" in what(resolution)


def test_a_digest_that_several_places_have_is_listed_and_not_guessed(chain: Chain) -> None:
    target = f"sha256:{chain.artifacts['hf'].digest}"
    assert found(chain, target).artifact == chain.artifacts["hf"], "the registered name of the same bytes is no second thing"
    chain.store.put_artifact(Artifact("hf", "/copy", chain.artifacts["hf"].digest))
    resolution = found(chain, target)
    assert resolution.artifact is None
    assert [item.uri for item in resolution.candidates] == [str(chain.path("hf")), "/copy"]
    assert "may mean 2 things (copies of the same content)" in what(resolution)


def test_a_path_that_is_also_a_registered_name_is_listed(chain: Chain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(chain.path("dataset"), tmp_path / "local-tiny@1")
    monkeypatch.chdir(tmp_path)
    resolution = found(chain, "local-tiny@1")
    assert [item.kind for item in resolution.candidates] == ["dataset", "hf"]
    assert "a path and a registered model" in what(resolution)


def test_a_copy_is_known_by_its_content(chain: Chain, tmp_path: Path) -> None:
    shutil.copytree(chain.path("hf"), tmp_path / "copy")
    resolution = found(chain, str(tmp_path / "copy"))
    assert (resolution.artifact, resolution.location) == (chain.artifacts["hf"], tmp_path / "copy")
    assert [item.severity for item in resolution.findings] == [Severity.INFO]
    (tmp_path / "copy" / "lineage.json").unlink()
    assert found(chain, str(tmp_path / "copy")).artifact == chain.artifacts["hf"]


def test_a_copy_of_what_lies_in_two_places_is_itself_and_they_are_listed(chain: Chain, tmp_path: Path) -> None:
    chain.store.put_artifact(Artifact("hf", "/other", chain.artifacts["hf"].digest))
    shutil.copytree(chain.path("hf"), tmp_path / "copy")
    resolution = found(chain, str(tmp_path / "copy"))
    assert resolution.artifact == Artifact("hf", str(tmp_path / "copy"), chain.artifacts["hf"].digest)
    assert len(resolution.candidates) == 2


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("local-tiny@2", "did you mean local-tiny@1"),
        ("nothing-like-it", "give a folder, a uri, NAME@VERSION or sha256:<hex>"),
        ("", "neither a path nor"),
        ("sha256:abc", "64 hex characters must follow"),
        ("sha256:" + "0" * 64, "neither a path nor"),
        ("gs://bucket/none", "neither a path nor"),
    ],
)
def test_what_is_not_known_is_said_with_what_is_near(chain: Chain, target: str, told: str) -> None:
    resolution = found(chain, target)
    assert (resolution.artifact, [item.severity for item in resolution.findings]) == (None, [Severity.INCOMPLETE])
    assert told in what(resolution)


def test_a_file_of_a_digested_folder_is_audited_with_its_folder(chain: Chain) -> None:
    resolution = found(chain, str(chain.path("hf") / SHARD))
    assert resolution.artifact is None
    assert f"audit {chain.path('hf')}" in what(resolution)


def test_a_folder_that_nobody_recorded(chain: Chain, tmp_path: Path) -> None:
    resolution = found(chain, str(tmp_path))
    assert (resolution.artifact, resolution.location) == (None, tmp_path)
    assert "does not know it" in what(resolution)
    assert "nothing is known of it" in what(resolution)
    assert "no lineage store to ask" in what(resolve("nothing", None, full=True))
