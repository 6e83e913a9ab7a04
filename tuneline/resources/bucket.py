"""The bucket of models, data, checkpoints and runs, and the access of the run's pods to it."""

from __future__ import annotations

from tuneline.config.spec import RunSpec
from tuneline.gcp import storage
from tuneline.gcp.clients import Google
from tuneline.gcp.ownership import Mark
from tuneline.resources.inventory import Inventory, Names

#: Objects and folders, but neither the bucket nor its policy.
ROLE = "roles/storage.objectUser"


def member_of(spec: RunSpec, number: str) -> str:
    """The IAM principal of the run's pods."""
    return storage.principal(number, spec.infra_project, spec.infra_namespace, spec.infra_service_account)


def ensure_bucket(google: Google, spec: RunSpec, names: Names, mark: Mark, inventory: Inventory, *, number: str) -> None:
    """The bucket of output_root is there and is the project's.

    Raises:
        Conflict: The name is another project's, or the bucket lies or works otherwise.
    """
    found = storage.ensure_bucket(google, names.bucket, spec.infra_region, mark, number=number)
    inventory.note("bucket", names.bucket, place=spec.infra_region, created=found.created)


def ensure_access(google: Google, spec: RunSpec, names: Names, inventory: Inventory, *, number: str) -> None:
    """The run's pods may read and write objects. Only after the cluster: its identity pool does not exist before it."""
    member = member_of(spec, number)
    added = storage.ensure_binding(google, names.bucket, ROLE, member)
    inventory.note("binding", member, place=names.bucket, created=added, role=ROLE)
