"""Rules of runs on Google Kubernetes Engine: places, names, machines, how they are bought, Lustre's steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuneline.config.spec import RunSpec

Fault = tuple[tuple[str, ...], str]

A4X = "a4x-highgpu-4g"
#: Nodes of one NVLink domain: 72 GPUs, 4 a node. A larger pool cannot be placed by a 1x72 workload policy.
A4X_NODES = 18
#: GiB by which capacity grows, and the least there is, for each throughput in MB/s per TiB.
LUSTRE_STEPS = {125: 72_000, 250: 36_000, 500: 18_000, 1000: 9_000}
#: A GKE cluster's name; every name that derives from infra_name is at most 23 characters longer and may have 63.
LONGEST_NAME = 40

_NAME = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
_KUBERNETES_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]")
_BUCKET = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(?:/[^/]+)*")
_RESERVATION = re.compile(
    r"(?:projects/[a-z][a-z0-9:.-]+/reservations/)?[a-z][-a-z0-9]{0,62}(?:/reservationBlocks/[-a-z0-9]+(?:/reservationSubBlocks/[-a-z0-9]+)?)?"
)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def check(spec: RunSpec) -> Iterator[Fault]:
    """Every fault of a GKE run that no single parameter shows."""
    yield from _places(spec)
    yield from _names(spec)
    yield from _machines(spec)
    yield from _provisioning(spec)
    yield from _storage(spec)


def _places(spec: RunSpec) -> Iterator[Fault]:
    for name in ("infra_project", "infra_region", "infra_zone"):
        if not getattr(spec, name):
            yield ((name, "infra_platform"), f"{name}='': infra_platform=gke needs it")
    zones = [("infra_zone", spec.infra_zone)] if spec.infra_zone else []
    zones += [("infra_cpu_zones", zone.strip()) for zone in spec.infra_cpu_zones.split(",") if zone.strip()]
    for name, zone in zones:
        if not _ZONE.fullmatch(zone):
            yield ((name,), f"{name}={zone!r}: is no zone; a zone is like us-central1-a")
        elif spec.infra_region and zone.rsplit("-", 1)[0] != spec.infra_region:
            yield ((name, "infra_region"), f"{name}={zone!r}: is in {zone.rsplit('-', 1)[0]}, not in infra_region={spec.infra_region}")


def _names(spec: RunSpec) -> Iterator[Fault]:
    for name, pattern, longest, meaning in (
        ("infra_name", _NAME, LONGEST_NAME, "start with a-z"),
        ("infra_network", _NAME, 63, "start with a-z"),
        ("infra_namespace", _KUBERNETES_NAME, 63, "start with a-z or 0-9"),
        ("infra_service_account", _KUBERNETES_NAME, 63, "start with a-z or 0-9"),
    ):
        value = getattr(spec, name)
        if not pattern.fullmatch(value) or len(value) > longest:
            yield (
                (name,),
                f"{name}={value!r}: must {meaning}, go on with a-z, 0-9 or '-', not end with '-', at most {longest} characters",
            )
    for concern in ("network", "cluster", "storage", "secrets"):
        value = getattr(spec, f"infra_account_{concern}")
        if value and not _EMAIL.fullmatch(value):
            yield ((f"infra_account_{concern}",), f"infra_account_{concern}={value!r}: must be a service account's e-mail, or ''")


def _machines(spec: RunSpec) -> Iterator[Fault]:
    kind, machine = spec.infra_cluster_kind, spec.gpu_machine
    if (kind == "a4x") != (machine == A4X):
        wanted = f"gpu_machine={A4X}" if kind == "a4x" else "infra_cluster_kind=a4x"
        yield (
            ("infra_cluster_kind", "gpu_machine"),
            f"infra_cluster_kind={kind} and gpu_machine={machine!r} do not go together: choose {wanted}, or another of both",
        )
    if machine == A4X and spec.gpu_nodes > A4X_NODES:
        yield (
            ("gpu_nodes", "gpu_machine"),
            f"gpu_nodes={spec.gpu_nodes}: one NVLink domain has {A4X_NODES} {A4X} nodes (72 GPUs); choose 1 to {A4X_NODES}",
        )


def _provisioning(spec: RunSpec) -> Iterator[Fault]:
    how, reservation = spec.gpu_provisioning, spec.gpu_reservation
    both = ("gpu_provisioning", "gpu_reservation")
    if reservation and how != "reservation":
        yield (
            both,
            f"gpu_reservation={reservation!r}: gpu_provisioning={how} uses none; leave it '', or choose gpu_provisioning=reservation",
        )
    if reservation and not _RESERVATION.fullmatch(reservation):
        yield (
            ("gpu_reservation",),
            f"gpu_reservation={reservation!r}: must be NAME or projects/P/reservations/NAME, with /reservationBlocks/B to pin a block",
        )
    if not spec.gpu_machine:
        return
    if how == "reservation" and not reservation:
        yield (both, "gpu_reservation='': gpu_provisioning=reservation needs its name; or choose spot, flex-start or on-demand")
    if spec.gpu_machine == A4X and how != "reservation":
        yield (
            ("gpu_provisioning", "gpu_machine"),
            f"gpu_provisioning={how}: Google gives {A4X} only by reservation; choose gpu_provisioning=reservation",
        )


def _storage(spec: RunSpec) -> Iterator[Fault]:
    root = spec.output_root
    found = _BUCKET.fullmatch(root)
    if not found:
        yield (("output_root", "infra_platform"), f"output_root={root!r}: must be gs://BUCKET or gs://BUCKET/FOLDER on infra_platform=gke")
    elif found["bucket"].startswith("goog") or "google" in found["bucket"]:
        yield (("output_root",), f"output_root={root!r}: a bucket's name may not start with goog or hold google")
    if spec.infra_filesystem == "lustre":
        step = LUSTRE_STEPS[spec.infra_lustre_throughput]
        size = spec.infra_lustre_gib
        if size % step:
            below = size - size % step
            choices = " or ".join(str(value) for value in (below, below + step) if value)
            yield (
                ("infra_lustre_gib", "infra_lustre_throughput"),
                f"infra_lustre_gib={size}: at {spec.infra_lustre_throughput} MB/s per TiB it comes in steps of {step} "
                f"({size} = {size // step} x {step} + {size % step}); choose {choices}",
            )
