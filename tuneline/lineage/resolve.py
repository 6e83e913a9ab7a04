"""From what a person typed to the one artifact that is meant; several are listed, never guessed."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tuneline.core.errors import LineageError
from tuneline.lineage import sidecar
from tuneline.lineage.digests import SIDECAR, content_digest, digest_folder
from tuneline.lineage.findings import Finding, Severity
from tuneline.lineage.model import Artifact, LineageStore, is_sha256, registered_uri


@dataclass(frozen=True)
class Resolution:
    """What a target means.

    Attributes:
        artifact: The one artifact that is meant, or None.
        location: The folder or file that was named; None where the target is no path.
        names: Further artifacts that are names of the same bytes: a registered version.
        candidates: What it may mean, where that is more than one thing.
        in_store: The store knows the artifact.
    """

    artifact: Artifact | None = None
    location: Path | None = None
    names: tuple[Artifact, ...] = ()
    candidates: tuple[Artifact, ...] = ()
    findings: tuple[Finding, ...] = ()
    in_store: bool = False


def resolve(target: str, store: LineageStore | None, *, full: bool) -> Resolution:
    """Find what `target` means: a folder or file, a uri, NAME@VERSION or sha256:<hex>.

    Raises:
        LineageError: The store cannot be read.
    """
    by_name = _registered(target, store)
    if target and os.path.lexists(target):
        by_path = _folder(target, Path(os.path.abspath(target)), store, full)
        found = by_path.artifact
        if by_name and found and by_name.artifact != found:
            return _several(target, [found, *([by_name.artifact] if by_name.artifact else [])], "a path and a registered model")
        return by_path
    if by_name:
        return by_name
    if target.startswith("sha256:"):
        return _digest(target, target.removeprefix("sha256:").lower(), store)
    found_here = _pick(store.find(uri=target) or store.find(uri=os.path.abspath(target)) if store and target else [])
    if len(found_here) > 1:
        return _several(target, found_here, "one uri with several contents")
    return Resolution(found_here[0], in_store=True) if found_here else _unknown(target, store)


def _pick(artifacts: list[Artifact]) -> list[Artifact]:
    """Without those that only repeat another one: no digest where another of the same kind and uri has one, a name of the same bytes."""
    digested = {(item.kind, item.uri) for item in artifacts if item.digest}
    real = {item.digest for item in artifacts if item.digest and item.kind != "registered"}
    return [
        item
        for item in artifacts
        if (item.digest or (item.kind, item.uri) not in digested) and not (item.kind == "registered" and item.digest in real)
    ]


def _several(target: str, candidates: list[Artifact], why: str) -> Resolution:
    names = "; ".join(f"{item.kind} {item.uri} sha256:{item.digest or '-'}" for item in candidates)
    finding = Finding(Severity.INCOMPLETE, target, f"may mean {len(candidates)} things ({why}): {names}", "audit the one that is meant")
    return Resolution(candidates=tuple(candidates), findings=(finding,))


def _unknown(target: str, store: LineageStore | None) -> Resolution:
    known = [*store.uris(), *(f"{item.name}@{item.version}" for item in store.versions())] if store else []
    near = difflib.get_close_matches(target, known, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "give a folder, a uri, NAME@VERSION or sha256:<hex>"
    what = "neither a path nor anything that the lineage store knows" if store else "no such path, and no lineage store to ask"
    return Resolution(findings=(Finding(Severity.INCOMPLETE, target, what, hint),))


def _registered(target: str, store: LineageStore | None) -> Resolution | None:
    named = re.fullmatch(r"(?:tuneline:)?([^/@]+)@(\d+)", target)
    if not named or not store:
        return None
    name, number = named[1], int(named[2])
    version = next((item for item in store.versions(name) if item.version == number), None)
    if version is None:
        return None
    names = store.find(uri=registered_uri(name, number), kind="registered")
    findings = [
        Finding(
            Severity.MISMATCH,
            target,
            f"the registry says content digest {version.artifact.digest}, its artifact {item.digest or 'none'}",
            "do not serve it; register the model again from verified bytes",
        )
        for item in names
        if item.digest != version.artifact.digest
    ]
    if not names:
        what = "registered, but no execution recorded the registration"
        findings.append(Finding(Severity.INCOMPLETE, target, what, "register it by the pipeline's register task"))
    return Resolution(version.artifact, names=tuple(names), findings=tuple(findings), in_store=True)


def _digest(target: str, digest: str, store: LineageStore | None) -> Resolution:
    if not is_sha256(digest):
        what = "no sha256: 64 hex characters must follow"
        return Resolution(findings=(Finding(Severity.INCOMPLETE, target, what, "copy the whole digest"),))
    found = _pick(store.find(digest=digest)) if store else []
    if len(found) > 1:
        return _several(target, found, "copies of the same content")
    return Resolution(found[0], in_store=True) if found else _unknown(target, store)


def _folder(target: str, path: Path, store: LineageStore | None, full: bool) -> Resolution:
    if not path.is_dir() and path.parent.is_dir() and sidecar.find(path.parent):
        what = "a file of a folder that is audited as a whole"
        return Resolution(findings=(Finding(Severity.INCOMPLETE, target, what, f"audit {path.parent}"),))
    try:
        statement = sidecar.read(path) if path.is_dir() else None
    except LineageError:
        statement = None  # the check of the folder names what is wrong with it
    here = {item.id: item for place in (path, path.resolve()) for item in (store.find(uri=str(place)) if store else [])}
    candidates = _pick(list(here.values()))
    if statement:
        digest = statement.digest
    elif len(candidates) == 1 or not full or not path.is_dir():
        digest = ""
    else:
        try:
            digest = content_digest(digest_folder(path))
        except LineageError:
            digest = ""
    return _match(target, path, store, candidates, statement, digest)


def _match(
    target: str, path: Path, store: LineageStore | None, here: list[Artifact], statement: sidecar.Statement | None, digest: str
) -> Resolution:
    """Choose by content among what the store recorded at this place, then among what it recorded anywhere."""
    itself = Artifact(statement.kind, str(path), digest) if statement else None
    same = [item for item in here if item.digest == digest and (statement is None or item.kind == statement.kind)]
    if len(same) == 1 or len(here) == 1:
        chosen = same[0] if len(same) == 1 else here[0]
        others = [item for item in here if item != chosen]
        what = "another content was recorded here too: {0.kind} sha256:{0.digest}"
        notes = tuple(Finding(Severity.WARNING, target, what.format(item), "find out what wrote here twice") for item in others)
        if not chosen.digest:
            chosen = Artifact(chosen.kind, chosen.uri, digest, chosen.metadata)
        return Resolution(chosen, path, findings=notes, in_store=True)
    if here:
        several = _several(target, here, "one uri with several contents")
        changed = digest and all(item.digest for item in here) and not same
        what = f"its content digest is {digest}: none of those that were recorded here"
        more = (Finding(Severity.MISMATCH, target, what, "restore it from a copy"),) if changed else ()
        return Resolution(itself, path, candidates=several.candidates, findings=(*several.findings, *more))
    copies = _pick(store.find(digest=digest, kind=statement.kind if statement else "")) if store and digest else []
    if len(copies) == 1:
        note = Finding(Severity.INFO, target, f"a copy of {copies[0].uri}: the store knows its content, not this place")
        return Resolution(copies[0], path, findings=(note,), in_store=True)
    if copies:
        several = _several(target, copies, "copies of the same content")
        return Resolution(itself, path, candidates=several.candidates, findings=several.findings)
    findings = [] if store is None else [Finding(Severity.INCOMPLETE, target, "the lineage store does not know it", "give its run's store")]
    if itself is None:
        what = f"no {SIDECAR}, and nothing recorded: nothing is known of it"
        findings.append(Finding(Severity.INCOMPLETE, target, what, "restore its sidecar or its lineage store"))
    return Resolution(itself, path, findings=tuple(findings))
