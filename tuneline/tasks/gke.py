"""Where a run is in Google Cloud: its clients, names, marks, records and Kubernetes, all from its parameters.

A task that finds a Site in its context works on GKE; one that finds none works on this computer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tuneline.config.spec import RunSpec
from tuneline.config.store import Store
from tuneline.core.clock import Clock
from tuneline.core.errors import StoreError
from tuneline.gcp import gke
from tuneline.gcp.clients import CONCERNS, Google
from tuneline.gcp.documents import Documents, open_documents
from tuneline.gcp.errors import NotFound
from tuneline.gcp.ownership import Mark
from tuneline.gcp.projects import project_number
from tuneline.resources.inventory import Inventory, Names, mark_of
from tuneline.resources.teardown import Teardown

if TYPE_CHECKING:  # The Kubernetes client takes half a second to load, and tasks on this computer need none.
    from tuneline.kube.api import Api


@dataclass(frozen=True)
class Record:
    """The inventory as a document of the store."""

    documents: Documents
    path: str

    def read(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.documents.read(self.path)
        return found

    def change(self, edit: Callable[[Mapping[str, Any] | None], Mapping[str, Any]]) -> Mapping[str, Any]:
        changed: Mapping[str, Any] = self.documents.change(self.path, edit)
        return changed


class Site:
    """One run's place in Google Cloud, as one task sees it."""

    def __init__(self, spec: RunSpec, run_id: str, clock: Clock, *, google: Google | None = None) -> None:
        self.spec, self.run_id, self.clock = spec, run_id, clock
        self.store = Store(spec.output_root)
        self.google = google or google_of(spec.infra_project, {name: getattr(spec, f"infra_account_{name}") for name in CONCERNS}, clock)
        self.names = Names.of(spec, run_id)

    @cached_property
    def documents(self) -> Documents:
        """The store's documents."""
        return open_documents(self.spec.output_root, self.google)

    @cached_property
    def inventory(self) -> Inventory:
        """What the run created and what it only uses."""
        return Inventory(self.run_id, Record(self.documents, self.store.inventory(self.run_id)), clock=self.clock)

    @cached_property
    def number(self) -> str:
        """The project's number."""
        return project_number(self.google)

    @cached_property
    def mark(self) -> Mark:
        """What marks a resource as this run's: the same in every task and every retry, so that a retry changes no label."""
        return mark_of(self.spec, self.run_id, float(started(self)["started"]))

    def teardown(self) -> Teardown:
        """The end of what the run made."""
        return Teardown(self.google, self.spec, self.names, self.inventory, self.number)

    @cached_property
    def api(self) -> Api:
        """The cluster's API server.

        Raises:
            NotFound: There is no such cluster.
            ClusterUnreachable: No endpoint of it can be used.
        """
        found = self.find_api()
        if found is None:
            raise NotFound(
                f"there is no cluster {self.names.cluster} in {self.spec.infra_region}",
                asked=f"infra_name={self.spec.infra_name} in project {self.spec.infra_project}",
                next_move="run provision_cluster again, or correct infra_name and infra_region",
            )
        return found

    def find_api(self) -> Api | None:
        """The cluster's API server, None where there is no cluster."""
        from tuneline.kube.connect import Endpoint, connect, google_tokens

        cluster = gke.get_cluster(self.google, self.spec.infra_region, self.names.cluster)
        if cluster is None:
            return None
        endpoint = Endpoint(
            dns=cluster.control_plane_endpoints_config.dns_endpoint_config.endpoint,
            ip=cluster.endpoint,
            ca=cluster.master_auth.cluster_ca_certificate,
        )
        return connect(endpoint, google_tokens(self.google.credentials("cluster")), clock=self.clock)


def google_of(project: str, accounts: Mapping[str, str], clock: Clock) -> Google:
    """Clients that act as these accounts (concern -> e-mail; '' for the caller's own)."""
    return Google(project, accounts=accounts, clock=clock)


def begin(site: Site) -> None:
    """Put the run's parameters into the store, before the run makes anything: the exit task reads nothing else.

    Raises:
        StoreError: Another run with this id is there.
    """
    document = {"spec": site.spec.model_dump(), "run": site.run_id, "started": site.clock.now()}
    if not site.documents.create(site.store.spec(site.run_id), document) and started(site)["spec"] != document["spec"]:
        raise StoreError(
            f"run {site.run_id} has begun with other parameters",
            asked=site.store.spec(site.run_id),
            next_move="give the pipeline job another name",
        )


def started(site: Site) -> Mapping[str, Any]:
    """What `begin` wrote.

    Raises:
        StoreError: It is not there.
    """
    found: Mapping[str, Any] | None = site.documents.read(site.store.spec(site.run_id))
    if found is None:
        raise StoreError(
            f"the store knows no run {site.run_id}",
            asked=site.store.spec(site.run_id),
            next_move="run provision_storage first: it begins the run's records",
        )
    return found
