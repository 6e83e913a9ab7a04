"""Lines of a job's console as the engines printed them: without colours, carriage returns and Ray's marks of who printed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

Row = dict[str, Any]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07")
#: `(TaskRunner pid=1234)`, `(pid=1234, ip=10.0.0.7)`, `(WorkerDict pid=1 [repeated 3x across cluster])`: the process that printed.
_PREFIX = re.compile(r"\((?:(?P<actor>[\w.<>:() -]+?) )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\w.:]+))?[^)]*\) ?")
_NUMBER = r"[-+]?(?:\d+(?:_\d+)*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"
#: A number as Python or NumPy 2 shows it.
NUMBER = rf"(?:np\.\w+\()?(?P<number>{_NUMBER})\)?"


def split(line: str) -> tuple[str, str]:
    """Who printed the line ('' for the driver), and what."""
    # A progress bar overwrites itself: only what stands last is on the screen, but a print may share its line.
    text = _ANSI.sub("", line.rstrip("\r\n"))
    found = _PREFIX.match(text.lstrip("\r"))
    if not found:
        return "", text
    return f"{found['pid']}@{found['ip'] or ''}", text.lstrip("\r")[found.end() :]


def clean(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """`split` of every line, once more where a carriage return puts several on one."""
    for line in lines:
        for part in line.rstrip("\r\n").split("\r"):
            if part:
                yield split(part)


def number(text: str) -> float | int | None:
    """The number that `text` shows, None where it shows none."""
    found = re.fullmatch(NUMBER, text.strip(), re.IGNORECASE)
    if not found:
        return None
    shown = found["number"].lower().replace("_", "")
    return int(shown) if re.fullmatch(r"[-+]?\d+", shown) else float(shown)


def finite(value: object) -> bool:
    """Whether a metric is a number that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
