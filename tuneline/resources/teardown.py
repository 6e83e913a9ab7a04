"""The end of a run's infrastructure, in the one order that works, touching only what this run provably created.

Kubernetes objects (RayJob, RayCluster, ComputeDomain, claims) go before; this begins at the GPU pool. Proof is the mark on the live
resource, or a name that holds the id of a cluster which the inventory says this run created. Models, data, checkpoints and the bucket
that holds them stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.core.clock import Deadline
from tuneline.core.errors import TunelineError
from tuneline.core.log import get_logger
from tuneline.gcp import compute, gke, lustre, peering, storage
from tuneline.gcp.clients import Google
from tuneline.gcp.ownership import RUN, marks
from tuneline.resources import bucket, leftovers
from tuneline.resources.inventory import Inventory, Names, is_ours

_log = get_logger("teardown")

#: A RoCE network goes only when the NICs of all nodes are released, which takes minutes.
NETWORK_SECONDS = 1200.0


class LeftBehind(TunelineError):
    """Something of ours could not be deleted."""

    code = "TL820"


@dataclass
class Ended:
    """What a teardown did.

    Attributes:
        deleted: What is gone by this call.
        kept: What stays because another created it.
    """

    deleted: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


@dataclass
class Teardown:
    """A run's teardown; every step may be run again.

    Args:
        number: The project's number.
    """

    google: Google
    spec: RunSpec
    names: Names
    inventory: Inventory
    number: str
    ended: Ended = field(default_factory=Ended)

    def run(self, policy: str) -> Ended:
        """Delete by policy: gpus (the run's GPU pool) | all (whatever this run created, except the bucket) | none.

        Raises:
            LeftBehind: With the step that could not be finished; what comes after it in the order was not tried.
        """
        steps: list[tuple[str, Callable[[], None]]] = [("the GPU pool", self.gpu_pool)] if policy in ("gpus", "all") else []
        if policy == "all":
            steps += [
                ("the cluster", self.cluster),
                ("what GKE leaves behind", self.gke_leftovers),
                ("Lustre", self.filesystem),
                ("firewall rules", self.firewalls),
                ("subnets", self.subnetworks),
                ("networks", self.networks),
                ("the workload policy", self.workload_policy),
                ("the access to the bucket", self.access),
            ]
        for what, step in steps:
            try:
                step()
            except TunelineError as error:
                raise LeftBehind(
                    f"{what} of run {self.inventory.run_id} could not be removed: {error.message}",
                    asked=f"ops_cleanup_policy={policy}",
                    found=error.found or error.message,
                    next_move=error.next_move or "run cleanup again",
                ) from error
        return self.ended

    def gpu_pool(self) -> None:
        """The run's GPU pool and its nodes are gone."""
        region, name = self.spec.infra_region, self.names.pool
        found = gke.get_pool(self.google, region, self.names.cluster, name)
        if found is not None and self._mine("node pool", name, found):
            self._gone(f"node pool {name}", gke.delete_pool(self.google, region, self.names.cluster, name))
        self.inventory.forget("pool", name)

    def cluster(self) -> None:
        """The cluster and its instance groups are gone; its id stays on record, for what it leaves behind."""
        region, name = self.spec.infra_region, self.names.cluster
        found = gke.get_cluster(self.google, region, name)
        if found is not None and self._mine("cluster", name, found):
            others = sorted({marks(pool)[RUN] for pool in found.node_pools if is_ours(pool)} - {self.inventory.run_id})
            if others:
                _log.warning("cluster %s stays: it holds pools of %s", name, ", ".join(others))
                self.ended.kept.append(f"cluster {name}, in use by {', '.join(others)}")
                return
            self.inventory.note("cluster", name, place=region, created=True, id=str(found.id))
            self._gone(f"cluster {name}", gke.delete_cluster(self.google, region, name))

    def gke_leftovers(self) -> None:
        """Rules, endpoint groups, disks and networks that GKE made for the cluster, once that is gone."""
        region, run = self.spec.infra_region, self.inventory.run_id
        entry = self.inventory.find("cluster", self.names.cluster)
        if entry is None or not entry.created or gke.get_cluster(self.google, region, self.names.cluster) is not None:
            return
        own = self._own_networks()
        cluster = leftovers.Cluster(self.names.cluster, region, entry.facts.get("id", ""), entry.facts.get("uid", ""))
        self.ended.deleted += leftovers.delete_forwarding_rules(self.google, run, own)
        self.ended.deleted += leftovers.delete_groups(self.google, run, own, cluster)
        self.ended.deleted += leftovers.delete_firewalls(self.google, run, own, cluster)
        self.ended.deleted += leftovers.delete_disks(self.google, run, cluster)
        self.ended.deleted += leftovers.delete_accelerator_networks(self.google, run, cluster)
        self.inventory.forget("cluster", self.names.cluster)

    def filesystem(self) -> None:
        """The Lustre instance, our range in the peering, the range itself."""
        zone, run, names = self.spec.infra_zone, self.inventory.run_id, self.names
        if self.spec.infra_filesystem != "lustre":
            return
        found = lustre.get_instance(self.google, zone, names.lustre)
        if found is not None:
            if not self._mine("Lustre", names.lustre, found):
                return
            self._gone(f"Lustre {names.lustre}", lustre.delete_instance(self.google, zone, names.lustre, run))
        self.inventory.forget("lustre", names.lustre)
        held = compute.get(self.google, compute.ADDRESS, names.lustre_range)
        if held is not None and self._mine("addresses", names.lustre_range, held):
            released = peering.release_range(self.google, self.number, names.network, names.lustre_range, run)
            self._gone(f"private services access of {names.network} by {names.lustre_range}", released)
            self._delete(compute.ADDRESS, names.lustre_range)
        self.inventory.forget("connection", names.network)

    def firewalls(self) -> None:
        """Our own rules."""
        for name in (self.names.lustre_firewall, self.names.gvnic_firewall):
            self._delete(compute.FIREWALL, name)

    def subnetworks(self) -> None:
        """Our own subnets."""
        for name in (*self.names.roce_subnetworks, self.names.gvnic_subnetwork, self.names.subnetwork):
            self._delete(compute.SUBNETWORK, name, place=self.spec.infra_region)

    def networks(self) -> None:
        """Our own networks; a RoCE network waits for its NICs."""
        for name in (self.names.roce, self.names.gvnic, self.names.network):
            self._delete(compute.NETWORK, name)

    def workload_policy(self) -> None:
        """A4X's policy, which no cluster's deletion takes along."""
        self._delete(compute.POLICY, self.names.policy, place=self.spec.infra_region)

    def access(self) -> None:
        """The binding of the run's pods, where this run added it and its cluster is gone."""
        member = bucket.member_of(self.spec, self.number)
        entry = self.inventory.find("binding", member)
        if entry is None:
            return
        if entry.created and gke.get_cluster(self.google, self.spec.infra_region, self.names.cluster) is None:
            self._gone(f"access of {member}", storage.delete_binding(self.google, self.names.bucket, bucket.ROLE, member))
        self.inventory.forget("binding", member)

    def _own_networks(self) -> list[str]:
        """Networks with this run's mark on them."""
        made = []
        for name in (self.names.roce, self.names.gvnic, self.names.network):
            found = compute.get(self.google, compute.NETWORK, name)
            if found is not None and is_ours(found, self.inventory.run_id):
                made.append(name)
        return made

    def _delete(self, kind: compute.Collection, name: str, *, place: str = "") -> None:
        """Delete a compute resource if this run made it."""
        found = compute.get(self.google, kind, name, place=place)
        if found is not None and self._mine(kind.path, name, found):
            until = Deadline.after(self.google.clock, NETWORK_SECONDS)
            deleted = compute.delete_resource(self.google, kind, name, self.inventory.run_id, place=place, deadline=until)
            self._gone(f"{kind.path}/{name}", deleted)
        self.inventory.forget(_ENTRY[kind.path], name)

    def _mine(self, what: str, name: str, found: Any) -> bool:
        mine = is_ours(found, self.inventory.run_id)
        if not mine:
            _log.info("%s %s stays: this run did not create it", what, name)
            self.ended.kept.append(f"{what} {name}")
        return mine

    def _gone(self, what: str, deleted: bool) -> None:
        if deleted:
            self.ended.deleted.append(what)


_ENTRY = {
    "networks": "network",
    "subnetworks": "subnetwork",
    "firewalls": "firewall",
    "addresses": "address",
    "resourcePolicies": "policy",
}
