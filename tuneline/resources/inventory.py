"""What is ours: names, marks, and the record of what a run created and what it only uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from tuneline.config.spec import RunSpec
from tuneline.core.clock import SYSTEM, Clock, utc
from tuneline.gcp.ownership import MANAGED, MANAGER, RUN, Mark, marks

#: Time beyond training that a run may need: provisioning, staging, conversion.
MARGIN_HOURS = 24.0

#: Kind and name.
Key = tuple[str, str]


@dataclass(frozen=True)
class Names:
    """Every name of a run: what runs share derives from infra_name, what is the run's own from its run_id.

    Attributes:
        own_network: Whether the cluster's network is one that Tuneline makes.
        pool: The run's GPU node pool; raycluster: its RayCluster.
    """

    cluster: str
    network: str
    own_network: bool
    subnetwork: str
    gvnic: str
    gvnic_subnetwork: str
    gvnic_firewall: str
    roce: str
    roce_subnetworks: tuple[str, ...]
    lustre: str
    lustre_range: str
    lustre_firewall: str
    policy: str
    bucket: str
    pool: str
    raycluster: str

    @classmethod
    def of(cls, spec: RunSpec, run_id: str) -> Names:
        base = spec.infra_name
        return cls(
            cluster=base,
            network=spec.infra_network,
            own_network=spec.infra_network.startswith(base),
            subnetwork=f"{spec.infra_network}-nodes",
            gvnic=f"{base}-gvnic-net",
            gvnic_subnetwork=f"{base}-gvnic-sub",
            gvnic_firewall=f"{base}-gvnic-internal",
            roce=f"{base}-rdma-net",
            roce_subnetworks=tuple(f"{base}-rdma-sub-{number}" for number in range(8)),
            lustre=f"{base}-lustre",
            lustre_range=f"{base}-lustre-range",
            lustre_firewall=f"{base}-lustre-988",
            policy=f"{base}-1x72",
            bucket=spec.output_root.removeprefix("gs://").split("/", 1)[0],
            pool=f"{run_id}-gpu",
            raycluster=run_id,
        )


def mark_of(spec: RunSpec, run_id: str, now: float) -> Mark:
    """The run's mark, with a time after which nobody should need what it made.

    Args:
        now: Seconds since the epoch.
    """
    end = utc(now + (spec.train_deadline_hours + MARGIN_HOURS) * 3600)
    return Mark(run_id, end[:16].replace(":", "-").lower() + "z")


def is_ours(resource: Any, run_id: str = "") -> bool:
    """Whether Tuneline made the resource; with `run_id`, whether that run did."""
    found = marks(resource)
    return found.get(MANAGED) == MANAGER and (not run_id or found.get(RUN) == run_id)


class Records(Protocol):
    """Where the inventory lies: one JSON document of a run in the store, a folder or a bucket."""

    def read(self) -> Mapping[str, Any] | None:
        """The document; None where there is none yet."""

    def change(self, edit: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Put there, whole, what `edit` makes of what is there, and return it; tasks that run side by side lose nothing of each other's."""


@dataclass(frozen=True)
class Entry:
    """One resource that the run relies on.

    Attributes:
        kind: cluster | pool | network | subnetwork | firewall | address | policy | lustre | connection | bucket | binding.
        place: Region or zone; '' for global.
        created: True if this run made it; False if it was there.
        facts: What deletion needs once the resource is gone, such as a cluster's id.
    """

    kind: str
    name: str
    place: str
    created: bool
    at: str
    facts: Mapping[str, str] = field(default_factory=dict)


class Inventory:
    """The record of a run, written through at every change; other tasks of the run write it too."""

    def __init__(self, run_id: str, records: Records, *, clock: Clock = SYSTEM) -> None:
        self.run_id = run_id
        self._records, self._clock = records, clock
        self._entries = _entries(records.read())

    def note(self, kind: str, name: str, *, place: str = "", created: bool, **facts: str) -> None:
        """Record a resource. What this run once created stays created, although a retry finds it there; facts add up."""

        def edit(entries: dict[Key, Entry]) -> None:
            known = entries.get((kind, name))
            ever = created or (known is not None and known.created)
            entry = Entry(kind, name, place, ever, utc(self._clock.now()), {**(known.facts if known else {}), **facts})
            if known is None or replace(entry, at=known.at) != known:
                entries[kind, name] = entry

        self._change(edit)

    def forget(self, kind: str, name: str) -> None:
        """Take a resource out: it is gone."""
        if (kind, name) in self._entries:
            self._change(lambda entries: entries.pop((kind, name), None))

    def find(self, kind: str, name: str) -> Entry | None:
        """What is recorded of a resource."""
        return self._entries.get((kind, name))

    @property
    def entries(self) -> list[Entry]:
        """Every entry, in the order of their recording."""
        return list(self._entries.values())

    def _change(self, edit: Callable[[dict[Key, Entry]], object]) -> None:
        def whole(document: Mapping[str, Any] | None) -> Mapping[str, Any]:
            entries = _entries(document)
            edit(entries)
            return {"run": self.run_id, "entries": [asdict(entry) for entry in entries.values()]}

        self._entries = _entries(self._records.change(whole))


def _entries(document: Mapping[str, Any] | None) -> dict[Key, Entry]:
    return {(item["kind"], item["name"]): Entry(**item) for item in (document or {}).get("entries", ())}
