"""The fake of Cloud Storage: buckets and their IAM here, strictly; objects in the real fake-gcs-server behind it."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

from tests.fakes.compute.listing import page
from tests.fakes.errors import ApiError
from tests.fakes.schemas import Route, discovery
from tests.fakes.server import Answer, Asked
from tests.fakes.service import Call, Request, Service, Shared
from tests.fakes.storage_backend import StorageBackend
from tests.fakes.tokens import Tokens
from tests.fakes.world import Body, Entry, World

_NAME = re.compile(r"[a-z0-9][-_a-z0-9.]{1,61}[a-z0-9]")
_PRINCIPAL = re.compile(r"principal(?:Set)?://iam\.googleapis\.com/projects/(\d+)/locations/global/workloadIdentityPools/([^/]+)/.+")
#: What no patch may change.
_IMMUTABLE = ("hierarchicalNamespace", "location", "name", "projectNumber")


class StorageFake(Service):
    """Buckets: kept under `b/NAME`, as in the paths of the API."""

    name = "storage"
    with_status = False
    needs_enabling = False

    def __init__(self, world: World, tokens: Tokens, shared: Shared) -> None:
        super().__init__(world, tokens, shared, discovery("storage.v1"))
        self.backend = StorageBackend()
        self._behind: set[str] = set()
        self.handlers |= {
            "storage.buckets.insert": self._insert,
            "storage.buckets.get": lambda request: self._entry(request).body,
            "storage.buckets.list": self._list,
            "storage.buckets.getStorageLayout": self._layout,
            "storage.buckets.patch": self._patch,
            "storage.buckets.delete": self._delete,
            "storage.buckets.getIamPolicy": lambda request: self._policy(self._entry(request)),
            "storage.buckets.setIamPolicy": self._set_policy,
            "storage.buckets.testIamPermissions": lambda request: {"permissions": request.query.get("permissions", "").split(",")},
        }

    def plant(self, name: str, project: str = "demo", *, foreign: bool = False, **fields: Any) -> None:
        """A bucket that was there before; `foreign`: of someone who lets nobody look at it."""
        with self.world.lock:
            body = self._fresh({"name": name, **fields}, self.world.project(project).number)
            self.world.add(f"b/{name}", body, planted=True, foreign=foreign, policy=_default_policy(project))

    def bindings(self, bucket: str) -> list[tuple[str, str]]:
        """(role, member) pairs of a bucket's policy, but for those that every bucket has."""
        policy = self.world.resources[f"b/{bucket}"].extra["policy"]
        return [(item["role"], member) for item in policy["bindings"] for member in item["members"] if not member.startswith("project")]

    def _answer(self, route: Route, variables: dict[str, str], path: str, asked: Asked, call: Call) -> Answer:
        if route.id in self.handlers or not route.id.startswith("storage.objects."):
            return super()._answer(route, variables, path, asked, call)
        return self._pass_on(asked, variables.get("bucket", ""), call)

    def __call__(self, asked: Asked) -> Answer:
        """Uploads and downloads have paths of their own, which no discovery document lists."""
        path = asked.target.partition("?")[0]
        found = re.match(r"/(upload|download|resumable)/(?:storage/v1/b/|)([^/]*)", path)
        if not found:
            return super().__call__(asked)
        method = "storage.objects.get" if found[1] == "download" else "storage.objects.insert"
        call = Call(self.name, method, asked.verb, path.lstrip("/"), {}, f"{len(asked.body)} bytes", "", self.world.clock.now())
        self.shared.calls.append(call)
        answer = self._pass_on(asked, found[2] if "/b/" in path else "", call)
        call.status = 0 if answer.lost else answer.status
        return answer

    def _pass_on(self, asked: Asked, bucket: str, call: Call) -> Answer:
        with self.world.lock:
            fault = self.shared.faults.find(call.method, call.path, self.world.clock.now())
            if fault and fault.slow:
                self.world.clock.advance(fault.slow)
            try:
                call.caller = self.tokens.caller(asked.headers.get("authorization", ""))
            except ApiError as error:
                return self.error(error)
            if fault and not fault.after and not fault.slow:
                return self.error(fault.error()) if fault.error else Answer(lost=True)
            if bucket and f"b/{bucket}" not in self.world.resources:
                return self.error(ApiError(404, "The specified bucket does not exist."))
            try:
                if bucket:
                    self._put_behind(bucket)
            except ApiError as error:
                return self.error(error)
        answer = self.backend.send(asked)
        if fault and fault.after:
            return self.error(fault.error()) if fault.error else Answer(lost=True)
        return answer

    def _put_behind(self, bucket: str) -> None:
        if bucket not in self._behind:
            body = json.dumps({"name": bucket}).encode()
            self.backend.send(Asked("POST", "/storage/v1/b?project=fakes", {"content-type": "application/json"}, body))
            self._behind.add(bucket)

    def _entry(self, request: Request) -> Entry:
        entry = self.world.get(f"b/{request.at['bucket']}")
        if entry is None:
            raise ApiError(404, "The specified bucket does not exist.")
        if entry.extra.get("foreign"):
            caller = request.caller or "Anonymous caller"
            raise ApiError(403, f"{caller} does not have storage.buckets.get access to the Google Cloud Storage bucket.")
        return entry

    def _fresh(self, body: Body, number: str) -> Body:
        access = {"uniformBucketLevelAccess": {"enabled": False}, "publicAccessPrevention": "inherited", **body.get("iamConfiguration", {})}
        return {
            "kind": "storage#bucket",
            "storageClass": "STANDARD",
            "locationType": "region",
            **body,
            "id": body["name"],
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{body['name']}",
            "projectNumber": number,
            "location": body.get("location", "US").upper(),
            "metageneration": "1",
            "etag": "CAE=",
            "timeCreated": self.world.stamp(),
            "updated": self.world.stamp(),
            "iamConfiguration": access,
        }

    def _insert(self, request: Request) -> Body:
        body, project = request.body, self.world.project(request.query.get("project", ""))
        name = body.get("name", "")
        if not _NAME.fullmatch(name) or name.startswith("goog"):
            raise ApiError(400, f"Invalid bucket name: '{name}'", reason="invalid")
        if self.world.get(f"b/{name}"):
            message = "The requested bucket name is not available. The bucket namespace is shared by all users of the system."
            raise ApiError(409, message, reason="conflict")
        uniform = body.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {}).get("enabled", False)
        if body.get("hierarchicalNamespace", {}).get("enabled") and not uniform:
            raise ApiError(400, "Hierarchical namespace requires uniform bucket-level access to be enabled.", reason="invalid")
        full = self._fresh(body, project.number)
        self.world.add(f"b/{name}", full, policy=_default_policy(project.id), foreign=False)
        return full

    def _list(self, request: Request) -> Body:
        number = self.world.project(request.query.get("project", "")).number
        buckets = [entry.body for path, entry in self.world.resources.items() if path.startswith("b/") and not entry.extra["foreign"]]
        prefix = request.query.get("prefix", "")
        shown, token = page(
            [item for item in buckets if item["projectNumber"] == number and item["name"].startswith(prefix)], request.query
        )
        return {"kind": "storage#buckets", "items": shown} | ({"nextPageToken": token} if token else {})

    def _layout(self, request: Request) -> Body:
        body = self._entry(request).body
        shown: Body = {name: body[name] for name in ("location", "locationType", "hierarchicalNamespace") if name in body}
        return {"kind": "storage#storageLayout", "bucket": body["name"], **shown}

    def _patch(self, request: Request) -> Body:
        entry = self._entry(request)
        wanted = request.query.get("ifMetagenerationMatch")
        if wanted not in (None, entry.body["metageneration"]):
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold.", reason="conditionNotMet")
        for field in _IMMUTABLE:
            if field in request.body and request.body[field] != entry.body.get(field):
                raise ApiError(400, f"Bucket {field} cannot be changed after creation.", reason="invalid")
        _merge(entry.body, request.body)
        entry.body["metageneration"] = str(int(entry.body["metageneration"]) + 1)
        entry.body["updated"] = self.world.stamp()
        return entry.body

    def _delete(self, request: Request) -> Body:
        entry, name = self._entry(request), request.at["bucket"]
        if name in self._behind:
            inside = self.backend.send(Asked("GET", f"/storage/v1/b/{quote(name)}/o?maxResults=1&versions=true", {}, b""))
            if json.loads(inside.body).get("items"):
                raise ApiError(409, "The bucket you tried to delete is not empty.", reason="conflict")
            self.backend.send(Asked("DELETE", f"/storage/v1/b/{quote(name)}", {}, b""))
            self._behind.discard(name)
        self.world.remove(f"b/{entry.body['name']}")
        return {}

    def _policy(self, entry: Entry) -> Body:
        policy: Body = entry.extra["policy"]
        return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{entry.body['name']}", **policy}

    def _set_policy(self, request: Request) -> Body:
        entry = self._entry(request)
        policy, wanted = entry.extra["policy"], request.body
        if wanted.get("etag") not in (None, policy["etag"]):
            raise ApiError(412, "At least one of the pre-conditions you specified did not hold.", reason="conditionNotMet")
        for binding in wanted.get("bindings", ()):
            for member in binding.get("members", ()):
                self._check_member(member)
        number = int(policy["etag"].strip("CA=") or 0) + 1
        entry.extra["policy"] = {"version": wanted.get("version", 1), "bindings": wanted.get("bindings", []), "etag": f"CA{number}="}
        return self._policy(entry)

    def _check_member(self, member: str) -> None:
        found = _PRINCIPAL.fullmatch(member)
        if found:
            project, pool = self.world.project(found[1]), found[2]
            if pool != f"{project.id}.svc.id.goog" or not project.identity_pool:
                raise ApiError(
                    400,
                    f"Identity Pool does not exist ({pool}). Please check that you specified a valid resource name as returned in the "
                    "`name` attribute in the configuration API.",
                    reason="invalid",
                )
        elif not re.match(r"(user|serviceAccount|group|domain|project\w+):.+|allUsers|allAuthenticatedUsers", member):
            raise ApiError(400, f"Invalid member: {member}", reason="invalid")


def _merge(into: Body, change: Body) -> None:
    """JSON merge patch: null removes."""
    for name, value in change.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


def _default_policy(project: str) -> Body:
    members = [f"projectEditor:{project}", f"projectOwner:{project}"]
    return {"version": 1, "etag": "CA1=", "bindings": [{"role": "roles/storage.legacyBucketOwner", "members": members}]}
