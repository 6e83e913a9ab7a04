"""A real API server that believes the tokens of the fakes, and the fakes whose clusters it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.google import GoogleFakes
from tests.gke.authenticator import Authenticator
from tests.gke.double import Double
from tests.gke.world import PlayedClock
from tests.kube.conftest import TOOLS, load_crds
from tuneline.gcp.clients import ENDPOINTS_VARIABLE
from tuneline.kube.api import Api
from tuneline.kube.connect import connect_kubeconfig
from tuneline.tasks import charts, gke_raycluster


@pytest.fixture(scope="session")
def authenticator() -> Iterator[Authenticator]:
    running = Authenticator()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory, authenticator: Authenticator) -> Iterator[Path]:
    if not (TOOLS / "start").is_file():
        pytest.skip(f"no kube-apiserver at {TOOLS}; set TUNELINE_APISERVER to a folder with start and stop")
    folder = tmp_path_factory.mktemp("gke-apiserver")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    binary, wrapper, webhook = folder / "kube-apiserver.bin", folder / "kube-apiserver", folder / "webhook.json"
    with open(binary, "wb") as file:
        subprocess.run(["xz", "-dc", str(TOOLS / "kube-apiserver.xz")], check=True, stdout=file)
    authenticator.write_config(webhook)
    more = f'--allow-privileged=true --authentication-token-webhook-cache-ttl=0s --authentication-token-webhook-config-file="{webhook}"'
    # `start` takes a server that is there already, whatever wraps it.
    wrapper.write_text(f'#!/bin/sh\nexec "{binary}" {more} "$@"\n')
    for path in (binary, wrapper):
        path.chmod(0o755)
    try:
        subprocess.run([str(TOOLS / "start"), str(folder)], check=True, env=environment, stdout=subprocess.DEVNULL)
        load_crds(connect_kubeconfig(folder / "kubeconfig"), "1.4.2")
        yield folder / "kubeconfig"
    finally:
        subprocess.run([str(TOOLS / "stop"), str(folder)], check=True)


@pytest.fixture(scope="session")
def admin(kubeconfig: Path) -> Api:
    return connect_kubeconfig(kubeconfig)


@pytest.fixture
def fakes(
    admin: Api, kubeconfig: Path, authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GoogleFakes]:
    """Google's fakes, whose every cluster is the API server."""
    with GoogleFakes(PlayedClock()) as running:
        server = admin.host.removeprefix("https://")
        running.container.endpoint = server
        # Its certificate is no public one: the DNS endpoint fails, as it does from where it is not allowed, and the IP endpoint serves.
        running.container.dns_endpoint = server
        running.container.ca_certificate = (kubeconfig.parent / "tls.crt").read_text()

        def caller(token: str) -> str:
            with running.world.lock:
                from tests.fakes.errors import ApiError

                try:
                    return running.tokens.caller(f"Bearer {token}")
                except ApiError:
                    return ""

        authenticator.caller = caller
        monkeypatch.setenv(ENDPOINTS_VARIABLE, json.dumps(running.endpoints))
        monkeypatch.setattr(
            gke_raycluster, "GIB_IMAGES", {arch: f"{image}@sha256:{'0b' * 32}" for arch, image in gke_raycluster.GIB_IMAGES.items()}
        )
        for name in ("KUBERAY", "DRA_DRIVER"):
            monkeypatch.setattr(charts, name, _chart(getattr(charts, name), tmp_path))
        yield running


def _chart(chart: charts.Chart, folder: Path) -> charts.Chart:
    """A chart that is here, in place of one that must be fetched."""
    path = folder / f"{chart.release}.yaml"
    labels = {"app.kubernetes.io/name": chart.release}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "example.test/main"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    path.write_text(json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": chart.release}, "spec": spec}))
    return charts.Chart(str(path), chart.release, chart.namespace)


@pytest.fixture
def double(admin: Api, fakes: GoogleFakes) -> Double:
    """What plays the rest of the cluster, from the moment that a cluster runs."""
    playing = Double(admin, fakes)
    assert isinstance(fakes.clock, PlayedClock)
    fakes.clock.players.append(playing)
    return playing
