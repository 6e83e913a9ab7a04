"""Stands a system up on the fakes, as its tasks will."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.fakes.google import GoogleFakes
from tests.gke_specs import RUN_ID, spec_of
from tests.unit.resources.test_inventory import Memory
from tuneline.config.spec import RunSpec
from tuneline.gcp.clients import Google
from tuneline.gcp.compute import Ensured
from tuneline.resources import bucket, clusters, filesystem, networks
from tuneline.resources.inventory import Inventory, Names, mark_of
from tuneline.resources.teardown import Ended, Teardown

NUMBER = "123456789012"
RESERVED = {"standard": "a3-ultragpu-8g", "lustre": "a4-highgpu-8g", "a4x": "a4x-highgpu-4g", "autopilot": "a4-highgpu-8g"}


@dataclass
class Stand:
    """One run of one system."""

    fakes: GoogleFakes
    google: Google
    spec: RunSpec
    records: Memory
    run_id: str = RUN_ID

    @property
    def names(self) -> Names:
        return Names.of(self.spec, self.run_id)

    @property
    def inventory(self) -> Inventory:
        """Read anew, as every task does."""
        return Inventory(self.run_id, self.records, clock=self.fakes.clock)

    def storage(self) -> None:
        mark = mark_of(self.spec, self.run_id, self.fakes.clock.now())
        bucket.ensure_bucket(self.google, self.spec, self.names, mark, self.inventory, number=NUMBER)

    def filesystem(self) -> tuple[str, str] | None:
        if self.spec.infra_filesystem != "lustre":
            return None
        mark = mark_of(self.spec, self.run_id, self.fakes.clock.now())
        return filesystem.ensure_filesystem(self.google, self.spec, self.names, mark, self.inventory, number=NUMBER)

    def access(self) -> None:
        bucket.ensure_access(self.google, self.spec, self.names, self.inventory, number=NUMBER)

    def everything(self) -> None:
        """Each task once, in the order of the graph."""
        self.storage()
        self.network_and_cluster()
        self.filesystem()
        self.access()
        self.gpus()

    def network_and_cluster(self) -> Ensured:
        mark = mark_of(self.spec, self.run_id, self.fakes.clock.now())
        subnetwork = networks.ensure_networks(self.google, self.spec, self.names, mark, self.inventory)
        found = clusters.ensure_cluster(self.google, self.spec, self.names, mark, self.inventory, subnetwork=subnetwork)
        # The fakes name what Kubernetes makes by the cluster's id; the task reads the uid in kube-system/ingress-uid.
        uid = found.resource.id[:8] * 2
        self.inventory.note("cluster", self.names.cluster, place=self.spec.infra_region, created=found.created, uid=uid)
        return found

    def gpus(self) -> Ensured | None:
        mark = mark_of(self.spec, self.run_id, self.fakes.clock.now())
        return clusters.ensure_gpu_pool(self.google, self.spec, self.names, mark, self.inventory)

    def teardown(self, policy: str = "all") -> Ended:
        return Teardown(self.google, self.spec, self.names, self.inventory, NUMBER).run(policy)


def stand(fakes: GoogleFakes, google: Google, system: str, run_id: str = RUN_ID, **changes: Any) -> Stand:
    """A run of the system in the fakes' project, with a reservation of eight nodes for it."""
    machine = RESERVED[system]
    if f"projects/demo/zones/us-central1-b/reservations/{system}" not in fakes.world.resources:
        fakes.capacity.reserve("demo", system, "us-central1-b", machine, 8)
    base = {"infra_project": "demo", "gpu_machine": machine, "gpu_reservation": system, "output_root": "gs://demo-tuneline/grpo"}
    return Stand(fakes, google, spec_of(system, **{**base, **changes}), Memory(), run_id)
