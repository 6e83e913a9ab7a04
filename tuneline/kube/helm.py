"""Charts without Helm's releases: Helm renders against the cluster, we apply and delete as we do everything else.

So a killed install leaves no release that is locked for ever, and what the chart made carries our labels. Hooks do not run: a chart
that needs some is refused. Wanted is PyPI's helm-python-sdk, which brings Helm 4 as a library; a chart that is rendered already, a
.yaml file, is taken without it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tuneline.core.clock import Deadline
from tuneline.kube.api import Api, Ref
from tuneline.kube.errors import ChartError
from tuneline.kube.objects import OWNER_LABEL, Applied, Object, apply_, delete_
from tuneline.kube.watch import wait_for_

_CRD = "CustomResourceDefinition"
_RENDERED = (".yaml", ".yml")
#: What others need comes first.
_RANK = (_CRD, "Namespace", "ResourceQuota", "ServiceAccount", "Secret", "ConfigMap", "ClusterRole")
_CLUSTER_WIDE = (_CRD, "Namespace", "ClusterRole", "ClusterRoleBinding", "DeviceClass", "PriorityClass")


@dataclass(frozen=True)
class Chart:
    """A chart and where it goes.

    Attributes:
        reference: A folder, a .tgz, an oci:// reference, a name in `repository`, or a .yaml file of rendered objects.
        release: The release's name, which charts put into their objects' names.
        version: Of a chart that is fetched.
        repository: URL of the HTTP repository that has it.
    """

    reference: str
    release: str
    namespace: str
    version: str = ""
    repository: str = ""


def chart_crds(chart: Chart) -> list[Object]:
    """The CRDs of the chart's crds/ folder; [] for a rendered chart, whose objects hold them.

    Raises:
        ChartError: If it cannot be read.
    """
    if chart.reference.endswith(_RENDERED):
        return []
    with _loaded(chart) as (loaded, _):
        return _marked(chart, (item["data"] for item in loaded.crds))


def render_chart(api: Api, chart: Chart, values: Mapping[str, Any]) -> list[Object]:
    """The chart's objects as this cluster's versions make them, what others need first, with our label. Its CRDs must be there.

    Raises:
        ChartError: If it cannot be read or rendered, or has hooks.
    """
    if chart.reference.endswith(_RENDERED):
        return _marked(chart, [_read(Path(chart.reference))])
    with _loaded(chart) as (loaded, helm), helm.Config(**_connection(api), namespace=chart.namespace) as config:
        # Server dry run: the chart asks which API versions there are, and only the cluster knows.
        release = config.install(loaded, chart.release, dict(values), namespace=chart.namespace, dry_run="server")
        return _marked(chart, [str(release["manifest"])])


def install(api: Api, chart: Chart, values: Mapping[str, Any], deadline: Deadline) -> list[Applied]:
    """Apply the chart's objects; its CRDs are established before what uses them.

    Raises:
        ChartError, and what apply_ raises.
    """
    crds = [_apply(api, body, deadline) for body in chart_crds(chart)]
    return crds + [_apply(api, body, deadline) for body in render_chart(api, chart, values)]


def uninstall(api: Api, chart: Chart, values: Mapping[str, Any], deadline: Deadline) -> None:
    """Delete the chart's objects and wait until they are gone; CRDs stay, since with them every object of their kind would go."""
    refs = [Ref.of(body) for body in render_chart(api, chart, values) if body["kind"] != _CRD]
    delete_(api, reversed(refs), deadline)


def _apply(api: Api, body: Object, deadline: Deadline) -> Applied:
    applied = apply_(api, body)
    if body["kind"] == _CRD:
        wait_for_(api, Ref.of(body), _established, deadline, about=f"CRD {body['metadata']['name']} is established")
    return applied


def _marked(chart: Chart, texts: Iterable[str]) -> list[Object]:
    objects: list[Object] = [found for text in texts for found in yaml.safe_load_all(text) if found]
    hooks = [str(Ref.of(found)) for found in objects if "helm.sh/hook" in found["metadata"].get("annotations", {})]
    if hooks:
        raise ChartError(
            "the chart has hooks, which are not run", asked=chart.reference, found=", ".join(hooks), next_move="render it without"
        )
    for found in objects:
        metadata = found["metadata"]
        # Helm's own marks too: without them its next dry run finds the names taken, and so would a person's `helm upgrade --install`.
        marks = {"app.kubernetes.io/managed-by": "Helm", OWNER_LABEL[0]: OWNER_LABEL[1], "tuneline-chart": chart.release}
        release = {"meta.helm.sh/release-name": chart.release, "meta.helm.sh/release-namespace": chart.namespace}
        metadata["labels"] = {**metadata.get("labels", {}), **marks}
        metadata["annotations"] = {**metadata.get("annotations", {}), **release}
        if found["kind"] not in _CLUSTER_WIDE and not metadata.get("namespace"):
            metadata["namespace"] = chart.namespace
    return sorted(objects, key=lambda found: _RANK.index(found["kind"]) if found["kind"] in _RANK else len(_RANK))


@contextlib.contextmanager
def _loaded(chart: Chart) -> Iterator[tuple[Any, Any]]:
    """The chart as Helm loads it, and Helm; what Helm raises in the block becomes a ChartError."""
    try:
        import helm_python
    except ImportError as error:
        move = "pip install helm-python-sdk, or give the chart rendered, as a .yaml file"
        raise ChartError("Helm is not installed here", asked=chart.reference, next_move=move) from error
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = chart.reference
            if path.startswith("oci://") or chart.repository:
                helm_python.pull(path, destination=folder, version=chart.version or None, repo_url=chart.repository or None)
                path = str(next(Path(folder).glob("*.tgz")))
            with helm_python.Chart.load(path) as loaded:
                yield loaded, helm_python
    except (helm_python.HelmError, StopIteration) as error:
        raise ChartError(
            "the chart cannot be rendered", asked=chart.reference, found=str(error), next_move="check reference and values"
        ) from error


def _connection(api: Api) -> dict[str, str]:
    configuration = api.configuration
    settings = configuration.auth_settings().get("BearerToken", {})  # also renews the token
    token = str(settings.get("value") or "").removeprefix("Bearer ")
    found = {
        "kube_apiserver": configuration.host,
        "kube_token": token,
        "kube_ca_file": configuration.ssl_ca_cert or "",
        "storage_driver": "memory",
    }
    return {name: value for name, value in found.items() if value}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ChartError("the rendered chart cannot be read", asked=str(path), found=str(error), next_move="check the path") from error


def _established(crd: Object | None) -> bool:
    conditions = (crd or {}).get("status", {}).get("conditions") or []
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)
