"""GoogleFakes: all the fakes together, as a test uses them."""

from __future__ import annotations

from types import TracebackType

from tests.fakes.capacity import Capacity
from tests.fakes.clock import FakeClock
from tests.fakes.compute.collections import COLLECTIONS
from tests.fakes.compute.service import ComputeFake
from tests.fakes.errors import ApiError
from tests.fakes.faults import Fault, Faults
from tests.fakes.gke.service import ContainerFake
from tests.fakes.identity import IamCredentialsFake, ResourceManagerFake, SecretManagerFake, ServiceUsageFake
from tests.fakes.lustre import LustreFake
from tests.fakes.server import Server
from tests.fakes.service import Call, Service, Shared
from tests.fakes.servicenetworking import ServiceNetworkingFake
from tests.fakes.storage import StorageFake
from tests.fakes.tokens import FakeCredentials, Tokens
from tests.fakes.world import Project, World


class GoogleFakes:
    """Google Cloud on loopback ports and in virtual time.

    Attributes:
        endpoints: `http://127.0.0.1:PORT` of each service.
        projects: By id; `demo` is there, with every API enabled and the network `default`.
        calls: Every call, oldest first.
    """

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.world = World(self.clock)
        self.tokens = Tokens(self.world)
        self.capacity = Capacity(self.world)
        self.operation_faults = Faults()
        self._shared = Shared()
        self.calls: list[Call] = self._shared.calls
        self.projects: dict[str, Project] = self.world.projects
        common = (self.world, self.tokens, self._shared)
        self.compute = ComputeFake(*common, self.capacity, self.operation_faults)
        self.container = ContainerFake(*common, self.compute, self.capacity, self.operation_faults)
        self.lustre = LustreFake(*common, self.operation_faults)
        self.servicenetworking = ServiceNetworkingFake(*common, self.operation_faults)
        self.secretmanager = SecretManagerFake(*common)
        self.serviceusage = ServiceUsageFake(*common, self.operation_faults)
        self.cloudresourcemanager = ResourceManagerFake(*common)
        self.iamcredentials = IamCredentialsFake(*common)
        self.storage = StorageFake(*common)
        self.services: dict[str, Service] = {
            item.name: item
            for item in (
                self.compute,
                self.container,
                self.lustre,
                self.servicenetworking,
                self.secretmanager,
                self.serviceusage,
                self.cloudresourcemanager,
                self.iamcredentials,
                self.storage,
            )
        }
        self.endpoints: dict[str, str] = {}
        self.add_project("demo", "123456789012")

    def __enter__(self) -> GoogleFakes:
        self._server = Server(self.services)
        self._server.start()
        self.endpoints.update({name: f"http://127.0.0.1:{port}" for name, port in self._server.ports.items()})
        self.storage.backend.public = self.endpoints["storage"].removeprefix("http://")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.stop()
        self.storage.backend.stop()

    def add_project(self, id: str, number: str, enabled: set[str] | None = None) -> Project:
        """A project with the network `default`; `enabled` names its APIs, None for all."""
        project = self.projects[id] = Project(id, number, enabled)
        path = f"projects/{id}/global/networks/default"
        self.compute.put(COLLECTIONS["networks"], path, {"name": "default", "autoCreateSubnetworks": True}, set()).planted = True
        return project

    def pace(self, seconds: float) -> None:
        """Let this much virtual time pass at each look at an operation: for callers in other processes, which have clocks of their own."""
        self._shared.seconds_per_poll = seconds

    def fail(
        self,
        method: str,
        status: int | None = 503,
        message: str = "",
        *,
        reason: str = "",
        times: int | None = 1,
        seconds: float | None = None,
        after: bool = False,
        matching: str = "",
    ) -> Fault:
        """Let calls fail.

        Args:
            method: Method ids as a glob: `compute.networks.insert`, `container.*`.
            status: HTTP status; None closes the connection without an answer.
            reason: As in `errors[0].reason`.
            times: How many calls, None for all.
            seconds: Virtual seconds from now after which it ends; with times=None a storm.
            after: The call takes effect, and only its answer is this.
            matching: Text that the call's path or body must contain.
        """
        error = (lambda: ApiError(status, message or f"Injected fault of {method}", reason=reason)) if status else None
        until = None if seconds is None else self.clock.now() + seconds
        with self.world.lock:
            return self._shared.faults.add(Fault(method, times, until, after, error, matching=matching))

    def slow(self, method: str, seconds: float, times: int | None = 1) -> Fault:
        """Let virtual time pass before calls are looked at."""
        with self.world.lock:
            return self._shared.faults.add(Fault(method, times, slow=seconds))

    def fail_operation(
        self,
        method: str,
        status: int = 500,
        message: str = "Internal error.",
        *,
        rpc: str = "",
        reason: str = "",
        times: int = 1,
        matching: str = "",
    ) -> Fault:
        """Let operations that `method` starts end in an error: done, and not a success.

        Args:
            rpc: Canonical name of the google.rpc code, '' for the usual one of `status`.
            reason: Compute's code in camel case (`quotaExceeded`), '' for the usual one.
            matching: Text that the target's path must contain.
        """

        def error() -> ApiError:
            return ApiError(status, message, status=rpc, reason=reason)

        with self.world.lock:
            return self.operation_faults.add(Fault(method, times, error=error, matching=matching))

    def unmet(self) -> list[Fault]:
        """Faults that were set and did not happen."""
        return self._shared.faults.unmet() + self.operation_faults.unmet()

    def credentials(self, email: str = "runner@demo.iam.gserviceaccount.com") -> FakeCredentials:
        """Credentials whose tokens these fakes know."""
        return FakeCredentials(self.tokens.issue, email)

    def leftovers(self, *, planted: bool = False) -> list[str]:
        """Paths of every resource that exists now; `planted` adds what was there before the code under test came."""
        with self.world.lock:
            self.world.settle()
            shown = (path for path, entry in self.world.resources.items() if not entry.extra.get("hidden"))
            return sorted(path for path in shown if planted or not self.world.resources[path].planted)

    def written(self) -> list[Call]:
        """The calls that change something, oldest first: what a golden holds."""
        return [call for call in self.calls if call.verb != "GET"]
