"""audit(target): what made it, is everything of the chain there, and are the bytes what they were."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from tuneline.config.store import KEPT
from tuneline.core.clock import SYSTEM, Clock
from tuneline.lineage.checks import WEIGHTY, check, locate, was_found
from tuneline.lineage.findings import AuditResult, FileState, Finding, NodeCheck, NodeState, Severity
from tuneline.lineage.graph import ancestors, circle, copies, joined, without_twins
from tuneline.lineage.model import KINDS, Artifact, Event, Execution, Graph, LineageStore, State, execution_id, is_sha256, normalize_uri
from tuneline.lineage.resolve import Resolution, resolve
from tuneline.lineage.sidecar import Dependency, Statement

#: Kinds that a chain must hold, by what was asked for.
NEEDED = {
    "checkpoint": ("base", "dataset"),
    "hf": ("base", "dataset", "checkpoint"),
    "registered": ("base", "dataset", "checkpoint", "hf"),
}


def audit(target: str, *, store: LineageStore | None, full: bool = True, clock: Clock = SYSTEM) -> AuditResult:
    """Audit one artifact and everything that it was made from.

    Args:
        target: A folder, a uri, NAME@VERSION of a registered model, or sha256:<content digest>.
        store: The lineage store; None audits by sidecars alone, which is never VERIFIED.
        full: Compare every file's sha256; else names, sizes and recorded crc32c.

    Raises:
        LineageError: The store cannot be read.
    """
    resolution = resolve(target, store, full=full)
    walk = _Walk(resolution, store, full)
    subject = walk.run(resolution.artifact) if resolution.artifact else ""
    if store is None:
        what = "no lineage store: attempts, cached reuse and registered models cannot be known"
        walk.findings.append(Finding(Severity.INCOMPLETE, target, what, "give --store ROOT, the folder that holds lineage/lineage.sqlite"))
    order = list(Severity)
    return AuditResult(
        target=target,
        at=clock.now(),
        full=full,
        store=store.root if store else "",
        subject=subject,
        candidates=resolution.candidates,
        nodes=walk.nodes,
        graph=walk.graph,
        findings=tuple(sorted(walk.findings, key=lambda item: order.index(item.severity))),
    )


class _Walk:
    """One audit while it goes on: the chain as the store has it, joined with what the sidecars on the way tell."""

    def __init__(self, resolution: Resolution, store: LineageStore | None, full: bool) -> None:
        self.resolution = resolution
        self.store = store
        self.full = full
        self.findings = list(resolution.findings)
        self.nodes: dict[str, NodeCheck] = {}
        self.graph = Graph()
        #: Executions that only a sidecar tells of.
        self.told: set[str] = set()
        self.roots = [store.root] if store and store.root else []
        if resolution.location:
            self.roots = [*_store_roots(resolution.location), *self.roots]

    def run(self, target: Artifact) -> str:
        """Go through everything that a target was made from; returns the id under which it is found in `nodes`."""
        names = self.resolution.names
        self.graph = Graph({item.id: item for item in (target, *names)})
        self._grow([*self._records(target), *names])
        if target.id not in self.graph.artifacts:  # it was digested since
            target = next(item for item in self.graph.artifacts.values() if (item.kind, item.uri) == (target.kind, target.uri))
        # Nearest first: a sidecar names the digests of what was recorded before it was digested.
        waiting = deque([target, *ancestors(self.graph, target.id).values(), *self.graph.artifacts.values()])
        while waiting:
            artifact = waiting.popleft()
            if artifact.id in self.nodes or artifact.id not in self.graph.artifacts:
                continue
            is_target = artifact.id == target.id
            place = self.resolution.location if is_target and self.resolution.location else locate(artifact, self.roots)
            checked = check(artifact, place, full=self.full, is_target=is_target)
            self.nodes[artifact.id] = checked.node
            self.findings += checked.findings
            if checked.node.statement:
                waiting += self._join(artifact, checked.node.statement)
        self._choose_producers([target, *names])
        self._check_registered()
        self._check_producers(target)
        self._check_chain(names[0] if names else target)
        self._check_read(target)
        return target.id

    def _records(self, artifact: Artifact) -> list[Artifact]:
        """An artifact as the store may have it: at its place, also from before it was digested, else by its content."""
        if not self.store:
            return []
        places = self.store.find(uri=artifact.uri, kind=artifact.kind)
        here = [item for item in places if item.digest in ("", artifact.digest)]
        return here or (self.store.find(digest=artifact.digest, kind=artifact.kind) if artifact.digest else [])

    def _grow(self, artifacts: Iterable[Artifact]) -> list[Artifact]:
        """Add what the store says that artifacts were made from; returns what is new."""
        if not self.store:
            return []
        return self._add(self.store.upstream([item.id for item in artifacts]))

    def _add(self, more: Graph) -> list[Artifact]:
        known = self.graph.artifacts
        self.graph = without_twins(joined(self.graph, more))
        return [item for key, item in self.graph.artifacts.items() if key not in known]

    def _join(self, artifact: Artifact, statement: Statement) -> list[Artifact]:
        """Add what a sidecar tells and the store does not; say where the two contradict each other. Returns what is new."""
        same = [artifact, *copies(self.graph, artifact.id)]
        recorded = not was_found(artifact) and any(item.id not in self.told for one in same for item in self.graph.producers(one.id))
        execution = self._execution_of(artifact, statement)
        new, missing = [], []
        for item in statement.dependencies:
            before = ancestors(self.graph, artifact.id)
            if item.kind not in KINDS:
                continue
            node = _meant(item, before.values()) or _meant(item, self.graph.artifacts.values())
            digest = item.digest if is_sha256(item.digest) else ""
            if recorded and not (node and node.id in before):
                self.findings.append(_contradiction(artifact, item, before.values()))
            if node is None or node.id not in before:
                missing.append(item)
            if node is None:
                made = Artifact(item.kind, item.uri, digest)
                new += [*self._add(Graph({made.id: made})), *self._grow(self._records(made))]
            elif digest and not node.digest:
                made = Artifact(node.kind, node.uri, digest, node.metadata)
                self.nodes.pop(node.id, None)
                new += self._add(Graph({made.id: made}))
        if not recorded and self.store and self.store.artifact(artifact.id) and self.store.execution(execution.id):
            what = f"the store does not say that {execution.id} wrote it; its sidecar does"
            self.findings.append(Finding(Severity.WARNING, artifact.uri, what, "the task that made it must record what it wrote"))
        if missing or not recorded:
            self._tell(artifact, execution, missing)
        return new

    def _tell(self, artifact: Artifact, execution: Execution, items: Iterable[Dependency]) -> None:
        """Add an execution as a sidecar tells it: what it read, and that it wrote the artifact."""
        nodes = [(item, _meant(item, self.graph.artifacts.values())) for item in items]
        events = [Event(execution.id, node.id, "input", item.name) for item, node in nodes if node]
        if execution.id not in {item.id for item in self.graph.producers(artifact.id)}:
            events.append(Event(execution.id, artifact.id, "output", artifact.kind))
        if execution.id not in self.graph.executions:
            self.told.add(execution.id)
        self._add(Graph({}, {execution.id: execution}, tuple(events)))

    def _execution_of(self, artifact: Artifact, statement: Statement) -> Execution:
        """The execution that a sidecar names, as the store has it where it does.

        Attempts may count something else there (training jobs, in place of starts of the task): the task of the run decides.
        """
        writers = [item for item in self.graph.producers(artifact.id) if (item.run_id, item.task) == (statement.run_id, statement.task)]
        if writers:
            return writers[0]
        for attempt in (statement.attempt, 1):
            known = self.store.execution(execution_id(statement.run_id, statement.task, attempt)) if self.store else None
            if known:
                return known
        told = Execution(
            statement.run_id,
            statement.task,
            statement.attempt,
            State.COMPLETE,
            _seconds(statement.started),
            _seconds(statement.finished),
            statement.parameters,
            statement.details,
        )
        if self.store:
            what = f"its sidecar names execution {told.id}, which the store does not hold"
            self.findings.append(Finding(Severity.INCOMPLETE, artifact.uri, what, "give the store of that run"))
        return told

    def _choose_producers(self, targets: Sequence[Artifact]) -> None:
        """Keep of several executions that wrote the same thing the one that made it, and what leads to the targets then."""
        dropped = set()
        for key, artifact in self.graph.artifacts.items():
            producers = self.graph.producers(key)
            statement = self.nodes[key].statement if key in self.nodes else None
            named = [item for item in producers if statement and (item.run_id, item.task) == (statement.run_id, statement.task)]
            made = next((item for item in named if item.state is State.COMPLETE), producers[0] if producers else None)
            others = [item for item in producers if item is not made]
            dropped |= {(item.id, key) for item in others}
            if others and artifact.digest:
                names = ", ".join(f"{item.id} ({item.state})" for item in others[:3]) + (", …" if len(others) > 3 else "")
                self.findings.append(Finding(Severity.INFO, artifact.uri, f"also written, or taken from a cache, by {names}"))
        events = tuple(e for e in self.graph.events if e.direction == "input" or (e.execution, e.artifact) not in dropped)
        graph = replace(self.graph, events=events)
        kept = {item.id: item for item in targets} | {key: item for one in targets for key, item in ancestors(graph, one.id).items()}
        writers = {item.id: item for key in kept for item in graph.producers(key)}
        self.graph = Graph(
            {key: item for key, item in graph.artifacts.items() if key in kept},
            writers,
            tuple(event for event in graph.events if event.execution in writers and event.artifact in kept),
        )
        self.nodes = {key: node for key, node in self.nodes.items() if key in kept}

    def _check_registered(self) -> None:
        """A registered version has no bytes of its own: it is as good as the weights of its digest."""
        for node in [node for node in self.nodes.values() if node.artifact.kind == "registered"]:
            states = [
                other.state
                for other in self.nodes.values()
                if other.artifact.kind == "hf" and other.artifact.digest == node.artifact.digest
            ]
            self.nodes[node.artifact.id] = replace(node, state=states[0] if states else NodeState.UNVERIFIED)

    def _check_producers(self, target: Artifact) -> None:
        made = {(item.kind, item.digest) for item in self.graph.artifacts.values() if item.digest and self.graph.producers(item.id)}
        for artifact in self.graph.artifacts.values():
            producers = self.graph.producers(artifact.id)
            if artifact.kind not in (*WEIGHTY, "registered"):
                continue
            if not producers:
                if (artifact.kind, artifact.digest) not in made:
                    what = "no execution that made it is recorded"
                    self.findings.append(Finding(Severity.INCOMPLETE, artifact.uri, what, "give the store of the run that made it"))
                continue
            first = producers[0]
            if first.state is State.CACHED:
                what = f"only taken over from a cache, by {first.id}; the execution that made it is not recorded"
                self.findings.append(Finding(Severity.INCOMPLETE, artifact.uri, what, "give the store of the run that made it"))
            elif first.state is not State.COMPLETE:
                survives = artifact.kind == "checkpoint" and artifact.id != target.id
                what = f"{first.id}, which made it, is {first.state}"
                next_move = "" if survives else "let the task end, or run it again"
                self.findings.append(Finding(Severity.INFO if survives else Severity.INCOMPLETE, artifact.uri, what, next_move))

    def _check_chain(self, target: Artifact) -> None:
        have = {item.kind for item in ancestors(self.graph, target.id).values()}
        for kind in NEEDED.get(target.kind, ()):
            if kind not in have:
                what = f"no {kind} in what it was made from"
                self.findings.append(Finding(Severity.INCOMPLETE, target.uri, what, "give the store of the run that made it"))
        loop = circle(self.graph)
        if loop:
            what = f"made from itself: {' → '.join([*loop, loop[0]])}"
            self.findings.append(
                Finding(Severity.INCOMPLETE, target.uri, what, "a task must write to a new place, never over what it reads")
            )

    def _check_read(self, target: Artifact) -> None:
        count = sum(row.state is FileState.UNVERIFIED for node in self.nodes.values() for row in node.files)
        if not self.full and count:
            what = f"only names and sizes of {count} files were compared"
            self.findings.append(Finding(Severity.INCOMPLETE, target.uri, what, "audit without --quick"))
        elif self.nodes[target.id].state in (NodeState.UNVERIFIED, NodeState.NOTHING):
            next_move = "" if target.digest else "record its digest when it is made"
            self.findings.append(Finding(Severity.INCOMPLETE, target.uri, "its bytes were not verified", next_move))


def _contradiction(artifact: Artifact, item: Dependency, before: Iterable[Artifact]) -> Finding:
    others = sorted(other.digest for other in before if other.kind == item.kind and other.digest)
    told = f"its sidecar names {item.kind} sha256:{item.digest or '-'} ({item.uri})"
    if others:
        what = f"{told}, the store's chain has {', '.join(f'sha256:{digest}' for digest in others)}"
        return Finding(Severity.MISMATCH, artifact.uri, what, "find out which of the two was changed; neither may ever be")
    what = f"{told}; the store's chain has no {item.kind}"
    return Finding(Severity.INCOMPLETE, artifact.uri, what, "the task that made it must record what it read")


def _store_roots(location: Path) -> list[str]:
    """The folders that may be the root of the store that a folder lies in, by the layout's names."""
    parts = location.resolve().parts
    return [str(Path(*parts[:index])) for index, part in enumerate(parts) if part in KEPT and index]


def _meant(item: Dependency, artifacts: Iterable[Artifact]) -> Artifact | None:
    """The artifact that a dependency is: by content, else by place where one of the two has no digest."""
    same = [artifact for artifact in artifacts if artifact.kind == item.kind]
    exact = (artifact for artifact in same if item.digest and artifact.digest == item.digest)
    placed = (artifact for artifact in same if artifact.uri == normalize_uri(item.uri) and not (item.digest and artifact.digest))
    return next(exact, None) or next(placed, None)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
