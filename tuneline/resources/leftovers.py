"""What GKE leaves behind when a cluster goes, and how each piece is proved to be of that cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.gcp import compute
from tuneline.gcp.clients import Google

#: gcp.md 2.3: network endpoint groups are collected asynchronously.
SECONDS = 1200.0
ANP_PREFIX = "gke-anp-"
_MADE = ("gke-", "gk3-", "k8s-", "k8s1-", "k8s2-")


@dataclass(frozen=True)
class Cluster:
    """What proves that a leftover is a cluster's.

    Attributes:
        id: Cluster.id, whose first eight characters are in the names and node tags that GKE gives.
        uid: Its load balancers' uid (ConfigMap kube-system/ingress-uid), in the names that Kubernetes gives; '' where not known.
    """

    name: str
    location: str
    id: str
    uid: str = ""

    def named(self, name: str) -> bool:
        """Whether a name was made for this cluster: `gke-tuneline-0a1b2c3d-all`, `gke-anp-0a1b2c3d`, `k8s1-<uid>-...`."""
        if name.startswith(("gke-", "gk3-")):
            return bool(self.id) and self.id[:8] in name.split("-")
        return name.startswith("k8s") and bool(self.uid) and bool({self.uid, self.uid[:16], self.uid[:8]} & set(name.split("-")))

    def tagged(self, tags: Iterable[str]) -> bool:
        """Whether a rule is for this cluster's nodes: their tag is `gke-tuneline-0a1b2c3d-node`."""
        return any(self.named(tag) for tag in tags)


def _network(resource: Any) -> str:
    return str(resource.network).rsplit("/", 1)[-1]


def delete_firewalls(google: Google, run: str, networks: Iterable[str], cluster: Cluster) -> list[str]:
    """Delete the rules that GKE made: those of this cluster anywhere, and on networks that are ours every `gke-*` and `k8s-*`.

    A rule of a person on a network of ours stays, and is then named as what keeps the network.
    """
    own = set(networks)
    rules = [
        rule.name
        for rule in compute.list_all(google, compute.FIREWALL)
        if cluster.named(rule.name) or (rule.name.startswith(_MADE) and (_network(rule) in own or cluster.tagged(rule.target_tags)))
    ]
    return _delete(google, compute.FIREWALL, [("", name) for name in rules], run)


def delete_groups(google: Google, run: str, networks: Iterable[str], cluster: Cluster) -> list[str]:
    """Delete the network endpoint groups of this cluster, and all on networks that are ours: GKE collects them late or never."""
    own = set(networks)
    groups = compute.list_everywhere(google, compute.NEG)
    found = [(place, item.name) for place, item in groups if _network(item) in own or cluster.named(item.name)]
    return _delete(google, compute.NEG, found, run)


def delete_forwarding_rules(google: Google, run: str, networks: Iterable[str]) -> list[str]:
    """Delete internal load balancers' rules on networks that are ours."""
    own = set(networks)
    found = [(place, item.name) for place, item in compute.list_everywhere(google, compute.FORWARDING_RULE) if _network(item) in own]
    return _delete(google, compute.FORWARDING_RULE, found, run)


def delete_disks(google: Google, run: str, cluster: Cluster) -> list[str]:
    """Delete the disks of dynamic volumes of the cluster, which GKE labels with its name and location."""

    def of_cluster(disk: Any) -> bool:
        labels = disk.labels
        return (labels.get("goog-k8s-cluster-name"), labels.get("goog-k8s-cluster-location")) == (cluster.name, cluster.location)

    found = [(place, disk.name) for place, disk in compute.list_everywhere(google, compute.DISK) if of_cluster(disk)]
    return _delete(google, compute.DISK, found, run)


def delete_accelerator_networks(google: Google, run: str, cluster: Cluster) -> list[str]:
    """Delete what managed DRANET made for the cluster and GKE does not take back: `gke-anp-<hash>*` rules, subnets, networks."""
    networks = [
        network.name
        for network in compute.list_all(google, compute.NETWORK)
        if network.name.startswith(ANP_PREFIX) and cluster.named(network.name)
    ]
    if not networks:
        return []
    rules = [("", rule.name) for rule in compute.list_all(google, compute.FIREWALL) if _network(rule) in networks]
    found = compute.list_all(google, compute.SUBNETWORK, place=cluster.location)
    subnets = [(cluster.location, item.name) for item in found if _network(item) in networks]
    gone = _delete(google, compute.FIREWALL, rules, run)
    gone += _delete(google, compute.SUBNETWORK, subnets, run)
    return gone + _delete(google, compute.NETWORK, [("", name) for name in networks], run)


def _delete(google: Google, kind: compute.Collection, found: Iterable[tuple[str, str]], run: str) -> list[str]:
    until, gone = Deadline.after(google.clock, SECONDS), []
    for place, name in found:
        if compute.delete_resource(google, kind, name, run, place=place, deadline=until):
            gone.append(f"{kind.path}/{name}")
    return gone
