"""One artifact against its bytes: files against the sidecar, the sidecar against what the store says of the artifact."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuneline.config.store import KEPT
from tuneline.core.errors import LineageError
from tuneline.lineage import sidecar
from tuneline.lineage.digests import (
    QUICK_SIDECAR,
    SIDECAR,
    content_digest,
    digest_file,
    digest_files,
    digest_folder,
    list_files,
    quick_files,
)
from tuneline.lineage.findings import FileRow, FileState, Finding, NodeCheck, NodeState, Severity
from tuneline.lineage.metadata import params_sha256, sidecars
from tuneline.lineage.model import Artifact
from tuneline.lineage.sidecar import Statement, Subject

#: Kinds whose bytes an audit must see.
WEIGHTY = ("base", "dataset", "code", "checkpoint", "hf")

#: What a writer that was killed inside `core.files.create_only` leaves: never part of the content.
_LEFTOVER = re.compile(r"\.lineage(\.quick)?\.json\.\d+-[0-9a-f]{8}\.tmp")

_RESTORE = "restore the folder from a copy with the recorded digest; do not use it meanwhile"


@dataclass(frozen=True)
class Checked:
    """An artifact's row and what is to be said of it."""

    node: NodeCheck
    findings: tuple[Finding, ...]


def locate(artifact: Artifact, roots: Sequence[str]) -> Path | None:
    """Where an artifact's bytes are on this computer, or None.

    A place of the store's layout below one of `roots` comes before the recorded uri: a store that was moved or copied is
    audited by its own bytes.
    """
    path = Path(artifact.uri)
    if not path.is_absolute():
        return None
    tails = (Path(*path.parts[index:]) for index, part in enumerate(path.parts) if part in KEPT)
    candidates = [*(Path(root) / tail for tail in tails for root in roots), path]
    return next((place for place in candidates if place.exists()), None)


def check(artifact: Artifact, location: Path | None, *, full: bool, is_target: bool) -> Checked:
    """Compare an artifact with its bytes and its sidecar.

    Args:
        location: Its folder or file, None where it has none on this computer.
        full: Compare contents by sha256; else names, sizes and recorded crc32c.
        is_target: The artifact is what was asked for: a missing sidecar matters.
    """
    if artifact.kind == "registered":
        return Checked(NodeCheck(artifact, NodeState.UNVERIFIED), ())
    if artifact.kind == "code" and not artifact.digest:
        return Checked(NodeCheck(artifact, NodeState.NOTHING), ())
    if location is None:
        return _absent(artifact)
    if location.is_file():
        return _check_file(artifact, location, full)
    findings: list[Finding] = []
    statement = None
    if sidecar.find(location) is None:
        if is_target or "lineage_manifest" in artifact.metadata:
            what = f"no {SIDECAR}: the record of how it was made is gone"
            findings.append(Finding(Severity.INCOMPLETE, str(location), what, "restore it from a copy"))
    else:
        try:
            statement = sidecar.read(location)
        except LineageError as error:
            findings.append(Finding(Severity.MISMATCH, str(location), f"{error.message}: {error.found}".rstrip(": "), error.next_move))
    try:
        rows, more = _by_sidecar(location, statement, full) if statement else _by_digest(artifact, location, full)
    except LineageError as error:
        severity = Severity.INCOMPLETE if isinstance(error.__cause__, OSError) else Severity.MISMATCH
        rows, more = (), [Finding(severity, str(location), f"{error.message} ({error.found})".replace(" ()", ""), error.next_move)]
    findings += more
    if statement:
        findings += _against_record(artifact, statement, location)
        if not statement.digest:
            severity = Severity.INCOMPLETE if is_target else Severity.WARNING
            what = "only a quick sidecar: it finds damage, not forgery"
            findings.append(Finding(severity, str(location), what, "convert the checkpoint: that digests it"))
    return Checked(NodeCheck(artifact, _state(rows, findings, full), str(location), rows, statement), tuple(findings))


def _state(rows: Sequence[FileRow], findings: Sequence[Finding], full: bool) -> NodeState:
    if any(item.severity is Severity.MISMATCH for item in findings):
        return NodeState.MISMATCH
    return NodeState.VERIFIED if rows and all(row.state is FileState.SAME for row in rows) else NodeState.UNVERIFIED


def _absent(artifact: Artifact) -> Checked:
    findings: tuple[Finding, ...] = ()
    if artifact.kind in WEIGHTY:
        elsewhere = not Path(artifact.uri).is_absolute()
        what = "its bytes are not on this computer" if elsewhere else "its folder is gone: its bytes cannot be verified"
        findings = (Finding(Severity.INCOMPLETE, artifact.uri, what, "audit it where it lies, or restore it from a copy"),)
    return Checked(NodeCheck(artifact, NodeState.MISSING), findings)


def _check_file(artifact: Artifact, location: Path, full: bool) -> Checked:
    """An artifact that is one file; its digest is the file's sha256."""
    if not artifact.digest or not full:
        return Checked(NodeCheck(artifact, NodeState.UNVERIFIED, str(location)), ())
    found = digest_file(location)
    same = found.sha256 == artifact.digest
    row = FileRow(found.path, FileState.SAME if same else FileState.CHANGED, artifact.digest, found.sha256, found.size)
    findings = () if same else (Finding(Severity.MISMATCH, str(location), "CHANGED since it was recorded", _RESTORE),)
    return Checked(NodeCheck(artifact, NodeState.VERIFIED if same else NodeState.MISMATCH, str(location), (row,)), findings)


def _by_digest(artifact: Artifact, folder: Path, full: bool) -> tuple[tuple[FileRow, ...], list[Finding]]:
    """A folder without a sidecar: only its content digest can be compared, so that a change cannot be named."""
    if not artifact.digest:
        sizes = list_files(folder)
        what = "neither a digest nor a sidecar was recorded: its bytes cannot be verified"
        found = [Finding(Severity.INCOMPLETE, str(folder), what, "digest it when it is made")] if artifact.kind in WEIGHTY else []
        return tuple(FileRow(path, FileState.UNVERIFIED, size=size) for path, size in sizes.items()), found
    if not full:
        return tuple(FileRow(path, FileState.UNVERIFIED, size=size) for path, size in list_files(folder).items()), []
    files = digest_folder(folder)
    digest = content_digest(files)
    same = digest == artifact.digest
    state = FileState.SAME if same else FileState.UNVERIFIED
    rows = tuple(FileRow(file.path, state, found=f"sha256:{file.sha256}", size=file.size) for file in files)
    if same:
        return rows, []
    what = f"its content digest is {digest}, recorded was {artifact.digest}; without a sound sidecar the file cannot be named"
    return rows, [Finding(Severity.MISMATCH, str(folder), what, _RESTORE)]


def _by_sidecar(folder: Path, statement: Statement, full: bool) -> tuple[tuple[FileRow, ...], list[Finding]]:
    sizes = list_files(folder, (SIDECAR,) if statement.digest else (SIDECAR, QUICK_SIDECAR))
    named = {item.path: item for item in statement.subjects}
    rows = [FileRow(path, FileState.MISSING, f"{item.size} bytes", size=item.size) for path, item in named.items() if path not in sizes]
    findings = []
    for path in sizes.keys() - named.keys():
        if _LEFTOVER.fullmatch(path):
            findings.append(Finding(Severity.WARNING, f"{folder}/{path}", "left by a writer that was killed", "delete it"))
        else:
            rows.append(FileRow(path, FileState.EXTRA, found=f"{sizes[path]} bytes", size=sizes[path]))
    same_size = []
    for path, item in named.items():
        if path in sizes and sizes[path] != item.size:
            rows.append(FileRow(path, FileState.CHANGED, f"{item.size} bytes", f"{sizes[path]} bytes", sizes[path]))
        elif path in sizes:
            same_size.append(item)
    for row, problem in _contents(folder, same_size, full):
        rows.append(row)
        findings += [problem] if problem else []
    rows.sort(key=lambda row: row.path)
    for row in rows:
        if row.state in (FileState.CHANGED, FileState.MISSING, FileState.EXTRA):
            what = f"{row.state}: recorded {row.expected or 'no such file'}, found {row.found or 'none'}"
            findings.append(Finding(Severity.MISMATCH, f"{folder}/{row.path}", what, _RESTORE))
    return tuple(rows), findings


def _contents(folder: Path, subjects: Sequence[Subject], full: bool) -> Iterator[tuple[FileRow, Finding | None]]:
    """Rows of files whose sizes agree."""
    by_algorithm: dict[str, list[Subject]] = {"sha256": [], "crc32c": [], "": []}
    for item in subjects:
        by_algorithm["sha256" if full and item.sha256 else "crc32c" if item.crc32c else ""].append(item)
    for name in ("sha256", "crc32c"):
        items = by_algorithm[name]
        for item, found in zip(items, _values(folder, [item.path for item in items], name), strict=True):
            if isinstance(found, LineageError):
                row = FileRow(item.path, FileState.UNVERIFIED, size=item.size)
                yield row, Finding(Severity.INCOMPLETE, f"{folder}/{item.path}", found.message, found.next_move)
                continue
            wanted = getattr(item, name)
            state = FileState.SAME if found == wanted else FileState.CHANGED
            yield FileRow(item.path, state, f"{name}:{wanted}", f"{name}:{found}", item.size), None
    for item in by_algorithm[""]:
        yield FileRow(item.path, FileState.UNVERIFIED, f"sha256:{item.sha256}", f"{item.size} bytes", item.size), None


def _values(folder: Path, paths: Sequence[str], name: str) -> Sequence[str | LineageError]:
    """The digest of each file, or why it has none."""

    def read(some: Sequence[str]) -> list[str]:
        if name == "sha256":
            return [file.sha256 for file in digest_files(folder, some)]
        return [file.crc32c for file in quick_files(folder, some)]

    try:
        return read(paths)
    except LineageError:
        values: list[str | LineageError] = []
        for path in paths:
            try:
                values += read([path])
            except LineageError as error:
                values.append(error)
        return values


def was_found(artifact: Artifact) -> bool:
    """Whether the store knows a folder only from tasks that found it with its sidecar: equal bytes, maybe of another chain."""
    return "lineage_manifest" in artifact.metadata and not sidecars(artifact.metadata)


def _against_record(artifact: Artifact, statement: Statement, folder: Path) -> Iterator[Finding]:
    """The sidecar against the artifact as the store has it."""
    if artifact.digest and not statement.digest:
        what = f"the store recorded content digest {artifact.digest}, but {SIDECAR} is gone"
        yield Finding(Severity.INCOMPLETE, str(folder), what, "restore it from a copy")
        return
    digests = {kind: [item.digest for item in statement.of_kind(kind) if item.digest] for kind in ("base", "dataset", "checkpoint")}
    recorded = artifact.metadata
    datasets = [value for key, value in recorded.items() if re.fullmatch(r"lineage_dataset_sha256(_\d+)?", key)]
    told_of = {
        "lineage_kind": statement.kind,
        "lineage_digest": statement.digest,
        "lineage_step": statement.details.get("step", ""),
        "lineage_base_sha256": artifact.digest if artifact.kind == "base" else ", ".join(digests["base"]),
        "lineage_parent_sha256": ", ".join(digests["checkpoint"]),
    }
    written, found = sidecars(recorded), hashlib.sha256(statement.to_json()).hexdigest()
    if written and found not in written:
        told_of["lineage_manifest_sha256"] = found
    elif was_found(artifact):
        del told_of["lineage_parent_sha256"]
        what = f"{SIDECAR} was found there by the task that recorded the folder; the record of the task that wrote it is lost"
        yield Finding(Severity.INCOMPLETE, str(folder), what, "give the store of the run that made it")
    elif not written:
        # A sidecar that was sealed is proved as a whole, and a later attempt that found it there may have recorded the artifact.
        told_of |= {
            "lineage_run": statement.run_id,
            "lineage_task": statement.task,
            "lineage_attempt": str(statement.attempt),
            "lineage_params_sha256": params_sha256(statement.parameters),
        }
    pairs = [("kind", artifact.kind, statement.kind), ("digest", artifact.digest, statement.digest)]
    pairs += [(key, recorded.get(key, ""), value) for key, value in told_of.items() if value or key != "lineage_step"]
    if artifact.kind != "dataset":
        pairs.append(("lineage_dataset_sha256", ", ".join(sorted(datasets)), ", ".join(sorted(digests["dataset"]))))
    for name, stored, told in pairs:
        if stored and stored != told:
            what = f"{name}: the store recorded {stored}, the sidecar says {told or 'nothing'}"
            yield Finding(Severity.MISMATCH, str(folder), what, "find out which of the two was changed; neither may ever be")
