"""The values that the templates of one run print."""

from __future__ import annotations

import re
from typing import Any

from tuneline.config.machines import MACHINES, Machine
from tuneline.config.spec import RunSpec
from tuneline.kube.errors import RenderError
from tuneline.kube.facts import Facts
from tuneline.kube.sizes import CPU_WORKER, HEAD, worker_size

#: Where a pod sees the store. `/data/checkpoints` is a mount of its own on GCS FUSE.
DATA = "/data"
#: gIB as container-engine-accelerators 992db812 installs it; launch puts the digest in place of the tag.
GIB_IMAGES = {
    "amd64": "us-docker.pkg.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib:v1.1.1",
    "arm64": "us-docker.pkg.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib-arm64:v1.1.0",
}
PAUSE_IMAGE = "gke.gcr.io/pause:3.8@sha256:880e63f94b145e46f1b1082bb71b85e21f16b99b180b9996407d61240ceb9830"
_RESERVATION = re.compile(
    r"(?:projects/(?P<project>[^/]+)/reservations/)?(?P<name>[^/]+)(?:/reservationBlocks/(?P<block>[^/]+)(?:/reservationSubBlocks/(?P<sub_block>[^/]+))?)?"
)
_GIB = "/usr/local/gib"


def templates_of(spec: RunSpec) -> list[str]:
    """The templates of this run's system below manifests/, in the order in which they are applied."""
    storage = ["lustre/lustre-data"] if spec.infra_filesystem == "lustre" else ["common/gcsfuse-data", "common/gcsfuse-checkpoints"]
    network = {
        "standard": ["standard/network-mapping", "common/gib-installer"],
        "autopilot": ["autopilot/compute-class", "autopilot/rdma-claim"],
        "a4x": ["common/gib-installer", "a4x/dra-namespace", "a4x/rdma-claim", "a4x/compute-domain"],
    }[spec.infra_cluster_kind]
    parts = ["common/namespace", "common/service-account", "common/network-policy", *storage]
    return [f"{part}.yaml.j2" for part in (*parts, *(network if spec.gpu_machine else []), "common/raycluster")]


def build_context(spec: RunSpec, run_id: str, facts: Facts) -> dict[str, Any]:
    """What every template may print.

    Raises:
        RenderError: If facts that this system needs are missing, or the parameters contradict each other.
    """
    machine = MACHINES[spec.gpu_machine] if spec.gpu_machine else None
    _check(spec, facts, machine)
    lustre, autopilot = spec.infra_filesystem == "lustre", spec.infra_cluster_kind == "autopilot"
    owner = {"managed-by": "tuneline"}
    expires = {"tuneline-expires": facts.expires} if facts.expires else {}
    arch = machine.cpu_arch if machine else "amd64"
    size = worker_size(machine, spec.infra_cluster_kind) if machine else CPU_WORKER
    volumes = [{"name": "data", "path": DATA, "claim": f"{run_id}-data"}]
    if not lustre:
        volumes.append({"name": "checkpoints", "path": f"{DATA}/checkpoints", "claim": f"{run_id}-checkpoints"})
    host_libraries = machine is not None and not autopilot
    return {
        "run_id": run_id,
        "namespace": spec.infra_namespace,
        "service_account": spec.infra_service_account,
        "zone": spec.infra_zone,
        "provisioning": spec.gpu_provisioning,
        "max_run_seconds": int(spec.gpu_max_run_hours * 3600),
        "reservation": _reservation(spec),
        "shared_labels": owner,
        "run_labels": {**owner, "tuneline-run": run_id, **expires},
        "operator": facts.operator,
        "bucket": facts.bucket,
        "store_prefix": facts.prefix,
        "checkpoint_dir": "/".join(filter(None, [facts.prefix, "checkpoints"])),
        # Only nodes with local SSDs, and sidecars without a limit, have room for a cache of whole checkpoints.
        "file_cache": host_libraries,
        "lustre": facts.lustre,
        "lustre_capacity": f"{spec.infra_lustre_gib}Gi",
        "node_networks": facts.networks,
        "resource_api": facts.resource_api,
        "machine": machine,
        "cpu_arch": arch,
        "gib": {
            "name": "tuneline-gib" if arch == "amd64" else f"tuneline-gib-{arch}",
            "image": facts.gib_image or GIB_IMAGES[arch],
            "accelerators": sorted(other.accelerator for other in MACHINES.values() if other.cpu_arch == arch),
        },
        "gib_in_pod": machine is not None and autopilot,
        "host_libraries": host_libraries,
        "pause_image": PAUSE_IMAGE,
        "image": facts.image,
        "ray_version": facts.ray_version,
        "autopilot": autopilot,
        "data_volumes": volumes,
        "head": _head(spec, facts, machine),
        "worker": {
            **size.quantities(),
            "replicas": spec.gpu_nodes if machine else spec.gpu_workers,
            "annotations": _annotations(spec, worker=True),
            "node_selector": _worker_nodes(spec, run_id, facts, machine),
            "tolerations": _tolerations(machine),
            "env": _environment(machine),
        },
        "interfaces": _interfaces(spec, facts) if machine else [],
        "resource_claims": _claims(spec, run_id, machine) if machine else [],
        "nccl_setup": _nccl_setup(machine) if machine else "",
    }


def _check(spec: RunSpec, facts: Facts, machine: Machine | None) -> None:
    kind, faults = spec.infra_cluster_kind, []
    if spec.infra_filesystem == "lustre" and facts.lustre is None:
        faults.append("lustre: the address of the file system is missing")
    if spec.infra_filesystem == "gcsfuse" and not facts.bucket:
        faults.append("bucket: the name of the store's bucket is missing")
    if kind == "standard" and machine and len(facts.networks) != 1 + machine.rdma_nics:
        faults.append(f"networks: {machine.name} has 1 gVNIC and {machine.rdma_nics} RDMA interfaces, given {len(facts.networks)}")
    if kind != "autopilot" and not facts.cpu_pool and kind != "a4x":
        faults.append("cpu_pool: the node pool of the head is missing")
    if kind != "autopilot" and machine and not facts.gpu_pool:
        faults.append("gpu_pool: the node pool of the workers is missing")
    if kind in ("autopilot", "a4x") and machine and not facts.resource_api:
        faults.append("resource_api: the cluster serves no resource.k8s.io, so RDMA interfaces cannot be claimed (GKE 1.34 or newer does)")
    if faults:
        raise RenderError("parameters and facts make no whole system: " + "; ".join(faults), next_move="give what is missing and run again")


def _reservation(spec: RunSpec) -> dict[str, str]:
    """Name, project, block and sub-block of the reservation."""
    found = _RESERVATION.fullmatch(spec.gpu_reservation)
    parts = found.groupdict(default="") if found else {"name": "", "project": "", "block": "", "sub_block": ""}
    return {**parts, "project": parts["project"] or spec.infra_project}


def _annotations(spec: RunSpec, *, worker: bool) -> dict[str, str]:
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}  # scaling down never ends a training
    if spec.infra_filesystem == "lustre":
        return annotations
    # The sidecar's own defaults (250m, 256Mi, 5Gi) end in OOMKilled with shards of this size; "0" is no limit, which Autopilot refuses.
    limits = {"cpu-limit": "0", "memory-limit": "0", "ephemeral-storage-limit": "0"}
    if spec.infra_cluster_kind == "autopilot":
        cpu, memory, ephemeral = ("8", "64Gi", "20Gi") if worker and spec.gpu_machine else ("1", "4Gi", "5Gi")
        limits = {"cpu-limit": cpu, "memory-limit": memory, "ephemeral-storage-limit": ephemeral}
    return {**annotations, "gke-gcsfuse/volumes": "true", **{f"gke-gcsfuse/{name}": value for name, value in limits.items()}}


def _head(spec: RunSpec, facts: Facts, machine: Machine | None) -> dict[str, Any]:
    selector: dict[str, str]
    tolerations: list[dict[str, str]] = []
    if spec.infra_cluster_kind == "autopilot":
        selector = {"cloud.google.com/compute-class": "Performance", "cloud.google.com/machine-family": "c2"}
    elif machine and machine.cpu_arch == "arm64":
        selector, tolerations = _pool(facts.gpu_pool, machine), _tolerations(machine)
    else:
        selector = {"cloud.google.com/gke-nodepool": facts.cpu_pool}
    return {
        **HEAD.quantities(),
        "node_selector": selector,
        "tolerations": tolerations,
        "annotations": _annotations(spec, worker=False),
        "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}],
    }


def _worker_nodes(spec: RunSpec, run_id: str, facts: Facts, machine: Machine | None) -> dict[str, str]:
    if machine is None:
        autopilot = spec.infra_cluster_kind == "autopilot"
        return {"cloud.google.com/compute-class": "Balanced"} if autopilot else {"cloud.google.com/gke-nodepool": facts.cpu_pool}
    if spec.infra_cluster_kind == "autopilot":
        return {"cloud.google.com/compute-class": run_id}
    return _pool(facts.gpu_pool, machine)


def _pool(pool: str, machine: Machine) -> dict[str, str]:
    return {"cloud.google.com/gke-nodepool": pool, "cloud.google.com/gke-accelerator": machine.accelerator}


def _tolerations(machine: Machine | None) -> list[dict[str, str]]:
    if machine is None:
        return []
    arm = [{"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}]
    return [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, *(arm if machine.cpu_arch == "arm64" else [])]


def _environment(machine: Machine | None) -> list[dict[str, str]]:
    values = {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "eth0"}  # staged by now: no worker asks the hub for anything
    if machine:
        # With NCCL_NET=gIB a worker without RDMA fails at once; without it NCCL would train over TCP at a tenth of the speed.
        values |= {"NCCL_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0", "NCCL_NET": "gIB", "NCCL_DEBUG": "WARN"}
    return [{"name": name, "value": value} for name, value in values.items()]


def _interfaces(spec: RunSpec, facts: Facts) -> list[dict[str, str]]:
    """What the annotation networking.gke.io/interfaces lists: eth0 of the cluster, then the node's further interfaces in order."""
    if spec.infra_cluster_kind != "standard":
        return []
    names = ("default", *(network.name for network in facts.networks))
    return [{"interfaceName": f"eth{number}", "network": name} for number, name in enumerate(names)]


def _claims(spec: RunSpec, run_id: str, machine: Machine) -> list[dict[str, str]]:
    if spec.infra_cluster_kind == "autopilot":
        return [{"name": "rdma", "template": f"{run_id}-all-mrdma"}]
    if spec.infra_cluster_kind == "a4x":
        nics = [{"name": f"rdma-nic-{number}", "template": f"{run_id}-rdma-nic"} for number in range(machine.rdma_nics)]
        return [*nics, {"name": "compute-domain", "template": f"{run_id}-channel"}]
    return []


def _nccl_setup(machine: Machine) -> str:
    """A shell line that leaves NCCL's settings in the environment, or ends the container.

    The installer's script knows the settings of its version, so none is listed here. It does not set the library path, and the image's
    own path stays behind ours. KubeRay puts `&& ulimit ...; ray start ...` behind the line.
    """
    script = f"{_GIB}/scripts/set_nccl_env.sh"
    steps = [f"source {script}", f'export LD_LIBRARY_PATH="{_GIB}/lib64:/usr/local/nvidia/lib64${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"']
    if machine.tuner:
        steps.append(f"export NCCL_TUNER_CONFIG_PATH={_GIB}/configs/tuner_config_{machine.tuner}.txtpb")
    return f"until [ -e {script} ]; do sleep 2; done; {' && '.join(steps)} || exit 1"
