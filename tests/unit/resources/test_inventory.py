"""Names, marks and the record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from tests.fakes.clock import FakeClock
from tests.gke_specs import RUN_ID, spec_of
from tuneline.resources.inventory import Inventory, Names, is_ours, mark_of


class Memory:
    """Records in memory."""

    def __init__(self) -> None:
        self.document: Mapping[str, Any] | None = None

    def read(self) -> Mapping[str, Any] | None:
        return self.document

    def change(self, edit: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]) -> Mapping[str, Any]:
        self.document = edit(self.document)
        return self.document


def test_every_name_fits_where_the_longest_infra_name_is_used() -> None:
    names = Names.of(spec_of("lustre", infra_name="t" * 40, infra_network="t" * 40), RUN_ID)
    flat = [value for value in asdict(names).values() if isinstance(value, str)] + list(names.roce_subnetworks)
    assert [name for name in flat if len(name) > 63] == []
    assert len(names.cluster) <= 40
    assert len(names.pool) <= 40
    assert len(names.raycluster) <= 53


def test_shared_names_come_from_infra_name_and_own_ones_from_the_run() -> None:
    spec = spec_of("standard")
    one, two = Names.of(spec, "tlaaaaaaaaaa"), Names.of(spec, "tlbbbbbbbbbb")
    differing = {name for name, value in asdict(one).items() if asdict(two)[name] != value}
    assert differing == {"pool", "raycluster"}
    assert one.bucket == "acme-rl-tuneline"


def test_only_a_network_named_after_us_is_made() -> None:
    assert not Names.of(spec_of("standard"), RUN_ID).own_network
    assert Names.of(spec_of("standard", infra_network="tuneline-net"), RUN_ID).own_network


def test_the_mark_is_a_label_and_outlives_training() -> None:
    mark = mark_of(spec_of("standard", train_deadline_hours=48), RUN_ID, 0)
    assert mark.expires == "1970-01-04t00-00z"
    assert re.fullmatch(r"[a-z0-9_-]{1,63}", mark.expires)


def test_is_ours() -> None:
    labels = mark_of(spec_of("standard"), RUN_ID, 0).labels
    assert is_ours({"labels": labels})
    assert is_ours({"labels": labels}, RUN_ID)
    assert not is_ours({"labels": labels}, "tlotherother")
    assert not is_ours({"labels": {"managed-by": "terraform", "tuneline-run": RUN_ID}}, RUN_ID)
    assert not is_ours({})


def test_the_record_survives_and_what_was_created_stays_created() -> None:
    records, clock = Memory(), FakeClock()
    first = Inventory(RUN_ID, records, clock=clock)
    first.note("cluster", "tuneline", place="us-central1", created=True, id="0a1b2c3d")
    retried = Inventory(RUN_ID, records, clock=clock)
    retried.note("cluster", "tuneline", place="us-central1", created=False, uid="u")
    entry = Inventory(RUN_ID, records, clock=clock).find("cluster", "tuneline")
    assert entry is not None
    assert entry.created
    assert entry.facts == {"id": "0a1b2c3d", "uid": "u"}
    retried.forget("cluster", "tuneline")
    assert Inventory(RUN_ID, records, clock=clock).entries == []


def test_tasks_side_by_side_keep_each_others_entries() -> None:
    records, clock = Memory(), FakeClock()
    network, storage = Inventory(RUN_ID, records, clock=clock), Inventory(RUN_ID, records, clock=clock)
    network.note("network", "tuneline-net", created=True)
    storage.note("bucket", "acme", created=False)
    network.note("network", "tuneline-rdma-net", created=True)
    assert [entry.name for entry in Inventory(RUN_ID, records, clock=clock).entries] == ["tuneline-net", "acme", "tuneline-rdma-net"]
    storage.forget("network", "tuneline-net")
    network.forget("network", "tuneline-net")
    assert [entry.name for entry in network.entries] == ["acme", "tuneline-rdma-net"]
