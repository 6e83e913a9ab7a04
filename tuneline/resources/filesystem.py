"""Managed Lustre: a range of addresses, the peering through which it is reached, a rule for its port, the instance."""

from __future__ import annotations

from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.gcp import compute, lustre, peering
from tuneline.gcp.clients import Google
from tuneline.gcp.errors import NotFound
from tuneline.gcp.ownership import Mark
from tuneline.resources.inventory import Inventory, Names
from tuneline.resources.networks import build_firewall, network_path

FILESYSTEM = "lustrefs"
PORT = "988"
PREFIX_LENGTH = 20


def build_range(spec: RunSpec, names: Names, mark: Mark) -> Any:
    """compute_v1.Address: Google chooses where the range lies."""
    from google.cloud import compute_v1

    return compute_v1.Address(
        name=names.lustre_range,
        description=mark.description,
        labels=mark.labels,
        purpose="VPC_PEERING",
        address_type="INTERNAL",
        prefix_length=PREFIX_LENGTH,
        network=network_path(spec, names.network),
    )


def build_port_rule(spec: RunSpec, names: Names, mark: Mark, source: str) -> Any:
    """compute_v1.Firewall: Lustre's servers, in `source` (CIDR), call the nodes. Without it a mount says "Is the MGS running?"."""
    return build_firewall(spec, names.network, names.lustre_firewall, [source], [("tcp", (PORT,))], mark)


def build_instance(spec: RunSpec, names: Names, mark: Mark) -> Any:
    """lustre_v1.Instance."""
    from google.cloud import lustre_v1

    return lustre_v1.Instance(
        description=mark.description,
        labels=mark.labels,
        filesystem=FILESYSTEM,
        capacity_gib=spec.infra_lustre_gib,
        per_unit_storage_throughput=spec.infra_lustre_throughput,
        network=network_path(spec, names.network),
    )


def ensure_filesystem(google: Google, spec: RunSpec, names: Names, mark: Mark, inventory: Inventory, *, number: str) -> tuple[str, str]:
    """Managed Lustre, reachable from the cluster's network. Returns (IP, filesystem), as a persistent volume wants them.

    Args:
        number: The project's number.

    Raises:
        Stockout: The zone cannot give it.
        Conflict: A name is taken by something else.
    """
    found = compute.ensure_resource(google, compute.ADDRESS, build_range(spec, names, mark), mark)
    inventory.note("address", names.lustre_range, created=found.created)
    peering.ensure_connection(google, number, names.network, names.lustre_range)
    inventory.note("connection", names.network, created=found.created, range=names.lustre_range)
    source = f"{found.resource.address}/{found.resource.prefix_length}"
    rule = compute.ensure_resource(google, compute.FIREWALL, build_port_rule(spec, names, mark, source), mark)
    inventory.note("firewall", names.lustre_firewall, created=rule.created)
    instance = lustre.ensure_instance(google, spec.infra_zone, names.lustre, build_instance(spec, names, mark), mark)
    inventory.note("lustre", names.lustre, place=spec.infra_zone, created=instance.created)
    return _address(instance.resource)


def address_of(google: Google, spec: RunSpec, names: Names) -> tuple[str, str]:
    """(IP, filesystem) of the instance that is there.

    Raises:
        NotFound: There is none.
    """
    instance = lustre.get_instance(google, spec.infra_zone, names.lustre)
    if instance is None:
        raise NotFound(
            f"there is no Lustre instance {names.lustre} in {spec.infra_zone}",
            asked=f"infra_filesystem=lustre, infra_name={spec.infra_name}",
            next_move="run provision_filesystem again",
        )
    return _address(instance)


def _address(instance: Any) -> tuple[str, str]:
    address, _, filesystem = str(instance.mount_point).partition("@tcp:/")
    return address, filesystem
