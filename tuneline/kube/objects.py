"""Objects of a cluster: apply and read back, get, list, delete until gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuneline.core.clock import Deadline
from tuneline.core.log import get_logger
from tuneline.kube.api import APPLY, MERGE, Api, ApiError, Ref, conflict
from tuneline.kube.compare import differences
from tuneline.kube.errors import ApplyConflict, DeleteStuck, KindMissing, KubeError, ReadBackMismatch

_log = get_logger("kube")

FIELD_MANAGER = "tuneline"
OWNER_LABEL = ("managed-by", "tuneline")
RUN_LABEL = "tuneline-run"
#: What a run may have in a cluster, in the order in which it goes.
RUN_KINDS = (
    ("ray.io/v1", "RayJob"),
    ("ray.io/v1", "RayCluster"),
    ("v1", "Pod"),
    ("resource.nvidia.com/v1beta1", "ComputeDomain"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"),
    ("resource.k8s.io/v1beta1", "ResourceClaimTemplate"),
    ("cloud.google.com/v1", "ComputeClass"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "PersistentVolume"),
)
#: How long controllers get to finish a deletion before their finalizers are taken away.
FINALIZER_GRACE_SECONDS = 300.0
_POLL_SECONDS = 2.0

Object = dict[str, Any]


@dataclass(frozen=True)
class Applied:
    """What became of one apply.

    Attributes:
        body: The object as the cluster holds it.
        created: This call made it.
        adopted: It was there, is not ours and already says what we want; it was left alone and is never deleted by us.
    """

    body: Object
    created: bool = False
    adopted: bool = False


def get(api: Api, ref: Ref) -> Object | None:
    """The object, or None where it, or its kind, is not there."""
    try:
        found: Object = api.call("GET", api.path(ref), about=f"get {ref}")
    except KindMissing:
        return None
    except ApiError as error:
        if error.status == 404:
            return None
        raise KubeError(error.message, asked=f"get {ref}") from error
    return found


def list_(api: Api, api_version: str, kind: str, *, namespace: str = "", labels: Mapping[str, str] | None = None) -> list[Object]:
    """Every object of a kind in one namespace (or all) whose labels match; [] where the cluster does not serve the kind."""
    query = {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())} if labels else {}
    found: list[Object] = []
    token = ""
    try:
        path = api.collection(api_version, kind, namespace)
        while True:
            page = api.call("GET", path, query={**query, "limit": "500", **({"continue": token} if token else {})}, about=f"list {kind}")
            found += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                break
    except KindMissing:
        return []
    except ApiError as error:
        if error.status == 404:
            return []
        if error.status == 410:  # the list changed too much between two pages
            return list_(api, api_version, kind, namespace=namespace, labels=labels)
        raise KubeError(error.message, asked=f"list {kind}") from error
    for item in found:  # items of a list do not say what they are
        item.setdefault("apiVersion", api_version)
        item.setdefault("kind", kind)
    return found


def apply_(api: Api, body: Mapping[str, Any]) -> Applied:
    """Make the cluster hold `body`, by server-side apply, and read it back.

    An object that is there and not ours is adopted if it already says all that we want, less labels and annotations; otherwise nothing
    is changed. Fields of our own objects that somebody else has taken over are taken back.

    Raises:
        ApplyConflict: The name is taken by another owner's object that says something else.
        ManifestRefused: A field or value that the server does not allow.
        KindMissing: The cluster does not serve the kind.
        ReadBackMismatch: The server dropped or changed a field.
    """
    ref = Ref.of(body)
    present = get(api, ref)
    if present is not None and not _is_ours(present, body):
        wrong = differences(_without_marks(body), present)
        if wrong:
            raise ApplyConflict(
                f"{ref} is there already and is not ours",
                asked="; ".join(wrong[:5]),
                found=f"labels {present['metadata'].get('labels', {})}",
                next_move="remove it, or choose another name or namespace",
            )
        return Applied(present, adopted=True)
    query = {"fieldManager": FIELD_MANAGER, "force": "false", "fieldValidation": "Strict"}
    try:
        applied = _patch(api, ref, body, query)
    except ApiError as error:
        if error.status != 409:
            raise KubeError(error.message, asked=f"apply {ref}") from error
        if present is None:
            raise conflict(ref, error) from error
        _log.warning("%s: taking back fields: %s", ref, error.message)
        applied = _patch(api, ref, body, query | {"force": "true"})
    wrong = differences(body, applied)
    if wrong:
        raise ReadBackMismatch(
            f"the cluster does not hold {ref} as it was applied",
            asked="; ".join(wrong[:5]),
            found=f"{len(wrong)} fields differ",
            next_move="the cluster's CRD or GKE version is older than the manifest; upgrade it",
        )
    return Applied(applied, created=present is None)


def delete_(
    api: Api, refs: Iterable[Ref], deadline: Deadline, *, finalizer_grace: float = FINALIZER_GRACE_SECONDS, patch_finalizers: bool = True
) -> list[str]:
    """Delete objects and return only when all are gone.

    Dependents go by garbage collection afterwards: a caller who must see them gone names them too (`refs_of_run` of RUN_KINDS does).

    Finalizers that are still there after `finalizer_grace` seconds are taken away, once, unless `patch_finalizers` is false.

    Returns:
        One line for each object whose finalizers were taken away.

    Raises:
        DeleteStuck: If something is left at the deadline; the message names each object and its finalizers.
    """
    clock = api.clock
    patched: list[str] = []
    left = {ref: "" for ref in refs if _delete(api, ref)}
    patience = Deadline.after(clock, finalizer_grace)
    while left:
        for ref in list(left):
            found = get(api, ref)
            if found is None:
                del left[ref]
                continue
            if not found["metadata"].get("deletionTimestamp"):
                _delete(api, ref)  # made again since, by its controller or by a retry of ours
            finalizers = found["metadata"].get("finalizers", [])
            left[ref] = ", ".join(finalizers) or "no finalizer"
            if finalizers and patch_finalizers and patience.passed and not any(line.startswith(f"{ref}:") for line in patched):
                patched.append(f"{ref}: took away {left[ref]} after {finalizer_grace:.0f} s")
                _log.warning("%s", patched[-1])
                _take_finalizers(api, ref)
        if not left:
            break
        if deadline.passed:
            raise DeleteStuck(
                f"{len(left)} objects are still there",
                found="; ".join(f"{ref} ({reason})" for ref, reason in left.items()),
                next_move="see what their controllers say; `kubectl patch` takes a finalizer away when its controller is gone",
            )
        clock.sleep(min(_POLL_SECONDS, max(deadline.left, 0.05)))
    return patched


def refs_of_run(api: Api, run_id: str, kinds: Iterable[tuple[str, str]] = RUN_KINDS) -> list[Ref]:
    """Every object of one run among these (apiVersion, kind), in their order, in all namespaces."""
    labels = dict([OWNER_LABEL]) | {RUN_LABEL: run_id}
    return [Ref.of(found) for api_version, kind in kinds for found in list_(api, api_version, kind, labels=labels)]


def _patch(api: Api, ref: Ref, body: Mapping[str, Any], query: Mapping[str, str]) -> Object:
    applied: Object = api.call("PATCH", api.path(ref), query=query, body=body, content_type=APPLY, about=f"apply {ref}")
    return applied


def _is_ours(present: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether the object carries our mark, and belongs to the same run (or, like ours, to none)."""
    there, wanted = present["metadata"].get("labels", {}), body["metadata"].get("labels", {})
    name, value = OWNER_LABEL
    return bool(there.get(name) == value and there.get(RUN_LABEL) == wanted.get(RUN_LABEL))


def _without_marks(body: Mapping[str, Any]) -> Object:
    metadata = {name: value for name, value in body["metadata"].items() if name not in ("labels", "annotations")}
    return {**body, "metadata": metadata}


def _delete(api: Api, ref: Ref) -> bool:
    """Ask for the deletion; False where there is nothing to delete."""
    try:
        api.call("DELETE", api.path(ref), body={"propagationPolicy": "Background"}, about=f"delete {ref}")
    except KindMissing:
        return False
    except ApiError as error:
        if error.status == 404:
            return False
        if error.status != 409:
            raise KubeError(error.message, asked=f"delete {ref}") from error
    return True


def _take_finalizers(api: Api, ref: Ref) -> None:
    try:
        api.call("PATCH", api.path(ref), body={"metadata": {"finalizers": None}}, content_type=MERGE, about=f"patch {ref}")
    except ApiError as error:
        if error.status != 404:
            raise KubeError(error.message, asked=f"patch {ref}") from error
