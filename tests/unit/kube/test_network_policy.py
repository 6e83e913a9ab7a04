"""Who reaches Ray, by the policy's own rules.

The rules are evaluated here as the API says that they work. That a cluster's network enforces them (Dataplane V2 does; a cluster
without a network policy engine does not), that it sees the pod's own address as source and not a node's, and that no further
interface of the pod bypasses it, only a real cluster proves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kube.systems import OPERATOR, SYSTEMS

HOME = "tuneline"
RAY_PORTS = (6379, 8000, 8076, 8080, 8265, 10001, 10002, 44217, 44227, 52365)


@dataclass(frozen=True)
class Pod:
    namespace: str
    labels: dict[str, str] = field(default_factory=dict)


HEAD = Pod(HOME, {"ray.io/cluster": "tl1", "ray.io/node-type": "head"})
WORKER = Pod(HOME, {"ray.io/cluster": "tl1", "ray.io/node-type": "worker"})
OPERATOR_POD = Pod(OPERATOR.namespace, {**OPERATOR.labels, "pod-template-hash": "x"})


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """A label selector; the empty one selects all."""
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "Exists", "extend the evaluator with the policy"
        if expression["key"] not in labels:
            return False
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def allows(policies: list[dict[str, Any]], source: Pod, target: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let in: by some rule of some policy that selects the target, or because none selects it."""
    ruling = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == target.namespace
        and "Ingress" in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], target.labels)
    ]
    return not ruling or any(_rule(rule, policy, source, port, protocol) for policy in ruling for rule in policy["spec"].get("ingress", []))


def _rule(rule: dict[str, Any], policy: dict[str, Any], source: Pod, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    if ports and not any(item["port"] == port and item.get("protocol", "TCP") == protocol for item in ports):
        return False
    return not rule.get("from") or any(_peer(peer, policy, source) for peer in rule["from"])


def _peer(peer: dict[str, Any], policy: dict[str, Any], source: Pod) -> bool:
    assert set(peer) <= {"namespaceSelector", "podSelector"}, "extend the evaluator with the policy"
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": source.namespace}):
            return False
    elif source.namespace != policy["metadata"]["namespace"]:
        return False
    return selects(peer.get("podSelector", {}), source.labels)


@pytest.fixture(params=sorted(SYSTEMS))
def policies(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return [manifest.body for manifest in SYSTEMS[request.param].manifests() if manifest.kind == "NetworkPolicy"]


def test_the_namespace_reaches_every_port(policies: list[dict[str, Any]]) -> None:
    assert all(
        allows(policies, source, target, port) for source in (HEAD, WORKER, Pod(HOME)) for target in (HEAD, WORKER) for port in RAY_PORTS
    )


def test_the_operator_reaches_the_dashboard_only(policies: list[dict[str, Any]]) -> None:
    assert [port for port in RAY_PORTS if allows(policies, OPERATOR_POD, HEAD, port)] == [8265]
    assert not allows(policies, OPERATOR_POD, HEAD, 8265, "UDP")


@pytest.mark.parametrize(
    "stranger",
    [
        Pod("default"),
        Pod("other", dict(HEAD.labels)),
        Pod("other", dict(OPERATOR.labels)),
        Pod(OPERATOR.namespace, {"app": "not-the-operator"}),
        Pod("kube-system", {"k8s-app": "konnectivity-agent"}),
    ],
    ids=["default", "another Ray", "false operator", "operator's neighbour", "control plane"],
)
def test_strangers_reach_nothing(policies: list[dict[str, Any]], stranger: Pod) -> None:
    assert not [port for port in (*RAY_PORTS, 22, 443) for target in (HEAD, WORKER) if allows(policies, stranger, target, port)]


def test_without_the_policy_strangers_reach_everything() -> None:
    """The evaluator can say yes: what closes the ports is the policy."""
    assert allows([], Pod("other"), HEAD, 8265)


def test_pods_that_are_not_rays_are_not_ruled(policies: list[dict[str, Any]]) -> None:
    assert allows(policies, Pod("other"), Pod(HOME, {"app": "something else in a namespace that was there before"}), 80)
