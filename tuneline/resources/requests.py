"""The whole set of requests of a run, rendered without any client: what `plan` shows, what the golden files hold."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tuneline.config.spec import RunSpec
from tuneline.gcp.compare import as_json
from tuneline.gcp.ownership import Mark
from tuneline.gcp.peering import PEERING, SERVICE, network_of
from tuneline.resources import bucket, clusters, filesystem, networks
from tuneline.resources.inventory import Names, mark_of

#: The tutorials switch on the first three.
SERVICES = ("container", "storage", "compute", "cloudresourcemanager", "iam", "iamcredentials", "secretmanager", "serviceusage")
LUSTRE_SERVICES = ("lustre", "servicenetworking")
#: What stands in a rendered request for a value that only Google's answer brings.
RANGE = f"<the range that {{name}} got>/{filesystem.PREFIX_LENGTH}"


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        method: As the API's reference calls it, such as `networks.insert`.
        name: The resource that it makes or changes.
        body: As sent: JSON names, enums by name.
    """

    service: str
    method: str
    name: str
    body: dict[str, Any]


def services_of(spec: RunSpec) -> list[str]:
    """The APIs that the run needs, by their full names."""
    names = (*SERVICES, *(LUSTRE_SERVICES if spec.infra_filesystem == "lustre" else ()))
    return [f"{name}.googleapis.com" for name in names]


def build_requests(spec: RunSpec, run_id: str, project_number: str, *, now: float = 0.0) -> list[Request]:
    """Every request that makes the run's infrastructure in an empty project, in order.

    Args:
        now: Seconds since the epoch; `tuneline-expires` counts from it.
    """
    names, mark = Names.of(spec, run_id), mark_of(spec, run_id, now)
    project, region = f"projects/{spec.infra_project}", spec.infra_region
    made = networks.build_networks(spec, names, mark)
    requests = [Request("serviceusage", "services.batchEnable", f"projects/{project_number}", {"serviceIds": services_of(spec)})]
    requests += [Request("compute", "networks.insert", f"{project}/global/networks/{body.name}", as_json(body)) for body in made.networks]
    requests += [
        Request("compute", "subnetworks.insert", f"{project}/regions/{region}/subnetworks/{body.name}", as_json(body))
        for body in made.subnetworks
    ]
    requests += [
        Request("compute", "firewalls.insert", f"{project}/global/firewalls/{body.name}", as_json(body)) for body in made.firewalls
    ]
    requests.append(_bucket(spec, names, mark))
    if spec.infra_filesystem == "lustre":
        requests += _filesystem(spec, names, mark, project_number)
    # A network that is not ours is read first, and its one subnet taken; in an auto-mode network, as `default` is, GKE takes it.
    subnetwork = names.subnetwork if names.own_network else ""
    cluster = clusters.build_cluster(spec, names, mark, subnetwork=subnetwork)
    place = f"{project}/locations/{region}/clusters"
    requests.append(Request("container", "clusters.create", f"{place}/{names.cluster}", {"cluster": as_json(cluster)}))
    requests.append(
        Request(
            "storage",
            "buckets.setIamPolicy",
            f"buckets/{names.bucket}",
            {"bindings": [{"role": bucket.ROLE, "members": [bucket.member_of(spec, project_number)]}]},
        )
    )
    if clusters.has_gpu_pool(spec):
        if spec.infra_cluster_kind == "a4x":
            policy = clusters.build_policy(spec, names, mark)
            where = f"{project}/regions/{region}/resourcePolicies/{policy.name}"
            requests.append(Request("compute", "resourcePolicies.insert", where, as_json(policy)))
        pool = clusters.build_gpu_pool(spec, names, mark)
        where = f"{place}/{names.cluster}/nodePools/{names.pool}"
        requests.append(Request("container", "nodePools.create", where, {"nodePool": as_json(pool)}))
    return requests


def _bucket(spec: RunSpec, names: Names, mark: Mark) -> Request:
    body = {
        "name": names.bucket,
        "location": spec.infra_region,
        "labels": mark.labels,
        "hierarchicalNamespace": {"enabled": True},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    }
    return Request("storage", "buckets.insert", f"buckets/{names.bucket}", body)


def _filesystem(spec: RunSpec, names: Names, mark: Mark, number: str) -> list[Request]:
    project = f"projects/{spec.infra_project}"
    source = RANGE.format(name=names.lustre_range)
    connection = {"network": network_of(number, names.network), "reservedPeeringRanges": [names.lustre_range]}
    return [
        Request(
            "compute",
            "globalAddresses.insert",
            f"{project}/global/addresses/{names.lustre_range}",
            as_json(filesystem.build_range(spec, names, mark)),
        ),
        Request("servicenetworking", "services.connections.create", f"{SERVICE}/connections/{PEERING}", connection),
        Request(
            "compute",
            "firewalls.insert",
            f"{project}/global/firewalls/{names.lustre_firewall}",
            as_json(filesystem.build_port_rule(spec, names, mark, source)),
        ),
        Request(
            "lustre",
            "projects.locations.instances.create",
            f"{project}/locations/{spec.infra_zone}/instances/{names.lustre}",
            as_json(filesystem.build_instance(spec, names, mark)),
        ),
    ]


def as_rows(requests: list[Request]) -> list[dict[str, Any]]:
    """Requests as plain data, for YAML; bodies with sorted keys, for a map's own order is anything."""
    return [{**asdict(request), "body": json.loads(json.dumps(request.body, sort_keys=True))} for request in requests]
