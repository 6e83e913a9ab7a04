"""What all the fakes do with a request: find the method, check the caller, meet the faults, check the body, call the handler, log."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from tests.fakes.batch import run_batch
from tests.fakes.errors import ApiError
from tests.fakes.faults import Faults
from tests.fakes.schemas import Route
from tests.fakes.server import Answer, Asked
from tests.fakes.tokens import Tokens
from tests.fakes.world import Body, World


@dataclass
class Call:
    """One line of the call log.

    Attributes:
        method: Id in the discovery document: `container.projects.locations.clusters.create`.
        body: As it was sent, before any check.
        caller: E-mail of the token's owner, '' for none.
        at: Virtual seconds since the epoch.
        status: HTTP status of the answer, 0 where it was lost.
    """

    service: str
    method: str
    verb: str
    path: str
    query: dict[str, str]
    body: Any
    caller: str
    at: float
    status: int = 0


@dataclass
class Request:
    """A request that passed every check.

    Attributes:
        path: After the API's base; for Compute it is the resource's path.
        at: Variables of the path, in its order.
    """

    method: str
    path: str
    at: dict[str, str]
    query: dict[str, str]
    body: Body
    caller: str = ""

    @property
    def name(self) -> str:
        """The last variable of the path: in get and delete the resource's name."""
        return list(self.at.values())[-1]


Handler = Callable[[Request], Body]


class Api(Protocol):
    """Routes and schemas of one API: a Discovery, or what Lustre has in its place."""

    base: str

    def route(self, verb: str, path: str) -> tuple[Route, dict[str, str]] | None: ...
    def check_query(self, route: Route, query: dict[str, str]) -> None: ...
    def check_body(self, route: Route, body: Any) -> dict[str, Any]: ...


@dataclass
class Shared:
    """What a test sets on all the fakes at once."""

    faults: Faults = field(default_factory=Faults)
    calls: list[Call] = field(default_factory=list)
    seconds_per_poll: float = 0.0


class Service:
    """One API. A subclass fills `handlers` with a function for each method id that it plays.

    Attributes:
        name: Host name without `.googleapis.com`.
        with_status: Whether error bodies carry the canonical status (Compute's and Storage's do not).
        needs_enabling: Whether a project must have enabled the API.
    """

    name = ""
    with_status = True
    needs_enabling = True

    def __init__(self, world: World, tokens: Tokens, shared: Shared, api: Api) -> None:
        self.world = world
        self.tokens = tokens
        self.shared = shared
        self.api = api
        self.handlers: dict[str, Handler] = {}

    def __call__(self, asked: Asked) -> Answer:
        """Answer one HTTP request."""
        url = urlsplit(asked.target)
        path = url.path.lstrip("/")
        if path.startswith("batch"):
            return run_batch(asked, self)
        found = self.api.route(asked.verb, path.removeprefix(self.api.base)) if path.startswith(self.api.base) else None
        if found is None:
            return self.error(ApiError(404, f"The requested URL {asked.target} was not found on this server."))
        route, variables = found
        query: dict[str, str] = {}
        for name, value in parse_qsl(url.query, keep_blank_values=True):
            query[name] = f"{query[name]},{value}" if name in query else value
        call = Call(self.name, route.id, asked.verb, path, query, _parsed(asked.body), "", self.world.clock.now())
        with self.world.lock:
            self.shared.calls.append(call)
            answer = self._answer(route, variables, path.removeprefix(self.api.base), asked, call)
        call.status = 0 if answer.lost else answer.status
        return answer

    def _answer(self, route: Route, variables: dict[str, str], path: str, asked: Asked, call: Call) -> Answer:
        fault = self.shared.faults.find(route.id, f"{call.path} {asked.body.decode(errors='replace')}", self.world.clock.now())
        if fault and fault.slow:
            self.world.clock.advance(fault.slow)
        if route.id.lower().endswith("operations.get"):
            self.world.clock.advance(self.shared.seconds_per_poll)
        self.world.settle()
        try:
            call.caller = self.tokens.caller(asked.headers.get("authorization", ""))
            if fault and not fault.after and not fault.slow:
                return self.error(fault.error()) if fault.error else Answer(lost=True)
            self._check_enabled(variables)
            self.api.check_query(route, call.query)
            body = self.api.check_body(route, {} if call.body is None else call.body)
            handler = self.handlers.get(route.id)
            if handler is None:
                raise ApiError(501, f"The fake of {self.name} does not play {route.id}.")
            result = handler(Request(route.id, path, variables, call.query, body, call.caller))
        except ApiError as error:
            return self.error(error)
        except Exception:
            return self.error(ApiError(500, f"The fake itself failed:\n{traceback.format_exc()}"))
        if fault and fault.after:
            return self.error(fault.error()) if fault.error else Answer(lost=True)
        return Answer(200, json.dumps(result).encode(), {"Content-Type": "application/json; charset=UTF-8"})

    def _check_enabled(self, variables: dict[str, str]) -> None:
        project_id = next((variables[name] for name in ("project", "projectsId", "projectId") if name in variables), "")
        if not self.needs_enabling or project_id in ("", "-"):
            return
        project, api = self.world.project(project_id), f"{self.name}.googleapis.com"
        if project.enabled is not None and api not in project.enabled:
            raise ApiError(
                403,
                f"{api} has not been used in project {project.number} before or it is disabled. Enable it and retry.",
                info=("SERVICE_DISABLED", "googleapis.com"),
                metadata={"service": api, "consumer": f"projects/{project.number}"},
            )

    def error(self, error: ApiError) -> Answer:
        body = json.dumps(error.body(with_status=self.with_status)).encode()
        return Answer(error.code, body, {"Content-Type": "application/json; charset=UTF-8"})


def _parsed(body: bytes) -> Any:
    """JSON of a body, None for none, the text itself where it is no JSON (the schema check then refuses it)."""
    if not body:
        return None
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
