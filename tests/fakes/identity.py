"""The fakes of Secret Manager, Service Usage, Resource Manager and IAM Credentials."""

from __future__ import annotations

import base64
import re
import time

import google_crc32c

from tests.fakes.compute.listing import page
from tests.fakes.errors import ApiError
from tests.fakes.faults import Faults
from tests.fakes.lro import LongRunning
from tests.fakes.schemas import Versions, discovery
from tests.fakes.service import Request, Service, Shared
from tests.fakes.tokens import Tokens
from tests.fakes.world import Body, World

ENABLE = 30.0
#: APIs that one batchEnable may name.
BATCH = 20


class SecretManagerFake(Service):
    """Secrets that a test puts there with `put`."""

    name = "secretmanager"

    def __init__(self, world: World, tokens: Tokens, shared: Shared) -> None:
        super().__init__(world, tokens, shared, discovery("secretmanager.v1"))
        self._versions: dict[str, list[bytes | None]] = {}
        self.handlers |= {
            "secretmanager.projects.secrets.get": self._get,
            "secretmanager.projects.secrets.versions.access": self._access,
        }

    def put(self, name: str, value: bytes | None, project: str = "demo") -> str:
        """Add a version (None: a disabled one); returns its name."""
        with self.world.lock:
            path = f"projects/{project}/secrets/{name}"
            versions = self._versions.setdefault(path, [])
            versions.append(value)
            return f"{path}/versions/{len(versions)}"

    def _secret(self, request: Request) -> str:
        path = f"projects/{self.world.project(request.at['projectsId']).id}/secrets/{request.at['secretsId']}"
        if path not in self._versions:
            raise ApiError(404, f"Secret [{path}] not found or has no versions.")
        return path

    def _get(self, request: Request) -> Body:
        project = self.world.project(request.at["projectsId"])
        return {"name": f"projects/{project.number}/secrets/{self._secret(request).rpartition('/')[2]}", "replication": {"automatic": {}}}

    def _access(self, request: Request) -> Body:
        path, wanted = self._secret(request), request.at["versionsId"]
        versions = self._versions[path]
        number = len(versions) if wanted == "latest" else int(wanted) if wanted.isdigit() else 0
        if not 1 <= number <= len(versions):
            raise ApiError(404, f"Secret Version [{path}/versions/{wanted}] not found.")
        value = versions[number - 1]
        if value is None:
            raise ApiError(400, f"Secret Version [{path}/versions/{number}] is in DISABLED state.", status="FAILED_PRECONDITION")
        project = self.world.project(request.at["projectsId"])
        return {
            "name": f"projects/{project.number}/secrets/{request.at['secretsId']}/versions/{number}",
            "payload": {"data": base64.b64encode(value).decode(), "dataCrc32c": str(google_crc32c.value(value))},
        }


class ServiceUsageFake(Service):
    """What is enabled in a project. A project whose `enabled` is None has every API."""

    name = "serviceusage"
    needs_enabling = False

    def __init__(self, world: World, tokens: Tokens, shared: Shared, operation_faults: Faults) -> None:
        super().__init__(world, tokens, shared, discovery("serviceusage.v1"))
        self.operations = LongRunning(world, operation_faults)
        self.handlers |= {
            "serviceusage.services.batchEnable": self._enable,
            "serviceusage.services.get": lambda request: self._service(request.at["v1Id1"], request.at["servicesId"]),
            "serviceusage.services.list": self._list,
            "serviceusage.operations.get": lambda request: self.operations.get(request.path.removeprefix("v1/")),
        }

    def _service(self, project_id: str, name: str) -> Body:
        project = self.world.project(project_id)
        state = "ENABLED" if project.enabled is None or name in project.enabled else "DISABLED"
        return {"name": f"projects/{project.number}/services/{name}", "state": state, "parent": f"projects/{project.number}"}

    def _list(self, request: Request) -> Body:
        enabled = sorted(self.world.project(request.at["v1Id1"]).enabled or ())
        query = {name: value for name, value in request.query.items() if name != "filter"}
        if request.query.get("filter", "state:ENABLED") != "state:ENABLED":
            raise ApiError(400, "This fake lists enabled services only: filter=state:ENABLED.")
        shown, token = page([self._service(request.at["v1Id1"], name) for name in enabled], query)
        return {"services": shown} | ({"nextPageToken": token} if token else {})

    def _enable(self, request: Request) -> Body:
        names, project = request.body.get("serviceIds", []), self.world.project(request.at["v1Id1"])
        if not 1 <= len(names) <= BATCH:
            raise ApiError(400, f"Between 1 and {BATCH} services can be enabled at once, not {len(names)}.")
        wrong = [name for name in names if not re.fullmatch(r"[a-z]+\.googleapis\.com", name)]
        if wrong:
            raise ApiError(400, f"Not found or permission denied for service(s): {', '.join(wrong)}.", reason="forbidden")

        def enabled() -> Body:
            if project.enabled is not None:
                project.enabled.update(names)
            kind = "type.googleapis.com/google.api.serviceusage.v1.BatchEnableServicesResponse"
            return {"@type": kind, "services": [self._service(project.id, name) for name in names]}

        name = f"operations/acf.p2-{project.number}-{self.world.id('enable')[:32]}"
        return self.operations.start(request.method, name, f"projects/{project.id}", ENABLE, enabled)


class ResourceManagerFake(Service):
    """Projects. `denied` holds (e-mail, permission) pairs that testIamPermissions refuses; '' is any caller."""

    name = "cloudresourcemanager"
    needs_enabling = False

    def __init__(self, world: World, tokens: Tokens, shared: Shared) -> None:
        super().__init__(world, tokens, shared, Versions(discovery("cloudresourcemanager.v3"), discovery("cloudresourcemanager.v1")))
        self.denied: set[tuple[str, str]] = set()
        self.handlers |= {
            "cloudresourcemanager.projects.get": self._get,
            "cloudresourcemanager.projects.testIamPermissions": self._test,
        }

    def _get(self, request: Request) -> Body:
        if "projectId" in request.at:  # v1, which gcloud uses
            project = self.world.project(request.at["projectId"])
            return {"projectNumber": project.number, "projectId": project.id, "name": project.id, "lifecycleState": "ACTIVE"}
        project = self.world.project(request.at["projectsId"])
        return {"name": f"projects/{project.number}", "projectId": project.id, "displayName": project.id, "state": "ACTIVE"}

    def _test(self, request: Request) -> Body:
        self.world.project(request.at["projectsId"])
        wanted = request.body.get("permissions", [])
        return {"permissions": [item for item in wanted if not {(request.caller, item), ("", item)} & self.denied]}


class IamCredentialsFake(Service):
    """Short-lived tokens by impersonation. `denied` holds service accounts that nobody here may impersonate."""

    name = "iamcredentials"
    needs_enabling = False

    def __init__(self, world: World, tokens: Tokens, shared: Shared) -> None:
        super().__init__(world, tokens, shared, discovery("iamcredentials.v1"))
        self.denied: set[str] = set()
        self.handlers["iamcredentials.projects.serviceAccounts.generateAccessToken"] = self._generate

    def _generate(self, request: Request) -> Body:
        email, body = request.at["serviceAccountsId"], request.body
        if request.at["projectsId"] != "-":
            raise ApiError(400, "The project of a service account must be '-'.")
        if email in self.denied:
            raise ApiError(
                403,
                "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).",
                info=("IAM_PERMISSION_DENIED", "iam.googleapis.com"),
                metadata={"permission": "iam.serviceAccounts.getAccessToken"},
            )
        if not body.get("scope"):
            raise ApiError(400, "Scope required.")
        seconds = float(body.get("lifetime", "3600s").removesuffix("s"))
        if not 0 < seconds <= 3600:
            raise ApiError(400, "The token lifetime cannot be more than 3600s.")
        token, ends = self.tokens.issue(email, seconds)
        return {"accessToken": token, "expireTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends))}
