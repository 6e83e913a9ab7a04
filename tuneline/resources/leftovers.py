"""What GKE leaves behind when a cluster goes, and how each piece is proved to be of that cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.gcp import compute
from tuneline.gcp.clients import Google

#: gcp.md 2.3: network endpoint groups are collected asynchronously.
SECONDS = 1200.0
ANP_PREFIX = "gke-anp-"


def cluster_hash(cluster_id: str) -> str:
    """The eight characters of a cluster's id that GKE puts into the names of what it makes for it."""
    return cluster_id[:8]


def carries(name: str, cluster_id: str) -> bool:
    """Whether a name is one that GKE made for the cluster: `gke-tuneline-0a1b2c3d-all`, `gke-anp-0a1b2c3d`."""
    return bool(cluster_id) and name.startswith(("gke-", "gk3-")) and cluster_hash(cluster_id) in name.split("-")


def _network(resource: Any) -> str:
    return str(resource.network).rsplit("/", 1)[-1]


def delete_firewalls(google: Google, run: str, networks: Iterable[str], cluster_id: str) -> list[str]:
    """Delete the rules that GKE made: `gke-*` of this cluster anywhere, and on networks that are ours every `gke-*` and `k8s-*`.

    A rule of a person on a network of ours stays, and is then named as what keeps the network.
    """
    own = set(networks)
    rules = [
        rule.name
        for rule in compute.list_all(google, compute.FIREWALL)
        if carries(rule.name, cluster_id) or (_network(rule) in own and rule.name.startswith(("gke-", "gk3-", "k8s-", "k8s2-")))
    ]
    return _delete(google, compute.FIREWALL, [("", name) for name in rules], run)


def delete_groups(google: Google, run: str, networks: Iterable[str]) -> list[str]:
    """Delete the network endpoint groups on networks that are ours: GKE collects them late or never."""
    own = set(networks)
    found = [(place, item.name) for place, item in compute.list_everywhere(google, compute.NEG) if _network(item) in own]
    return _delete(google, compute.NEG, found, run)


def delete_forwarding_rules(google: Google, run: str, networks: Iterable[str]) -> list[str]:
    """Delete internal load balancers' rules on networks that are ours."""
    own = set(networks)
    found = [(place, item.name) for place, item in compute.list_everywhere(google, compute.FORWARDING_RULE) if _network(item) in own]
    return _delete(google, compute.FORWARDING_RULE, found, run)


def delete_disks(google: Google, run: str, cluster: str, location: str) -> list[str]:
    """Delete the disks of dynamic volumes of the cluster, which GKE labels with its name and location."""

    def of_cluster(disk: Any) -> bool:
        labels = disk.labels
        return labels.get("goog-k8s-cluster-name") == cluster and labels.get("goog-k8s-cluster-location") == location

    found = [(place, disk.name) for place, disk in compute.list_everywhere(google, compute.DISK) if of_cluster(disk)]
    return _delete(google, compute.DISK, found, run)


def delete_accelerator_networks(google: Google, run: str, region: str, cluster_id: str) -> list[str]:
    """Delete what managed DRANET made for the cluster and GKE does not take back: `gke-anp-<hash>*` rules, subnets, networks."""
    networks = [
        network.name
        for network in compute.list_all(google, compute.NETWORK)
        if network.name.startswith(ANP_PREFIX) and carries(network.name, cluster_id)
    ]
    if not networks:
        return []
    rules = [("", rule.name) for rule in compute.list_all(google, compute.FIREWALL) if _network(rule) in networks]
    subnets = [(region, item.name) for item in compute.list_all(google, compute.SUBNETWORK, place=region) if _network(item) in networks]
    gone = _delete(google, compute.FIREWALL, rules, run)
    gone += _delete(google, compute.SUBNETWORK, subnets, run)
    return gone + _delete(google, compute.NETWORK, [("", name) for name in networks], run)


def _delete(google: Google, kind: compute.Collection, found: Iterable[tuple[str, str]], run: str) -> list[str]:
    until, gone = Deadline.after(google.clock, SECONDS), []
    for place, name in found:
        if compute.delete_resource(google, kind, name, run, place=place, deadline=until):
            gone.append(f"{kind.path}/{name}")
    return gone
