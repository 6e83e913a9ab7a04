"""Google's discovery documents as routes and as schemas: what a request may be, to the field."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.fakes.errors import ApiError

#: The protobuf descriptor of a schema: Google's REST clients may send enums by number, and only descriptors have the numbers.
Messages = Callable[[str], Any]

#: Query parameters that every Google API takes beside those of its discovery document.
GLOBAL_QUERY = {"$alt", "$fields", "$prettyPrint", "$.xgafv"}

#: What gcloud and the clients send and the bundled documents do not name.
_MORE_QUERY = {"compute": {"returnPartialSuccess"}}

_DURATION = re.compile(r"-?\d+(\.\d{1,9})?s")
_DATETIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_INTEGER_BITS = {"int32": 32, "uint32": 32, "int64": 64, "uint64": 64}


@dataclass(frozen=True)
class Route:
    """One method of an API.

    Attributes:
        id: `compute.networks.insert`.
        template: Path segments; a variable is `{name}`, maybe with a `:verb` behind it.
        request: Name of the body's schema, '' for none.
        query: Names and definitions of query parameters.
    """

    id: str
    verb: str
    template: tuple[str, ...]
    request: str
    query: dict[str, Any]

    def match(self, segments: list[str]) -> dict[str, str] | None:
        """Variables of the path, or None where it is another method's."""
        found = {}
        for want, got in zip(self.template, segments, strict=True):
            if not want.startswith("{"):
                if want != got:
                    return None
                continue
            name, _, suffix = want[1:].partition("}")
            if suffix and not got.endswith(suffix):
                return None
            value = got.removesuffix(suffix)
            if not value or ":" in value:
                return None
            found[name] = unquote(value)
        return found


class Discovery:
    """A discovery document that googleapiclient carries, such as `container.v1`."""

    def __init__(self, document: dict[str, Any], messages: Messages | None = None) -> None:
        self.schemas: dict[str, Any] = document["schemas"]
        self._messages = messages or (lambda name: None)
        self.base = document["servicePath"]
        self._global_query = set(document["parameters"]) | GLOBAL_QUERY | _MORE_QUERY.get(document["name"], set())
        self._routes: dict[tuple[str, int], list[Route]] = {}
        self._walk(document)

    def _walk(self, resource: dict[str, Any]) -> None:
        for method in resource.get("methods", {}).values():
            template = tuple(method.get("flatPath", method["path"]).split("/"))
            query = {name: spec for name, spec in method.get("parameters", {}).items() if spec["location"] == "query"}
            route = Route(method["id"], method["httpMethod"], template, method.get("request", {}).get("$ref", ""), query)
            self._routes.setdefault((route.verb, len(template)), []).append(route)
        for inner in resource.get("resources", {}).values():
            self._walk(inner)

    def route(self, verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """The method of a path (after the base), and the path's variables."""
        segments = path.split("/")
        for route in self._routes.get((verb, len(segments)), ()):
            variables = route.match(segments)
            if variables is not None:
                return route, variables
        return None

    def check_query(self, route: Route, query: dict[str, str]) -> None:
        """Refuse parameters that the method does not have.

        Raises:
            ApiError: 400.
        """
        for name, value in query.items():
            if name not in route.query and name not in self._global_query:
                raise ApiError(
                    400,
                    f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter. '
                    f"Field '{name}' could not be found in request message.",
                )
            if route.query.get(name, {}).get("type") == "integer" and not re.fullmatch(r"\d+", value):
                raise ApiError(400, f"Invalid value at '{name}' (TYPE_INT32), \"{value}\"")

    def check_body(self, route: Route, body: Any) -> dict[str, Any]:
        """The body in canonical form: int64 as text, read-only and (but for a PATCH) null fields left out.

        Raises:
            ApiError: 400 that names every unknown field, wrong type and unknown enum value.
        """
        if not route.request:
            if body:
                raise ApiError(400, f"{route.id} takes no request body")
            return {}
        checker = _Checker(self.schemas, keep_nulls=route.verb == "PATCH")
        checked = checker.message(route.request, body, "", self._messages(route.request))
        if checker.faults:
            violations = [{"field": where, "description": text} for where, text in checker.faults]
            detail = {"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations}
            raise ApiError(400, "\n".join(text for _, text in checker.faults), details=[detail])
        return checked


class Versions:
    """Several versions of one API behind one port, told apart by their paths."""

    base = ""

    def __init__(self, *documents: Discovery) -> None:
        self._documents = documents
        self._owner: dict[int, Discovery] = {}

    def route(self, verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
        for document in self._documents:
            found = document.route(verb, path)
            if found:
                self._owner[id(found[0])] = document
                return found
        return None

    def check_query(self, route: Route, query: dict[str, str]) -> None:
        self._owner[id(route)].check_query(route, query)

    def check_body(self, route: Route, body: Any) -> dict[str, Any]:
        return self._owner[id(route)].check_body(route, body)


class _Checker:
    def __init__(self, schemas: dict[str, Any], *, keep_nulls: bool) -> None:
        self.schemas = schemas
        self.keep_nulls = keep_nulls
        self.faults: list[tuple[str, str]] = []

    def message(self, name: str, value: Any, where: str, proto: Any = None) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._fault(where, f"Invalid value at '{where}' ({name}), {json.dumps(value)}")
            return {}
        return self._object(self.schemas[name], value, where, proto)

    def _object(self, schema: dict[str, Any], value: dict[str, Any], where: str, proto: Any) -> dict[str, Any]:
        known = schema.get("properties", {})
        extra = schema.get("additionalProperties")
        protos = {field.json_name: field for field in proto.fields} if proto else {}
        out: dict[str, Any] = {}
        for key, item in value.items():
            field = f"{where}.{key}" if where else key
            spec = known.get(key, extra)
            if spec is None:
                at = f" at '{where}'" if where else ""
                self._fault(where, f'Invalid JSON payload received. Unknown name "{key}"{at}: Cannot find field.')
            elif item is None and self.keep_nulls:
                out[key] = None
            elif item is not None and not spec.get("readOnly"):
                out[key] = self._value(spec, item, field, protos.get(key))
        return out

    def _value(self, spec: dict[str, Any], value: Any, where: str, proto: Any) -> Any:
        inner = getattr(proto, "message_type", None)
        if "$ref" in spec:
            return self.message(spec["$ref"], value, where, inner)
        kind = spec["type"]
        if kind == "any":
            return value
        if kind == "array":
            if not isinstance(value, list):
                return self._wrong(where, "list", value)
            return [self._value(spec["items"], item, f"{where}[{index}]", proto) for index, item in enumerate(value)]
        if kind == "object":
            return self._object(spec, value, where, inner) if isinstance(value, dict) else self._wrong(where, "message", value)
        if kind == "boolean":
            return value if isinstance(value, bool) else self._wrong(where, "TYPE_BOOL", value)
        if kind == "number":
            good = isinstance(value, int | float) and not isinstance(value, bool)
            return float(value) if good else self._wrong(where, "TYPE_DOUBLE", value)
        if spec.get("format") in _INTEGER_BITS:
            return self._integer(spec["format"], kind, value, where)
        if isinstance(value, int) and getattr(proto, "enum_type", None) and value in proto.enum_type.values_by_number:
            value = proto.enum_type.values_by_number[value].name
        if not isinstance(value, str):
            return self._wrong(where, "TYPE_STRING", value)
        return self._text(spec, value, where)

    def _integer(self, form: str, kind: str, value: Any, where: str) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value)):
            return self._wrong(where, f"TYPE_{form.upper()}", value)
        number, bits = int(value), _INTEGER_BITS[form]
        low, high = (0, 2**bits) if form.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        if not low <= number < high:
            return self._wrong(where, f"TYPE_{form.upper()}", value)
        return str(number) if kind == "string" else number

    def _text(self, spec: dict[str, Any], value: str, where: str) -> Any:
        if "enum" in spec and value not in spec["enum"]:
            return self._wrong(where, f"enum, one of {', '.join(spec['enum'])}", value)
        form = spec.get("format")
        if form == "google-duration" and not _DURATION.fullmatch(value):
            return self._wrong(where, "type.googleapis.com/google.protobuf.Duration", value)
        if form == "google-datetime" and not _DATETIME.fullmatch(value):
            return self._wrong(where, "type.googleapis.com/google.protobuf.Timestamp", value)
        if form == "byte":
            try:
                base64.b64decode(value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4), validate=True)
            except binascii.Error:
                return self._wrong(where, "TYPE_BYTES", value)
        if "pattern" in spec and not re.fullmatch(spec["pattern"], value):
            self._fault(where, f"Invalid value for field '{where}': '{value}'. Must be a match of regex '{spec['pattern']}'")
        return value

    def _wrong(self, where: str, kind: str, value: Any) -> None:
        self._fault(where, f"Invalid value at '{where}' ({kind}), {json.dumps(value)}")

    def _fault(self, where: str, text: str) -> None:
        self.faults.append((where, text))


@functools.cache
def discovery(name: str) -> Discovery:
    """The discovery document `name` of the installed googleapiclient."""
    from googleapiclient import discovery_cache

    folder = Path(discovery_cache.__file__).parent / "documents"
    return Discovery(json.loads((folder / f"{name}.json").read_text()), _MESSAGES.get(name))


def _container(schema: str) -> Any:
    from google.cloud import container_v1

    message = getattr(container_v1, schema, None)
    return message.pb().DESCRIPTOR if message else None


_MESSAGES: dict[str, Messages] = {"container.v1": _container}
