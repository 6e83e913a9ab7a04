"""Manifests from RunSpec and facts: pure, in the order in which they are applied.

Every value that a template prints is written as JSON, which YAML reads as one scalar, list or map: no parameter can end its own
value or start another key, and no template can forget to quote.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import yaml

from tuneline.config.spec import RunSpec
from tuneline.kube.context import build_context, templates_of
from tuneline.kube.errors import RenderError
from tuneline.kube.facts import Facts

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
#: libyaml's safe loader where PyYAML has it: ten times faster.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_EXEC = "import base64,json,os,sys;a=json.loads(base64.b64decode(sys.argv[1]));os.execvp(a[0],a)"
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Manifest:
    """One object to apply.

    Attributes:
        template: Path of the template below manifests/.
        text: The rendered YAML, comments included.
        body: The object.
    """

    template: str
    text: str
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def shared(self) -> bool:
        """Whether other runs use it too, so that the end of this run does not delete it."""
        return "tuneline-run" not in self.body["metadata"]["labels"]


def render(spec: RunSpec, run_id: str, facts: Facts) -> list[Manifest]:
    """Everything that one run needs in the cluster, in the order in which it is applied.

    Raises:
        RenderError: If parameters and facts do not make a whole system.
    """
    context = _context(spec, run_id, facts)
    return [manifest for template in templates_of(spec) for manifest in _documents(template, context)]


def render_job(
    spec: RunSpec, run_id: str, facts: Facts, *, job_name: str, argv: Sequence[str], env: Mapping[str, str], deadline_seconds: int
) -> Manifest:
    """The RayJob of one attempt.

    On its way to the job an entrypoint passes the submitter's bash, Python's list2cmdline and a second shell, which together keep few
    arguments as they are. So the argument list travels as base64 behind a line of Python that has nothing to quote.

    Args:
        argv: The job's argument list.
        env: Its environment, on every worker too.

    Raises:
        RenderError: If the environment has a value that the submitter's bash would expand.
    """
    expanded = sorted(name for name, value in env.items() if re.search(r"[$`]", name + value))
    if expanded:
        raise RenderError(
            f"environment variables have $ or `, which the job's submitter expands: {', '.join(expanded)}", next_move="leave them out"
        )
    context = _context(spec, run_id, facts) | {
        "job_name": _name("job name", job_name),
        "command_line": shlex.join(argv),
        "entrypoint": shlex.join(["python", "-c", _EXEC, base64.b64encode(json.dumps(list(argv)).encode()).decode()]),
        "runtime_env": yaml.safe_dump({"env_vars": dict(env)}),
        "deadline_seconds": deadline_seconds,
    }
    return _documents("common/rayjob.yaml.j2", context)[0]


def dra_driver_values(spec: RunSpec, run_id: str, facts: Facts) -> dict[str, Any]:
    """Values for the chart of NVIDIA's DRA driver (a4x only)."""
    template = "a4x/dra-driver-values.yaml.j2"
    return dict(_load(template, _text(template, _context(spec, run_id, facts))))


def _context(spec: RunSpec, run_id: str, facts: Facts) -> dict[str, Any]:
    return build_context(spec, _name("run id", run_id), facts)


def _name(what: str, name: str) -> str:
    if not _DNS_LABEL.fullmatch(name):
        raise RenderError(
            f"{what} {name!r} is no Kubernetes name",
            next_move="use a-z, 0-9 and '-', at most 63 characters, a letter or digit at both ends",
        )
    return name


def _documents(template: str, context: Mapping[str, Any]) -> list[Manifest]:
    parts = re.split(r"^---\n", _text(template, context), flags=re.MULTILINE)
    return [Manifest(template, part, body) for part in parts if (body := _load(template, part))]


def _text(template: str, context: Mapping[str, Any]) -> str:
    try:
        return _environment().get_template(template).render(context)
    except jinja2.UndefinedError as error:
        move = "give it in RunSpec or Facts"
        raise RenderError(f"{template} wants a value that is not there", found=str(error), next_move=move) from error


def _load(template: str, text: str) -> Any:
    try:
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise RenderError(
            f"a value has a character that YAML does not allow, in {template}",
            found=str(error).splitlines()[-1].strip(),
            next_move="leave control characters out of parameters",
        ) from error


@cache
def _environment() -> jinja2.Environment:
    if not MANIFESTS.is_dir():
        raise RenderError(
            "the manifests are not there", asked=str(MANIFESTS), next_move="install Tuneline with its manifests/ folder beside the package"
        )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(MANIFESTS),
        undefined=jinja2.StrictUndefined,
        finalize=_json,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # YAML, not HTML: _json quotes
    )
    environment.filters["lines"] = _lines
    return environment


class _Verbatim(str):
    """Text that a filter has made safe already."""


def _json(value: Any) -> str:
    if isinstance(value, _Verbatim):
        return value
    if isinstance(value, jinja2.Undefined):
        return str(value)  # raises, naming the value
    return json.dumps(value, ensure_ascii=False)


def _lines(value: Any, indent: int) -> _Verbatim:
    """A list as JSON in a YAML block of one line an item; JSON in ASCII has no character that could end the block."""
    items = ",\n".join(json.dumps(item) for item in value)
    pad = " " * indent
    return _Verbatim("|-\n" + pad + f"[\n{items}\n]".replace("\n", "\n" + pad))
