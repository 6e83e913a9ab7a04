"""Google's batch endpoint: one multipart/mixed request that carries many."""

from __future__ import annotations

import email
import email.message
import email.policy
from http import HTTPStatus
from typing import TYPE_CHECKING

from tests.fakes.server import Answer, Asked

if TYPE_CHECKING:
    from tests.fakes.server import App

_BOUNDARY = "batch_tuneline_fakes"


def run_batch(asked: Asked, app: App) -> Answer:
    """Answer each inner request by `app`, in order."""
    head = f"Content-Type: {asked.headers['content-type']}\r\n\r\n".encode()
    outer = email.message_from_bytes(head + asked.body, policy=email.policy.HTTP)
    parts = [_part(inner, asked, app) for inner in outer.iter_parts()]
    body = b"".join(f"--{_BOUNDARY}\r\n".encode() + part + b"\r\n" for part in parts) + f"--{_BOUNDARY}--\r\n".encode()
    return Answer(200, body, {"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"})


def _part(part: email.message.Message, asked: Asked, app: App) -> bytes:
    line, _, rest = bytes(part.get_payload(decode=True) or b"").partition(b"\n")
    verb, target, *_ = line.decode().split()
    inner = email.message_from_bytes(rest, policy=email.policy.HTTP)
    headers = {"authorization": asked.headers.get("authorization", "")} | {name.lower(): value for name, value in inner.items()}
    payload = inner.get_payload(decode=True)
    answer = app(Asked(verb, target, headers, payload.strip() if isinstance(payload, bytes) else b""))
    content_id = part["Content-ID"]
    lines = ["Content-Type: application/http"]
    if content_id:
        lines.append(f"Content-ID: {content_id.replace('<', '<response-', 1)}")
    lines += ["", f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    lines += [f"Content-Length: {len(answer.body)}", "", ""]
    return "\r\n".join(lines).encode() + answer.body
