"""What a sidecar says: an in-toto Statement v1 with SLSA provenance v1, as typed values and as exact bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tuneline.core.errors import LineageError
from tuneline.lineage.digests import QUICK_SIDECAR, SIDECAR, FileDigest, QuickFile, content_digest
from tuneline.lineage.metadata import lineage_metadata
from tuneline.lineage.model import KINDS, is_sha256, normalize_uri

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
#: Names the meaning of the parameters; the version changes with the layout.
BUILD_TYPE = "urn:tuneline:lineage:v1"


@dataclass(frozen=True)
class Subject:
    """A file of the folder: sha256 (64 hex) where it was digested, crc32c (8 hex) where it was checked quickly; at least one of them."""

    path: str
    size: int
    sha256: str = ""
    crc32c: str = ""


@dataclass(frozen=True)
class Dependency:
    """What the folder was made from.

    Attributes:
        name: base, dataset, dataset-2, code, checkpoint, image …: unique in its statement.
        kind: A kind of artifact, `image` or `git`.
        uri: Where it lay.
        digest: sha256 (content digest of a folder, digest of an image) in 64 hex characters, a git commit in 40, or ''.
    """

    name: str
    kind: str
    uri: str
    digest: str = ""

    def __post_init__(self) -> None:
        if self.kind not in (*KINDS, "image", "git"):
            raise LineageError("a dependency of an unknown kind", asked=f"{self.name}: {self.kind}", choices=(*KINDS, "image", "git"))
        if self.digest and not is_sha256(self.digest) and len(self.digest) != 40:
            raise LineageError(f"the digest of dependency {self.name} is neither sha256 nor a git commit", found=self.digest)


@dataclass(frozen=True)
class Statement:
    """A sidecar's content.

    Attributes:
        parameters: What the run was given (SLSA externalParameters), plain JSON.
        started, finished: RFC 3339, UTC.
        details: Step, hardware, seeds, framework versions …, text.
    """

    kind: str
    uri: str
    subjects: tuple[Subject, ...]
    dependencies: tuple[Dependency, ...]
    parameters: Mapping[str, Any]
    run_id: str
    task: str
    attempt: int
    started: str
    finished: str
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Content digest over the files that have a sha256; '' where none has."""
        full = [FileDigest(item.path, item.sha256, item.size) for item in self.subjects if item.sha256]
        return content_digest(full) if full else ""

    @property
    def file_name(self) -> str:
        """`lineage.json`, or `lineage.quick.json` where no file has a sha256."""
        return SIDECAR if self.digest else QUICK_SIDECAR

    def of_kind(self, kind: str) -> list[Dependency]:
        return [item for item in self.dependencies if item.kind == kind]

    def metadata(
        self, *, base: str = "", code: str = "", image: str = "", compute: str = "", spec_sha256: str = "", step: int | str = ""
    ) -> dict[str, str]:
        """The `lineage_*` keys that agree with this sidecar; arguments as `lineage_metadata`."""
        digests = {kind: [item.digest for item in self.of_kind(kind) if item.digest] for kind in ("base", "dataset", "checkpoint")}
        return lineage_metadata(
            kind=self.kind,
            digest=self.digest,
            manifest=f"{self.uri}/{self.file_name}",
            manifest_sha256=hashlib.sha256(self.to_json()).hexdigest(),
            run_id=self.run_id,
            task=self.task,
            attempt=self.attempt,
            parameters=self.parameters,
            spec_sha256=spec_sha256,
            base=base,
            base_sha256="".join(digests["base"][:1]),
            dataset_sha256=digests["dataset"],
            parent_sha256="".join(digests["checkpoint"][:1]),
            code=code,
            image=image,
            compute=compute,
            step=step if step != "" else self.details.get("step", ""),
        )

    def to_json(self) -> bytes:
        """The file: equal statements give equal bytes."""
        value = {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": item.path, "digest": _present(sha256=item.sha256, crc32c=item.crc32c), "annotations": {"size": str(item.size)}}
                for item in self.subjects
            ],
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": dict(self.parameters),
                    "internalParameters": {"kind": self.kind, "uri": self.uri, "task": self.task, "attempt": str(self.attempt)},
                    "resolvedDependencies": [_dependency_json(item) for item in self.dependencies],
                },
                "runDetails": {
                    "builder": {"id": "urn:tuneline:pipeline"},
                    "metadata": {"invocationId": self.run_id, "startedOn": self.started, "finishedOn": self.finished},
                    "byproducts": [{"name": "details", "annotations": dict(self.details)}],
                },
            },
        }
        return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _present(**values: str) -> dict[str, str]:
    return {key: value for key, value in values.items() if value}


def _dependency_json(item: Dependency) -> dict[str, Any]:
    algorithm = "gitCommit" if len(item.digest) == 40 else "sha256"
    digest = {"digest": {algorithm: item.digest}} if item.digest else {}
    return {"name": item.name, "uri": item.uri, "annotations": {"kind": item.kind}, **digest}


def build_statement(
    *,
    kind: str,
    uri: str,
    files: Iterable[FileDigest] = (),
    quick: Iterable[QuickFile] = (),
    dependencies: Sequence[Dependency] = (),
    parameters: Mapping[str, Any],
    run_id: str,
    task: str,
    attempt: int,
    started: str,
    finished: str,
    details: Mapping[str, str] | None = None,
) -> Statement:
    """The statement over a folder's files, which must all be named.

    Args:
        files: Files with their sha256; quick: files with their crc32c. A file may be in both.

    Raises:
        LineageError: No file; a path twice, absolute or with `..`; sizes that disagree; parameters that are not plain JSON.
    """
    subjects: dict[str, Subject] = {}
    for file in files:
        if file.path in subjects:
            raise LineageError("a file twice in one sidecar", found=file.path)
        subjects[file.path] = Subject(file.path, file.size, sha256=file.sha256)
    for light in quick:
        known = subjects.get(light.path)
        if known and known.size != light.size:
            raise LineageError(f"{light.path} changed while it was digested", found=f"{known.size} bytes, then {light.size}")
        subjects[light.path] = Subject(light.path, light.size, known.sha256 if known else "", light.crc32c)
    statement = Statement(
        kind,
        normalize_uri(uri),
        tuple(subjects[path] for path in sorted(subjects)),
        tuple(dependencies),
        parameters,
        run_id,
        task,
        attempt,
        started,
        finished,
        details or {},
    )
    try:
        parse(statement.to_json(), "the sidecar to be written")
    except (TypeError, ValueError) as error:
        raise LineageError(
            f"the parameters of {task} are not plain JSON: {error}", next_move="give numbers, text and true or false"
        ) from error
    return statement


def parse(data: bytes, name: str) -> Statement:
    """The statement in a sidecar's bytes; `name` is for the error.

    Raises:
        LineageError: Not exactly what `Statement.to_json` writes.
    """
    try:
        statement = _statement(json.loads(data))
        exact = statement.to_json() == data
    except KeyError as error:
        raise broken(name, f"no field {error.args[0]}") from error
    except (ValueError, TypeError, AttributeError, RecursionError, LineageError) as error:
        raise broken(name, getattr(error, "message", str(error))) from error
    if not exact:
        raise broken(name, "fields or spelling that Tuneline does not write: it was edited")
    return statement


def broken(name: str, found: str) -> LineageError:
    """The error for a file that is no sidecar."""
    return LineageError(f"{name} is no sidecar of Tuneline", found=found, next_move="restore it from a copy; never edit a sidecar")


def _statement(value: Any) -> Statement:
    _must_be("_type", value["_type"], STATEMENT_TYPE)
    _must_be("predicateType", value["predicateType"], PREDICATE_TYPE)
    definition, run = value["predicate"]["buildDefinition"], value["predicate"]["runDetails"]
    _must_be("buildType", definition["buildType"], BUILD_TYPE)
    internal, metadata = definition["internalParameters"], run["metadata"]
    (details,) = run["byproducts"]
    statement = Statement(
        kind=_text(internal["kind"]),
        uri=_text(internal["uri"]),
        subjects=tuple(_subject(item) for item in value["subject"]),
        dependencies=tuple(_dependency(item) for item in definition["resolvedDependencies"]),
        parameters=dict(definition["externalParameters"]),
        run_id=_text(metadata["invocationId"]),
        task=_text(internal["task"]),
        attempt=int(_text(internal["attempt"])),
        started=_text(metadata["startedOn"]),
        finished=_text(metadata["finishedOn"]),
        details={_text(key): _text(text) for key, text in details["annotations"].items()},
    )
    if statement.kind not in KINDS:
        raise ValueError(f"kind {statement.kind!r} is none of {', '.join(KINDS)}")
    paths = [item.path for item in statement.subjects]
    if not paths:
        raise ValueError("no file")
    for what, names in (("file", paths), ("dependency", [item.name for item in statement.dependencies])):
        twice = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else set()
        if twice:
            raise ValueError(f"{what} {min(twice)} twice")
    return statement


def _must_be(name: str, found: object, wanted: str) -> None:
    if found != wanted:
        raise ValueError(f"{name} is {found!r}, not {wanted}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where text must be")
    return value


def _subject(item: Any) -> Subject:
    path, digest = _text(item["name"]), item["digest"]
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == SIDECAR or set(path) & set("\n\r\0"):
        raise ValueError(f"{path!r} is no path of a file below the folder")
    sha256, crc32c = _text(digest.get("sha256", "")), _text(digest.get("crc32c", ""))
    if not (sha256 or crc32c) or (sha256 and not is_sha256(sha256)) or (crc32c and len(crc32c) != 8):
        raise ValueError(f"{path} has no valid digest")
    return Subject(path, int(_text(item["annotations"]["size"])), sha256, crc32c)


def _dependency(item: Any) -> Dependency:
    digest = item.get("digest", {})
    value = _text(digest.get("sha256", digest.get("gitCommit", "")))
    return Dependency(_text(item["name"]), _text(item["annotations"]["kind"]), _text(item["uri"]), value)
