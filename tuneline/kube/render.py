"""Manifests from RunSpec and facts: pure, in the order in which they are applied.

Every value that a template prints is written as JSON, which YAML reads as one scalar, list or map: no parameter can end its own
value or start another key, and no template can forget to quote.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
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

    Args:
        argv: The job's argument list.
        env: Its environment.

    Raises:
        RenderError: If an argument would not reach the job as it is: `ray job submit` hands it to a shell.
    """
    changed = [
        argument for argument in argv if shlex.split(subprocess.list2cmdline([argument])) != [argument] or re.search(r"[$`!]", argument)
    ]
    if changed:
        raise RenderError(
            f"{len(changed)} job arguments would be changed on their way to the job",
            found=", ".join(map(repr, changed[:3])),
            next_move="leave out quotes, backslashes, $, ` and ! in them, or hand them over in the environment",
        )
    context = _context(spec, run_id, facts) | {
        "job_name": _name("job name", job_name),
        "entrypoint": shlex.join(argv),
        "runtime_env": yaml.safe_dump({"env_vars": dict(env)}),
        "deadline_seconds": deadline_seconds,
    }
    return _documents("common/rayjob.yaml.j2", context)[0]


def dra_driver_values(spec: RunSpec, run_id: str, facts: Facts) -> dict[str, Any]:
    """Values for the chart of NVIDIA's DRA driver (a4x only)."""
    loaded = yaml.safe_load(_text("a4x/dra-driver-values.yaml.j2", _context(spec, run_id, facts)))
    return dict(loaded)


def _context(spec: RunSpec, run_id: str, facts: Facts) -> dict[str, Any]:
    for what, name in (
        ("run id", run_id),
        ("infra_namespace", spec.infra_namespace),
        ("infra_service_account", spec.infra_service_account),
    ):
        _name(what, name)
    return build_context(spec, run_id, facts)


def _name(what: str, name: str) -> str:
    if not _DNS_LABEL.fullmatch(name):
        raise RenderError(
            f"{what} {name!r} is no Kubernetes name",
            next_move="use a-z, 0-9 and '-', at most 63 characters, a letter or digit at both ends",
        )
    return name


def _documents(template: str, context: Mapping[str, Any]) -> list[Manifest]:
    text = _text(template, context)
    parts = [part for part in re.split(r"^---\n", text, flags=re.MULTILINE) if yaml.safe_load(part)]
    return [Manifest(template, part, yaml.safe_load(part)) for part in parts]


def _text(template: str, context: Mapping[str, Any]) -> str:
    try:
        text = _environment().get_template(template).render(context)
        list(yaml.safe_load_all(text))
    except jinja2.UndefinedError as error:
        raise RenderError(
            f"{template} wants a value that is not there", found=str(error), next_move="give it in RunSpec or Facts"
        ) from error
    except yaml.YAMLError as error:
        raise RenderError(
            f"a value has a character that YAML does not allow, in {template}",
            found=str(error).splitlines()[-1].strip(),
            next_move="leave control characters out of parameters",
        ) from error
    return text


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
