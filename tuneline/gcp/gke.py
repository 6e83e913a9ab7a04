"""GKE: clusters and node pools, and the early signs that a pool will never get its machines."""

from __future__ import annotations

import re
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.core.log import get_logger
from tuneline.gcp.calls import PLAIN, call, delete, ensure, find, wait
from tuneline.gcp.capacity import PoolWatch, wait_for_no_groups
from tuneline.gcp.clients import Google
from tuneline.gcp.compare import check_found
from tuneline.gcp.compute import NETWORK_SECONDS, Ensured
from tuneline.gcp.errors import Conflict, GoogleError, NotFound, Quota, ReservationMismatch, Stockout, classify
from tuneline.gcp.faults import Fault
from tuneline.gcp.operations import find_container_operation, wait_container
from tuneline.gcp.ownership import Mark

_log = get_logger("gke")

#: gcp.md 2.3.
CLUSTER_SECONDS = 3600.0
POOL_SECONDS = 3600.0

#: What an adopted cluster must have as asked; the rest is its owner's affair.
CLUSTER_MUST = (
    "autopilot.enabled",
    "network",
    "subnetwork",
    "addons_config.ray_operator_config.enabled",
    "addons_config.gcs_fuse_csi_driver_config.enabled",
    "addons_config.lustre_csi_driver_config",
    "network_config.datapath_provider",
    "network_config.enable_multi_networking",
    "workload_identity_config.workload_pool",
    "control_plane_endpoints_config.dns_endpoint_config.allow_external_traffic",
)
#: What GKE changes by itself, or answers in another form than asked.
CLUSTER_VARIES = ("node_pools", "initial_cluster_version", "locations", "ip_allocation_policy.create_subnetwork")


def parent_of(google: Google, location: str, cluster: str = "") -> str:
    """`projects/P/locations/L[/clusters/C]`."""
    return f"projects/{google.project}/locations/{location}" + (f"/clusters/{cluster}" if cluster else "")


def get_cluster(google: Google, location: str, name: str, *, deadline: Deadline | None = None) -> Any | None:
    """container_v1.Cluster, None where there is none."""
    until = deadline or Deadline.after(google.clock, NETWORK_SECONDS)
    path = parent_of(google, location, name)
    return find(google, f"read cluster {name}", lambda: google.clusters.get_cluster(name=path, **PLAIN), until)


def get_pool(google: Google, location: str, cluster: str, name: str, *, deadline: Deadline | None = None) -> Any | None:
    """container_v1.NodePool, None where there is none."""
    until = deadline or Deadline.after(google.clock, NETWORK_SECONDS)
    path = f"{parent_of(google, location, cluster)}/nodePools/{name}"
    return find(google, f"read node pool {name}", lambda: google.clusters.get_node_pool(name=path, **PLAIN), until)


def ensure_cluster(google: Google, location: str, body: Any, mark: Mark, *, least_version: str = "") -> Ensured:
    """The cluster as asked, running; created or adopted.

    Args:
        body: container_v1.Cluster with its first node pools.
        least_version: Lowest control plane version that can do what the run needs.

    Raises:
        Conflict: A cluster of this name is another's or different; names both values.
        Quota, Stockout, Permission: As the operation says. A cluster that this run created and that failed is deleted again.
    """
    until, what = Deadline.after(google.clock, CLUSTER_SECONDS), f"cluster {body.name}"
    target, path = f"clusters/{body.name}", parent_of(google, location, body.name)

    def create(_: int) -> None:
        operation = find_container_operation(google, location, target, ("CREATE_CLUSTER",), until)
        if operation is None:
            request = {"parent": parent_of(google, location), "cluster": body}
            operation = call(
                google, f"create {what}", lambda: google.clusters.create_cluster(request=request, **PLAIN), until, repeat=False
            )
        _finish(google, location, operation, f"create {what}", until, mark, path)

    def settle(found: Any) -> Any | None:
        return _settle(
            google, location, target, found, lambda: get_cluster(google, location, body.name, deadline=until), until, what, mark, path
        )

    found = ensure(
        google, what, get=lambda: get_cluster(google, location, body.name, deadline=until), create=create, settle=settle, deadline=until
    )
    created = check_found(what, body, found, mark=mark, must=CLUSTER_MUST, ignore=CLUSTER_VARIES)
    if least_version and version(found.current_master_version) < version(least_version):
        raise Conflict(
            f"{what} runs {found.current_master_version}, older than {least_version}, which this kind of run needs",
            asked=f"version {least_version} or newer",
            found=f"version {found.current_master_version}",
            next_move="upgrade it, or choose infra_release_channel=rapid for a new one",
        )
    return Ensured(body.name, created, found)


def ensure_pool(google: Google, location: str, cluster: str, body: Any, mark: Mark) -> Ensured:
    """The node pool as asked, running.

    Raises:
        Stockout: Its machines are refused for a minute; the pool is deleted again.
        Conflict: Another run's pool has this name, or it differs.
    """
    until, what = Deadline.after(google.clock, POOL_SECONDS), f"node pool {body.name}"
    target, parent = f"clusters/{cluster}/nodePools/{body.name}", parent_of(google, location, cluster)
    path = f"{parent}/nodePools/{body.name}"
    watch = PoolWatch(google, lambda: get_pool(google, location, cluster, body.name))

    def create(_: int) -> None:
        operation = find_container_operation(google, location, target, ("CREATE_NODE_POOL",), until)
        if operation is None:
            request = {"parent": parent, "node_pool": body}
            operation = call(
                google, f"create {what}", lambda: google.clusters.create_node_pool(request=request, **PLAIN), until, repeat=False
            )
        _finish(google, location, operation, f"create {what}", until, mark, path, watch)

    def read() -> Any | None:
        return get_pool(google, location, cluster, body.name, deadline=until)

    found = ensure(
        google,
        what,
        get=read,
        create=create,
        settle=lambda pool: _settle(google, location, target, pool, read, until, what, mark, path, watch),
        deadline=until,
    )
    created = check_found(
        what, body, found, mark=mark, must=("config.machine_type", "config.accelerators", "locations", "config.resource_labels")
    )
    return Ensured(body.name, created, found)


def _finish(
    google: Google, location: str, operation: Any, what: str, until: Deadline, mark: Mark, path: str, watch: PoolWatch | None = None
) -> None:
    """Wait for a creation; what it left behind when it failed goes again, for it costs and would be in the way of the next try."""
    try:
        wait_container(google, location, operation, what, until, watch=watch.check if watch else None)
    except (Stockout, Quota, ReservationMismatch) as error:
        _log.warning("%s failed: %s", what, error.message)
        _discard(google, location, path, mark)
        raise


def _discard(google: Google, location: str, path: str, mark: Mark) -> None:
    """Delete a failed cluster or pool that this run made; what stands in the way is only told, the failure itself matters more."""
    parts = path.split("/")
    try:
        if "nodePools" in parts:
            cluster, pool = parts[5], parts[7]
            found = get_pool(google, location, cluster, pool)
            if found is not None and mark.made(found):
                delete_pool(google, location, cluster, pool)
        else:
            found = get_cluster(google, location, parts[5])
            if found is not None and mark.made(found):
                delete_cluster(google, location, parts[5])
    except GoogleError as error:
        _log.error("the failed %s could not be deleted: %s", path, error)


def _settle(
    google: Google,
    location: str,
    target: str,
    found: Any,
    read: Any,
    until: Deadline,
    what: str,
    mark: Mark,
    path: str,
    watch: PoolWatch | None = None,
) -> Any | None:
    """Wait until a cluster or pool is usable: through the operation in flight on it, of whichever process began it."""
    status = found.status.name
    if status == "PROVISIONING":
        operation = find_container_operation(google, location, target, ("CREATE_CLUSTER", "CREATE_NODE_POOL"), until)
        if operation is not None:
            _finish(google, location, operation, f"create {what}", until, mark, path, watch)
    if status == "STOPPING":
        operation = find_container_operation(google, location, target, ("DELETE_CLUSTER", "DELETE_NODE_POOL"), until)
        if operation is not None:
            wait_container(google, location, operation, f"delete {what}", until)
        wait(google, f"wait for {what} to go", lambda: read() is None, bool, until, poll=10.0)
        return None
    settled = wait(
        google,
        f"wait for {what}",
        read,
        lambda value: value is None or value.status.name not in ("PROVISIONING", "RECONCILING"),
        until,
        poll=10.0,
        watch=watch.check if watch else None,
        state=lambda value: str(value.status.name),
    )
    if settled is not None and settled.status.name == "ERROR":
        error = _status_error(settled, what)
        _discard(google, location, path, mark)
        raise error
    return settled


def _status_error(found: Any, what: str) -> GoogleError:
    reasons = [condition.code.name for condition in found.conditions]
    message = found.status_message or "; ".join(condition.message for condition in found.conditions) or "no reason told"
    return classify(Fault(0, f"{what} is in status ERROR: {message}", tuple(reasons)), f"use {what}")


def version(text: str) -> tuple[int, ...]:
    """1.34.1-gke.1829001 as (1, 34, 1, 1829001)."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def resize_pool(google: Google, location: str, cluster: str, pool: str, nodes: int) -> None:
    """Set a pool's size and switch its autoscaling off first, so that nothing scales it again.

    Raises:
        NotFound: There is no such pool.
    """
    until, path = Deadline.after(google.clock, POOL_SECONDS), f"{parent_of(google, location, cluster)}/nodePools/{pool}"
    found = get_pool(google, location, cluster, pool, deadline=until)
    if found is None:
        raise NotFound(f"there is no node pool {pool}", asked=path, next_move="nothing to resize")
    if found.autoscaling.enabled:
        request: dict[str, Any] = {"name": path, "autoscaling": {"enabled": False}}
        operation = call(
            google,
            f"stop autoscaling of {pool}",
            lambda: google.clusters.set_node_pool_autoscaling(request=request, **PLAIN),
            until,
        )
        wait_container(google, location, operation, f"stop autoscaling of {pool}", until)
    size = {"name": path, "node_count": nodes}
    operation = call(google, f"resize {pool} to {nodes}", lambda: google.clusters.set_node_pool_size(request=size, **PLAIN), until)
    wait_container(google, location, operation, f"resize {pool} to {nodes}", until)


def delete_pool(google: Google, location: str, cluster: str, pool: str) -> bool:
    """Delete a pool, its instance groups included, and look until they are gone. The caller has proved that it is ours."""
    until, path = Deadline.after(google.clock, POOL_SECONDS), f"{parent_of(google, location, cluster)}/nodePools/{pool}"
    found = get_pool(google, location, cluster, pool, deadline=until)
    urls = list(found.instance_group_urls) if found is not None else []

    def send(_: int) -> None:
        target = f"clusters/{cluster}/nodePools/{pool}"
        operation = find_container_operation(google, location, target, ("DELETE_NODE_POOL",), until) or call(
            google,
            f"delete node pool {pool}",
            lambda: google.clusters.delete_node_pool(name=path, **PLAIN),
            Deadline.after(google.clock, 0),
            repeat=False,
        )
        wait_container(google, location, operation, f"delete node pool {pool}", until)

    had = delete(
        google, f"node pool {pool}", get=lambda: get_pool(google, location, cluster, pool, deadline=until), send=send, deadline=until
    )
    wait_for_no_groups(google, urls, until)
    return had


def delete_cluster(google: Google, location: str, name: str) -> bool:
    """Delete a cluster, its instance groups included, and look until they are gone. The caller has proved that it is ours."""
    until, path = Deadline.after(google.clock, CLUSTER_SECONDS), parent_of(google, location, name)
    found = get_cluster(google, location, name, deadline=until)
    urls = [url for pool in found.node_pools for url in pool.instance_group_urls] if found is not None else []

    def send(_: int) -> None:
        operation = find_container_operation(google, location, f"clusters/{name}", ("DELETE_CLUSTER",), until) or call(
            google,
            f"delete cluster {name}",
            lambda: google.clusters.delete_cluster(name=path, **PLAIN),
            Deadline.after(google.clock, 0),
            repeat=False,
        )
        wait_container(google, location, operation, f"delete cluster {name}", until)

    had = delete(google, f"cluster {name}", get=lambda: get_cluster(google, location, name, deadline=until), send=send, deadline=until)
    wait_for_no_groups(google, urls, until)
    return had
