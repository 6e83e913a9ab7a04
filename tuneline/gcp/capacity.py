"""Whether there are machines: RoCE zones, reservations, and the early signs that a node pool will never get its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import PLAIN, call, find, wait
from tuneline.gcp.clients import Google
from tuneline.gcp.compute import NETWORK_SECONDS
from tuneline.gcp.errors import GoogleError, NotFound, Quota, Refused, ReservationMismatch, Stockout, classify
from tuneline.gcp.faults import Fault

#: How long machines may be refused before it is called a stockout: GKE itself would go on for 35 minutes.
STOCKOUT_SECONDS = 60.0


def _soon(google: Google) -> Deadline:
    return Deadline.after(google.clock, NETWORK_SECONDS)


def check_roce_profile(google: Google, zone: str) -> str:
    """The name of the zone's RoCE network profile.

    Raises:
        NotFound: The zone has no RoCE; lists the zones that have.
    """
    name = f"{zone}-vpc-roce"
    until = _soon(google)
    client = google.compute("NetworkProfiles")
    try:
        call(google, f"read networkProfiles/{name}", lambda: client.get(project=google.project, network_profile=name, **PLAIN), until)
    except NotFound as error:
        profiles = call(google, "list networkProfiles", lambda: list(client.list(project=google.project, **PLAIN)), until)
        zones = sorted(profile.name.removesuffix("-vpc-roce") for profile in profiles if profile.name.endswith("-vpc-roce"))
        raise NotFound(
            f"zone {zone} has no RoCE network profile, so its GPU nodes cannot do RDMA",
            asked=f"networkProfiles/{name}",
            found="no such profile",
            choices=zones,
            next_move="set infra_zone to a zone that has one",
        ) from error
    return name


def check_reservation(google: Google, reservation: str, zone: str, machine: str, nodes: int) -> None:
    """A specific reservation fits: its zone, state, machine type and free count.

    Args:
        reservation: NAME or projects/P/reservations/NAME, with /reservationBlocks/B where a block is pinned.

    Raises:
        ReservationMismatch: Names both values.
    """
    parts = reservation.split("/")
    owner = parts[1] if parts[0] == "projects" else google.project
    name = parts[3] if parts[0] == "projects" else parts[0]
    until, client = _soon(google), google.compute("Reservations")

    def mismatch(asked: str, is_: str) -> ReservationMismatch:
        return ReservationMismatch(
            f"reservation {name} does not fit: asked {asked}, found {is_}",
            asked=asked,
            found=is_,
            next_move="correct gpu_reservation, infra_zone, gpu_machine or gpu_nodes",
        )

    try:
        found = call(google, f"read reservations/{name}", lambda: client.get(project=owner, zone=zone, reservation=name, **PLAIN), until)
    except (NotFound, ReservationMismatch) as error:
        raise mismatch(f"reservation {name} of project {owner} in zone {zone}", "no such reservation there") from error
    specific = found.specific_reservation
    if specific.instance_properties.machine_type != machine:
        raise mismatch(f"gpu_machine={machine}", specific.instance_properties.machine_type)
    if found.status and found.status != "READY":
        raise mismatch("status READY", str(found.status))
    if not found.specific_reservation_required:
        raise mismatch("a reservation that must be named (specific_reservation_required)", "one that any instance consumes")
    free = specific.count - specific.in_use_count
    if free < nodes:
        raise mismatch(f"gpu_nodes={nodes}", f"{free} free of {specific.count}")


def group_errors(google: Google, url: str) -> Iterable[Any]:
    """compute_v1.InstanceManagedByIgmError of an instance group manager, given its URL."""
    zone, name = group_of(url)
    client, until = google.compute("InstanceGroupManagers"), _soon(google)

    def send() -> list[Any]:
        return list(client.list_errors(project=google.project, zone=zone, instance_group_manager=name, **PLAIN))

    return find(google, f"read errors of {name}", send, until) or ()


def group_of(url: str) -> tuple[str, str]:
    """(zone, name) in the URL of a zonal instance group or its manager.

    Raises:
        Refused: It is no such URL.
    """
    parts = url.split("/")
    if "zones" not in parts:
        raise Refused(f"{url!r} is no zonal instance group", next_move="report this: GKE's node pools have zonal groups")
    return parts[parts.index("zones") + 1], parts[-1]


def read_group(google: Google, url: str, deadline: Deadline) -> Any | None:
    """compute_v1.InstanceGroupManager, None where it is gone."""
    zone, name = group_of(url)
    client = google.compute("InstanceGroupManagers")
    return find(
        google,
        f"read instanceGroupManagers/{name}",
        lambda: client.get(project=google.project, zone=zone, instance_group_manager=name, **PLAIN),
        deadline,
    )


def wait_for_no_groups(google: Google, urls: Sequence[str], deadline: Deadline) -> None:
    """Wait until these instance groups are gone: nodes may outlive their pool's operation."""
    wait(
        google,
        "wait for node instance groups to go",
        lambda: [url for url in urls if read_group(google, url, deadline) is not None],
        lambda left: not left,
        deadline,
        poll=10.0,
        state=", ".join,
    )


class PoolWatch:
    """Watches a pool that is to get machines, and raises as soon as it is clear that it will not.

    GKE reports a stockout after 35 minutes; its instance groups and the pool's conditions tell of it at once. An error that persists for
    `STOCKOUT_SECONDS` while the pool has fewer nodes than wanted is taken for the truth; a quota error at once, since waiting cannot help.
    """

    def __init__(self, google: Google, read: Callable[[], Any]) -> None:
        """`read` returns the container_v1.NodePool, or None."""
        self._google, self._read = google, read
        self._first: float | None = None
        self._begun = google.clock.now()

    def check(self) -> None:
        """Look once.

        Raises:
            Stockout, Quota, ReservationMismatch, Permission: What the instance groups or the conditions say.
        """
        pool = self._read()
        if pool is None:
            return
        errors = list(self._errors(pool))
        now = self._google.clock.now()
        if not errors:
            self._first = None
            return
        self._first = now if self._first is None else self._first
        lasting = [error for error in errors if not isinstance(error, Stockout)]
        if lasting or now - self._first >= STOCKOUT_SECONDS:
            raise (lasting or errors)[0]

    def _errors(self, pool: Any) -> Iterable[GoogleError]:
        what = f"get machines for node pool {pool.name}"
        for condition in pool.conditions:
            error = classify(Fault(0, condition.message, (condition.code.name,)), what)
            if isinstance(error, Stockout | Quota):
                yield error
        for url in pool.instance_group_urls:
            told = [found for found in group_errors(self._google, url) if _seconds(found.timestamp) >= self._begun - 1]
            if not told or _complete(read_group(self._google, url, _soon(self._google))):
                continue
            for found in told:
                error = classify(Fault(0, found.error.message or found.error.code, (found.error.code,)), what)
                if isinstance(error, Stockout | Quota | ReservationMismatch):
                    yield error


def _complete(group: Any | None) -> bool:
    """Every instance that the group should have is there and left in peace: what it tells of is past."""
    return group is not None and group.target_size > 0 and group.current_actions.none >= group.target_size


def _seconds(timestamp: str) -> float:
    """RFC 3339 as seconds since the epoch; what cannot be read counts as now."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return float("inf")
