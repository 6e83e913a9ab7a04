"""A chart of our own, rendered by Helm against the real API server and applied by us."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuneline.core.clock import SYSTEM, Deadline
from tuneline.kube.api import Api, Ref
from tuneline.kube.errors import ChartError
from tuneline.kube.helm import Chart, install, render_chart, uninstall
from tuneline.kube.objects import get

pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")

FILES = {
    "Chart.yaml": "apiVersion: v2\nname: small\nversion: 0.1.0\n",
    "values.yaml": "word: default\naffinity: {nodeAffinity: {a: b}}\n",
    "crds/thing.yaml": """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, kind: Thing, singular: thing}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
""",
    "templates/objects.yaml": """
apiVersion: example.com/v1
kind: Thing
metadata: {name: {{ .Release.Name }}}
spec:
  word: {{ .Values.word | quote }}
  affinity: {{ .Values.affinity | toJson }}
  claims: {{ .Capabilities.APIVersions.Has "resource.k8s.io/v1" }}
  server: {{ .Capabilities.KubeVersion.Minor | quote }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-words}
data: {word: {{ .Values.word | quote }}}
""",
}


@pytest.fixture
def chart(tmp_path: Path, namespace: str) -> Chart:
    for name, text in FILES.items():
        path = tmp_path / "small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Chart(str(tmp_path / "small"), "driver", namespace)


def test_a_chart_is_installed_changed_and_removed(api: Api, chart: Chart, namespace: str) -> None:
    deadline = Deadline.after(SYSTEM, 30)
    applied = install(api, chart, {"word": "one", "affinity": None}, deadline)
    assert [item.body["kind"] for item in applied] == ["CustomResourceDefinition", "ConfigMap", "Thing"]
    thing = applied[2].body
    # Helm asked this server, not its own list of versions; a null value takes the chart's default away.
    assert {name: value for name, value in thing["spec"].items() if value} == {"word": "one", "claims": True, "server": "20"}
    assert thing["metadata"]["labels"]["tuneline-chart"] == "driver"
    install(api, chart, {"word": "two"}, deadline)
    words = Ref("v1", "ConfigMap", "driver-words", namespace)
    assert (get(api, words) or {})["data"] == {"word": "two"}
    uninstall(api, chart, {}, deadline)
    assert get(api, words) is None
    assert get(api, Ref("example.com/v1", "Thing", "driver", namespace)) is None
    assert get(api, Ref.of(applied[0].body)) is not None, "the CRD stays: with it every Thing would go"


def test_a_chart_that_is_broken_is_told(api: Api, chart: Chart) -> None:
    (Path(chart.reference) / "templates" / "broken.yaml").write_text("{{ .Values.a.b.c }}")
    with pytest.raises(ChartError, match="cannot be rendered"):
        render_chart(api, chart, {})
    with pytest.raises(ChartError, match="cannot be rendered"):
        render_chart(api, Chart("/no/such/chart", "driver", chart.namespace), {})
