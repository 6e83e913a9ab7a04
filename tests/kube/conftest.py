"""A real kube-apiserver with etcd, on loopback, for the tests of this folder.

TUNELINE_APISERVER names the folder with `start` and `stop` (default ../shared/tools/apiserver beside the repository); the published
CRDs are in its ../../crds. Without it the tests are skipped, saying so. No controllers run: tests play them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.schemas import OTHER_CRDS, compute_class_crd, kuberay_files, published_crds, resource_claim_template_crd
from tuneline.kube.api import Api, Ref
from tuneline.kube.connect import connect_kubeconfig
from tuneline.kube.objects import get

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(os.environ.get("TUNELINE_APISERVER", ROOT.parent / "shared/tools/apiserver"))
CRDS = TOOLS.parents[1] / "crds"


def need_crds() -> Path:
    """The folder of published CRDs, or a skip that says what is missing."""
    if not CRDS.is_dir():
        pytest.skip(f"no published CRDs at {CRDS}; set TUNELINE_APISERVER to a folder with start and stop")
    return CRDS


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not (TOOLS / "start").is_file():
        pytest.skip(f"no kube-apiserver at {TOOLS}; set TUNELINE_APISERVER to a folder with start and stop")
    folder = tmp_path_factory.mktemp("apiserver")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        _allow_privileged(folder)
        subprocess.run([str(TOOLS / "start"), str(folder)], check=True, env=environment, stdout=subprocess.DEVNULL)
        load_crds(connect_kubeconfig(folder / "kubeconfig"), "1.4.2")
        yield folder / "kubeconfig"
    finally:
        subprocess.run([str(TOOLS / "stop"), str(folder)], check=True)


def _allow_privileged(folder: Path) -> None:
    """Let the server take privileged pods, as GKE Standard does; `start` takes a server that is there already, whatever wraps it."""
    binary, wrapper = folder / "kube-apiserver.bin", folder / "kube-apiserver"
    with open(binary, "wb") as file:
        subprocess.run(["xz", "-dc", str(TOOLS / "kube-apiserver.xz")], check=True, stdout=file)
    wrapper.write_text(f'#!/bin/sh\nexec "{binary}" --allow-privileged=true "$@"\n')
    for path in (binary, wrapper):
        path.chmod(0o755)


def load_crds(api: Api, kuberay: str) -> None:
    """Install the published CRDs, with those of one KubeRay version, and what this old server does not have by itself."""
    crds = [crd for file in (*kuberay_files(kuberay), *OTHER_CRDS) for crd in published_crds(need_crds() / file)]
    for crd in (*crds, compute_class_crd(need_crds()), resource_claim_template_crd()):
        ref = Ref.of(crd)
        present = get(api, ref)
        if present:
            crd["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"]
            api.call("PUT", api.path(ref), body=crd)
        else:
            api.call("POST", api.collection(ref.api_version, ref.kind), body=crd)
        _wait_established(api, ref)


def _wait_established(api: Api, ref: Ref) -> None:
    until = time.monotonic() + 30  # a real server takes real time
    while time.monotonic() < until:
        crd = get(api, ref) or {}
        if any(item["type"] == "Established" and item["status"] == "True" for item in crd.get("status", {}).get("conditions") or []):
            return
        time.sleep(0.05)
    raise AssertionError(f"{ref} is not established: {json.dumps(crd.get('status'))}")


@pytest.fixture(scope="session")
def api(kubeconfig: Path) -> Api:
    return connect_kubeconfig(kubeconfig)


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> str:
    """A namespace of the test's own; the server has no controller that could delete it afterwards."""
    name = f"t{abs(hash(request.node.nodeid)):x}"[:20]
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"managed-by": "tuneline"}}}
    api.call("POST", "/api/v1/namespaces", body=body)
    return name
