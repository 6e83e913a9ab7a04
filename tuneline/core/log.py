"""The log of a task and its events.

Log lines are for people and go to stdout. Events are for the program that watches a run: one JSON object a line,
appended to the file that TUNELINE_EVENTS names (nothing is written where it is unset, as on Vertex).
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

from tuneline.core.clock import SYSTEM

EVENTS_VARIABLE = "TUNELINE_EVENTS"


def get_logger(name: str) -> logging.Logger:
    """A logger below `tuneline`."""
    return logging.getLogger(f"tuneline.{name}")


def configure(level: int = logging.INFO) -> None:
    """Log lines to stdout as `time level message`."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger("tuneline")
    root.handlers[:] = [handler]
    root.setLevel(level)
    root.propagate = False


def event(kind: str, **fields: Any) -> None:
    """Append one event; a line below PIPE_BUF (4,096 bytes) never mixes with another writer's."""
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return
    line = json.dumps({"at": SYSTEM.now(), "kind": kind, **fields}, default=str)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (line + "\n").encode())
    finally:
        os.close(descriptor)
