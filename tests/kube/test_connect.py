"""Certificates of a real server: the cluster's own CA is no public one, and is for the IP endpoint only."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from tuneline.core.clock import SYSTEM
from tuneline.kube.connect import Endpoint, Token, connect
from tuneline.kube.objects import list_


def test_a_dns_endpoint_without_a_public_certificate_is_passed_over(kubeconfig: Path) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    port = cluster["server"].rpartition(":")[2]
    ca = base64.b64encode(Path(cluster["certificate-authority"]).read_bytes()).decode()
    minted: list[Token] = []

    def tokens() -> Token:
        minted.append(Token(config["users"][0]["user"]["token"], SYSTEM.now() + 3600))
        return minted[-1]

    api = connect(Endpoint(dns=f"localhost:{port}", ip=f"127.0.0.1:{port}", ca=ca), tokens)
    assert api.host == f"https://127.0.0.1:{port}"
    assert "kube-system" in [item["metadata"]["name"] for item in list_(api, "v1", "Namespace")]
    assert len(minted) == 2, "one for each endpoint, none for each call"
