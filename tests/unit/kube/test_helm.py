"""Charts that are rendered already; rendering by Helm itself is in tests/kube."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.kube.support import Handler, Server, Ticking, failure
from tuneline.kube.errors import ChartError
from tuneline.kube.helm import Chart, render_chart

Serve = Callable[[Handler], Server]
TEXT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: controller, labels: {app: x}}
---
# nothing here
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: controller}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: controller, namespace: elsewhere}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
"""


def test_objects_come_in_order_with_label_and_namespace(tmp_path: Path, serve: Serve, clock: Ticking) -> None:
    (tmp_path / "chart.yaml").write_text(TEXT)
    api = serve(lambda request: failure(404)).api(clock)
    objects = render_chart(api, Chart(str(tmp_path / "chart.yaml"), "driver", "ns"), {})
    assert [body["kind"] for body in objects] == ["CustomResourceDefinition", "ServiceAccount", "ClusterRole", "Deployment"]
    assert [body["metadata"].get("namespace") for body in objects] == [None, "elsewhere", None, "ns"]
    assert objects[3]["metadata"]["labels"] == {
        "app": "x",
        "app.kubernetes.io/managed-by": "Helm",
        "managed-by": "tuneline",
        "tuneline-chart": "driver",
    }


def test_hooks_and_unreadable_files_are_refused(tmp_path: Path, serve: Serve, clock: Ticking) -> None:
    api = serve(lambda request: failure(404)).api(clock)
    (tmp_path / "hook.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: t, annotations: {helm.sh/hook: post-install}}\n")
    with pytest.raises(ChartError) as caught:
        render_chart(api, Chart(str(tmp_path / "hook.yaml"), "driver", "ns"), {})
    assert caught.value.found == "Pod t"
    with pytest.raises(ChartError, match="cannot be read"):
        render_chart(api, Chart(str(tmp_path / "none.yaml"), "driver", "ns"), {})
