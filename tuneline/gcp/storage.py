"""Buckets: hierarchical, uniformly accessed, and who may read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.gcp.calls import call, ensure, find, pauses
from tuneline.gcp.clients import REQUEST_SECONDS, Google
from tuneline.gcp.compute import NETWORK_SECONDS, Ensured
from tuneline.gcp.errors import Changed, Conflict, Permission
from tuneline.gcp.ownership import MANAGED, MANAGER, Mark, owner

_ONCE: dict[str, Any] = {"retry": None, "timeout": REQUEST_SECONDS}


def principal(number: str, project: str, namespace: str, account: str) -> str:
    """The IAM principal of a Kubernetes service account; its identity pool exists once the project has had such a cluster."""
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
    return f"principal://iam.googleapis.com/{pool}/subject/ns/{namespace}/sa/{account}"


def get_bucket(google: Google, name: str, *, deadline: Deadline | None = None) -> Any | None:
    """google.cloud.storage.Bucket, None where there is none.

    Raises:
        Permission: The bucket is there but its owner shows it to nobody of ours: names are global.
    """
    until = deadline or Deadline.after(google.clock, NETWORK_SECONDS)
    return find(google, f"read bucket {name}", lambda: google.storage.get_bucket(name, **_ONCE), until)


def ensure_bucket(google: Google, name: str, location: str, mark: Mark, *, number: str, labels: Mapping[str, str] | None = None) -> Ensured:
    """A bucket of this project with hierarchical namespace and uniform access, created or adopted.

    Args:
        number: The project's number: a bucket of that name may be another project's.

    Raises:
        Conflict: The name is another project's, or location, hierarchy or access differ (none can be changed later).
    """
    until, what = Deadline.after(google.clock, NETWORK_SECONDS), f"bucket {name}"

    def create(_: int) -> None:
        bucket = google.storage.bucket(name)
        bucket.hierarchical_namespace_enabled = True
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.iam_configuration.public_access_prevention = "enforced"
        bucket.labels = {**mark.labels, **(labels or {})}
        call(google, f"create {what}", lambda: google.storage.create_bucket(bucket, location=location, **_ONCE), until)

    try:
        found = ensure(
            google, what, get=lambda: get_bucket(google, name, deadline=until), create=create, settle=lambda bucket: bucket, deadline=until
        )
    except Permission as error:
        raise Conflict(
            f"{what} cannot be read: the name may be another project's",
            asked=f"gs://{name} in {google.project}",
            found=error.found,
            next_move="choose another bucket in output_root, or grant the account storage.buckets.get on this one",
        ) from error
    faults = [
        f"{field}: asked {asked}, found {is_}"
        for field, asked, is_ in (
            ("project number", number, str(found.project_number)),
            ("location", location.upper(), str(found.location).upper()),
            ("hierarchical namespace", True, bool(found.hierarchical_namespace_enabled)),
            ("uniform bucket-level access", True, bool(found.iam_configuration.uniform_bucket_level_access_enabled)),
            (MANAGED, MANAGER, (found.labels or {}).get(MANAGED, MANAGER)),
        )
        if asked != is_
    ]
    if faults:
        raise Conflict(
            f"{what} is there but cannot be used: {'; '.join(faults)}",
            asked=f"gs://{name} in {google.project}, {location}",
            found=f"made by {owner(found)}",
            next_move="choose another bucket in output_root",
        )
    return Ensured(name, mark.made(found), found)


def ensure_binding(google: Google, name: str, role: str, member: str) -> bool:
    """The member has the role on the bucket. Returns True if this call added it.

    Raises:
        Changed: The policy was changed by others again and again until the deadline.
    """
    return _change(google, name, role, member, wanted=True)


def delete_binding(google: Google, name: str, role: str, member: str) -> bool:
    """The member has the role no more. Returns True if this call removed it."""
    return get_bucket(google, name) is not None and _change(google, name, role, member, wanted=False)


def _change(google: Google, name: str, role: str, member: str, *, wanted: bool) -> bool:
    until, what = Deadline.after(google.clock, NETWORK_SECONDS), f"IAM policy of bucket {name}"
    bucket, changed, pause = google.storage.bucket(name), False, pauses()
    while True:
        policy = call(google, f"read {what}", lambda: bucket.get_iam_policy(requested_policy_version=3, **_ONCE), until)
        if _has(policy, role, member) == wanted:
            return changed
        policy.version = 3
        if wanted:
            policy.bindings.append({"role": role, "members": {member}})
        else:
            for binding in policy.bindings:
                if binding["role"] == role and not binding.get("condition"):
                    binding["members"] = set(binding["members"]) - {member}
            policy.bindings = [binding for binding in policy.bindings if binding["members"]]
        try:
            # The policy carries its etag: somebody else's change in between is refused, and then both are read anew.
            call(google, f"write {what}", lambda policy=policy: bucket.set_iam_policy(policy, **_ONCE), Deadline.after(google.clock, 0))  # type: ignore[misc]
            changed = True
        except (Changed, Conflict):
            if until.passed:
                raise
            google.clock.sleep(next(pause))


def _has(policy: Any, role: str, member: str) -> bool:
    return any(binding["role"] == role and member in binding["members"] and not binding.get("condition") for binding in policy.bindings)
