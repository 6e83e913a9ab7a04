"""What a cluster says of itself, for Facts."""

from __future__ import annotations

from tuneline.kube.api import Api
from tuneline.kube.facts import Operator
from tuneline.kube.objects import list_

_OPERATOR_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/component")
#: No pod of an operator is to be seen: it runs beside the control plane and comes through the konnectivity agents, or there is none.
NO_OPERATOR = Operator("kube-system", {"k8s-app": "konnectivity-agent"})


def resource_api(api: Api) -> str:
    """The version of resource.k8s.io that the server prefers, '' where it has none (GKE serves v1 from 1.34 on)."""
    return api.preferred_version("resource.k8s.io")


def find_operator(api: Api) -> Operator:
    """Where the KubeRay operator runs, by its pod: Helm and GKE's add-on put it into different namespaces.

    NO_OPERATOR where no pod of one is there.
    """
    for pod in list_(api, "v1", "Pod"):
        metadata = pod["metadata"]
        labels = {name: value for name, value in metadata.get("labels", {}).items() if name in _OPERATOR_LABELS}
        if "kuberay-operator" in labels.values():
            return Operator(metadata["namespace"], {name: value for name, value in labels.items() if value == "kuberay-operator"})
        if metadata["name"].startswith("kuberay-operator-"):
            return Operator(
                metadata["namespace"], {name: value for name, value in metadata.get("labels", {}).items() if name != "pod-template-hash"}
            )
    return NO_OPERATOR
