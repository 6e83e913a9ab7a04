"""An audit for people: one HTML file that needs no script and no network, and plain text for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from tuneline.core.clock import utc
from tuneline.core.names import canonical_json
from tuneline.lineage.drawing import MARKS, anchor, draw
from tuneline.lineage.findings import AuditResult, NodeCheck, NodeState
from tuneline.lineage.model import Execution

_MEANING = {
    "VERIFIED": "Every artifact of the chain is recorded, and every byte is what it was.",
    "MISMATCH": "Bytes or records contradict each other.",
    "INCOMPLETE": "Something that is needed to know is not there.",
}

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #5b6470; --line: #d5dae0; --box: #f6f8fa;
  --good: #1a7f37; --bad: #c4161c; --open: #9a6700; --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1419; --text: #e3e8ee; --soft: #9aa5b1; --line: #333c46; --box: #1a2129;
  --good: #56d364; --bad: #ff7b72; --open: #e3b341; --link: #79c0ff; } }
body { background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1400px;
  padding: 24px; }
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 8px; }
h3 { font-size: 14px; margin: 14px 0 4px; }
a { color: var(--link); }
.code { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
.verdict { border: 2px solid; border-radius: 6px; padding: 0 10px; margin-right: 8px; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.open, .cached { color: var(--open); }
.soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
details { border: 1px solid var(--line); border-radius: 6px; padding: 6px 12px; margin: 6px 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details:target { outline: 2px solid var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
.graph { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
.graph svg { display: block; margin: 0 auto; }
svg text { fill: var(--text); font: 11px system-ui, sans-serif; text-anchor: middle; }
svg .head { font-weight: 700; font-size: 13px; }
svg rect { fill: var(--box); stroke: var(--soft); stroke-width: 1.5; }
svg .good rect { stroke: var(--good); }
svg .bad rect { stroke: var(--bad); stroke-width: 3; }
svg .open rect { stroke: var(--open); }
svg .cached rect { stroke: var(--open); stroke-dasharray: 6 4; }
svg .subject rect { stroke-width: 3.5; }
svg a:focus-visible rect { stroke: var(--link); stroke-width: 4; }
svg .edge { fill: none; stroke: var(--soft); stroke-width: 1.4; }
svg .copy { stroke-dasharray: 3 4; }
svg .tip { fill: var(--soft); }
@media print { .graph { overflow: visible; } }
"""


def render_html(result: AuditResult) -> str:
    """The report of an audit: graph, findings, artifacts with their files, executions, parameters. Equal results give equal text."""
    graph = draw(result)
    body = [
        _header(result),
        _section("Findings", _findings(result)),
        _section(
            "Graph",
            f'<div class="graph" role="region" aria-label="Graph" tabindex="0">{graph}</div>' if graph else "<p>No graph is known.</p>",
        ),
        _section("What it may mean", _candidates(result)) if result.candidates else "",
        _section("Artifacts and files", "".join(_artifact(node, key == result.subject) for key, node in result.nodes.items())),
        _section("Executions", "".join(_execution(item) for item in _by_time(result.graph.executions.values()))),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{_text(result.verdict)}: {_text(result.target)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(filter(None, body))
        + "\n</body></html>\n"
    )


def _header(result: AuditResult) -> str:
    style = {"VERIFIED": "good", "MISMATCH": "bad"}.get(result.verdict, "open")
    node = result.nodes.get(result.subject)
    rows = {
        "Artifact": f"{node.artifact.kind} {node.artifact.uri}" if node else "not known",
        "Content digest": f"sha256:{node.artifact.digest}" if node and node.artifact.digest else "none",
        "Read at": node.location if node and node.location else "nowhere",
        "Lineage store": result.store or "none: sidecars alone",
        "Compared": "sha256 of every file" if result.full else "names, sizes and recorded crc32c (quick)",
        "Audited": utc(result.at),
    }
    return (
        f'<header><h1><span class="verdict {style}">{result.verdict}</span>{_text(result.target)}</h1>'
        f'<p class="soft">{_MEANING[result.verdict]}</p>{_pairs(rows)}</header>'
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>" if content else ""


def _findings(result: AuditResult) -> str:
    style = {"MISMATCH": "bad", "INCOMPLETE": "open", "WARNING": "open", "INFO": "soft"}
    rows = [
        f'<tr><td class="{style[item.severity]}">{item.severity}</td><td class="code">{_text(item.subject)}</td>'
        f"<td>{_text(item.what)}</td><td>{_text(item.next_move)}</td></tr>"
        for item in result.findings
    ]
    return _table(("Severity", "Subject", "What", "Next move"), rows) if rows else "<p>None.</p>"


def _candidates(result: AuditResult) -> str:
    rows = [
        f'<tr><td>{item.kind}</td><td class="code">{_text(item.uri)}</td><td class="code">{item.digest or "none"}</td></tr>'
        for item in result.candidates
    ]
    return _table(("Kind", "Uri", "Content digest"), rows)


def _artifact(node: NodeCheck, is_open: bool) -> str:
    mark, style = MARKS[node.state]
    counts = ", ".join(f"{count} {state.lower()}" for state, count in sorted(Counter(row.state for row in node.files).items()))
    facts = {
        "Uri": node.artifact.uri,
        "Content digest": node.artifact.digest or "none",
        "Read at": node.location or "nowhere",
        **dict(sorted(node.artifact.metadata.items())),
    }
    parts = [_pairs(facts)]
    if node.statement:
        made_from = [f"{item.name}: {item.uri} {item.digest}" for item in node.statement.dependencies]
        told = {"Made by": f"{node.statement.run_id}/{node.statement.task}/{node.statement.attempt}", "Made from": "\n".join(made_from)}
        parts.append("<h3>Sidecar</h3>" + _pairs({**told, **dict(sorted(node.statement.details.items()))}))
        parts.append("<h3>Parameters</h3>" + _pairs(_plain(node.statement.parameters)) if node.statement.parameters else "")
    if node.files:
        bad = {"SAME": "good", "UNVERIFIED": "open"}
        rows = [
            f'<tr><td class="{bad.get(row.state, "bad")}">{row.state}</td><td class="code">{_text(row.path)}</td><td>{row.size:,}</td>'
            f'<td class="code">{_text(row.expected)}</td><td class="code">{"same" if row.found == row.expected else _text(row.found)}</td>'
            "</tr>"
            for row in node.files
        ]
        parts.append("<h3>Files</h3>" + _table(("State", "Path", "Bytes", "Recorded", "Found"), rows))
    summary = f'<span class="{style}">{mark} {node.state}</span> <b>{node.artifact.kind}</b> {_text(node.artifact.uri)}'
    summary += f' <span class="soft">{counts}</span>' if counts else ""
    return f'<details id="{anchor(node.artifact.id)}"{" open" if is_open else ""}><summary>{summary}</summary>{"".join(parts)}</details>'


def _execution(item: Execution) -> str:
    mark, style = MARKS[item.state]
    facts = {"Started": utc(item.started) if item.started else "unknown", "Took": _took(item), **dict(sorted(item.properties.items()))}
    parameters = "<h3>Parameters</h3>" + _pairs(_plain(item.parameters)) if item.parameters else ""
    summary = f'<span class="{style}">{mark} {item.state}</span> <b>{_text(item.task)}</b> {_text(item.id)}'
    return f'<details id="{anchor(item.id)}"><summary>{summary}</summary>{_pairs(facts)}{parameters}</details>'


def _took(item: Execution) -> str:
    return f"{item.finished - item.started:,.1f} s" if item.finished and item.started else "unknown"


def _by_time(executions: Iterable[Execution]) -> list[Execution]:
    return sorted(executions, key=lambda item: (item.started, item.id))


def _plain(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else canonical_json(value) for key, value in sorted(values.items())}


def _pairs(values: Mapping[str, str]) -> str:
    rows = [
        f'<tr><th scope="row">{_text(key)}</th><td class="code">{_text(value).replace(chr(10), "<br>")}</td></tr>'
        for key, value in values.items()
        if value
    ]
    return f"<table>{''.join(rows)}</table>"


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _text(value: str) -> str:
    return escape(_printable(value))


def _printable(value: str) -> str:
    """Text without the control characters that HTML cannot hold and a terminal obeys: each is shown as U+FFFD."""
    return "".join(character if character >= " " or character in "\n\t" else "\ufffd" for character in value.replace("\x7f", "\0"))


def render_text(result: AuditResult) -> str:
    """The audit for a terminal, a few lines where all is well."""
    node = result.nodes.get(result.subject)
    lines = [f"{result.verdict}  {result.target}"]
    if node:
        lines.append(f"  {node.artifact.kind}  {node.artifact.uri}")
        lines.append(f"  content  sha256:{node.artifact.digest or '(not taken)'}")
        lines += [f"  made by  {item.id} ({item.state}, {_took(item)})" for item in result.graph.producers(result.subject)[:1]]
        counts = Counter(str(row.state) for row in node.files)
        lines.append("  files    " + (", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none read"))
    others = [other for key, other in result.nodes.items() if key != result.subject]
    lines += [f"  from     {other.state:<10}  {other.artifact.kind:<10}  {other.artifact.uri}" for other in others]
    lines += [f"  may be   {item.kind}  {item.uri}  sha256:{item.digest or '(not taken)'}" for item in result.candidates]
    for item in result.findings:
        lines.append(f"{item.severity}  {item.subject}: {item.what}")
        if item.next_move:
            lines.append(f"  next: {item.next_move}")
    if result.verdict == "VERIFIED":
        states = [other.state for other in result.nodes.values() if other.state is not NodeState.NOTHING]
        good = states.count(NodeState.VERIFIED)
        lines.append(f"{good} of {len(states)} artifacts verified by their bytes; {len(result.graph.executions)} executions in the chain")
    return _printable("\n".join(lines) + "\n")
