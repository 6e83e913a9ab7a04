"""What only Helm brings into a cluster: the Ray operator where GKE's add-on is not used, and NVIDIA's DRA driver."""

from __future__ import annotations

from tuneline.core.clock import Deadline
from tuneline.core.log import get_logger
from tuneline.kube import helm
from tuneline.kube.discover import NO_OPERATOR, find_operator
from tuneline.kube.facts import Facts
from tuneline.kube.helm import Chart
from tuneline.kube.objects import OWNER_LABEL, apply_
from tuneline.kube.render import dra_driver_values
from tuneline.tasks.gke import Site

_log = get_logger("charts")

#: The version that GKE's add-on has too.
KUBERAY = Chart(
    "kuberay-operator", "kuberay-operator", "kuberay-operator", version="1.4.2", repository="https://ray-project.github.io/kuberay-helm/"
)
#: 25.8 is the first whose objects follow the cluster's version of resource.k8s.io.
DRA_DRIVER = Chart(
    "nvidia-dra-driver-gpu",
    "nvidia-dra-driver-gpu",
    "nvidia-dra-driver-gpu",
    version="25.8.1",
    repository="https://helm.ngc.nvidia.com/nvidia",
)
SECONDS = 300.0


def ensure_operator(site: Site) -> None:
    """An operator for Ray is in the cluster: the add-on, somebody's own, or ours by Helm.

    Raises:
        ChartError, KubeError: The chart cannot be read, rendered or applied.
    """
    if site.spec.infra_cluster_kind != "a4x":
        return
    there = find_operator(site.api)
    if there != NO_OPERATOR:
        _log.info("a Ray operator runs in namespace %s", there.namespace)
        return
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": KUBERAY.namespace, "labels": dict([OWNER_LABEL])},
    }
    apply_(site.api, namespace)
    helm.install(site.api, KUBERAY, {}, Deadline.after(site.clock, SECONDS))


def ensure_dra_driver(site: Site, facts: Facts) -> None:
    """The driver of compute domains, into the namespace that the manifests made.

    Raises:
        ChartError, KubeError: The chart cannot be read, rendered or applied.
    """
    if site.spec.infra_cluster_kind == "a4x":
        values = dra_driver_values(site.spec, site.run_id, facts)
        helm.install(site.api, DRA_DRIVER, values, Deadline.after(site.clock, SECONDS))
