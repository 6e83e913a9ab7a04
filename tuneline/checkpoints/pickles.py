"""Pickles read without running them: a small machine that knows the opcodes torch writes and builds inert records.

Python's own unpickler is not used even with `find_class` restricted: it hashes what the file gives it (nested tuples take
exponential time) and sizes its memo by what the file says. Here nothing is imported or called, and work is linear in the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tuneline.checkpoints.refusal import refused
from tuneline.core.errors import CheckpointError

#: A checkpoint of 320,000 chunks has 24 million opcodes.
MAX_OPCODES = 40_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    """A global that the pickle names; it is never looked up."""

    module: str
    name: str

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"


class Record:
    """What calling or instantiating a global would have made.

    Attributes:
        kind: `module.name` of the global, or `persistent_id`.
        args: The arguments.
        state: What the pickle would have passed to `__setstate__`, None if nothing.
    """

    __slots__ = ("args", "kind", "state")

    def __init__(self, kind: str, args: tuple[Any, ...]) -> None:
        self.kind = kind
        self.args = args
        self.state: Any = None

    def fields(self) -> dict[str, Any]:
        """The attributes that the state sets; empty if it sets none by name."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2:  # (__dict__, slots)
            state = state[1] if state[0] is None else state[0]
        return state if isinstance(state, dict) else {}


Allowed = frozenset[tuple[str, str]]


def describe(value: Any) -> str:
    """`value` for an error message: short whatever it is, for a file may hold cycles and giants."""
    if isinstance(value, Record):
        return f"a {value.kind}"
    if isinstance(value, Name):
        return value.full
    if isinstance(value, str):
        return ascii(value[:100])
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return f"a {type(value).__name__}"


def load(data: bytes, allowed: Allowed, source: str) -> Any:
    """The value in the pickle `data`, of str, int, float, bool, None, tuple, list, dict, Name and Record.

    Args:
        allowed: The (module, name) pairs that the pickle may name, matched exactly.
        source: What error messages call the pickle.

    Raises:
        CheckpointError: It names anything else, uses an opcode that torch does not write, or is cut or malformed.
    """
    machine = _Machine(data, allowed, source)
    try:
        return machine.run()
    except CheckpointError:
        raise
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, struct.error) as error:
        raise machine.refused(f"is a malformed pickle ({type(error).__name__})") from error


class _Machine:
    """The stack machine. Handlers check what a hostile stream could abuse; any other inconsistency raises a plain error."""

    def __init__(self, data: bytes, allowed: Allowed, source: str) -> None:
        self.data = data
        self.at = 0
        self.allowed = allowed
        self.source = source
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def refused(self, reason: str) -> CheckpointError:
        return refused(self.source, f"{reason}, at byte {self.at}")

    def run(self) -> Any:
        data = self.data
        for _ in range(MAX_OPCODES):
            opcode = data[self.at]
            self.at += 1
            if opcode == 0x2E:  # STOP
                if self.marks or len(self.stack) != 1:
                    raise self.refused("is a malformed pickle (it stops in the middle)")
                return self.stack[0]
            step = _STEPS.get(opcode)
            if step is None:
                raise self.refused(f"uses the pickle opcode 0x{opcode:02x}, which torch does not write")
            step(self)
        raise self.refused(f"has more than {MAX_OPCODES} pickle opcodes")

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        end = self.at + count
        if end > len(self.data):
            raise self.refused("is cut short")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, form: str, size: int) -> int:
        value: int = struct.unpack(form, self.take(size))[0]
        return value

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def line(self) -> str:
        end = self.data.index(b"\n", self.at, self.at + 300)
        return self.take(end + 1 - self.at)[:-1].decode("ascii")

    # --- opcodes ---

    def proto(self) -> None:
        version = self.number("<B", 1)
        if version not in (2, 3, 4, 5):
            raise self.refused(f"has pickle protocol {version}")

    def frame(self) -> None:
        self.take(8)

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def none(self) -> None:
        self.stack.append(None)

    def true(self) -> None:
        self.stack.append(True)

    def false(self) -> None:
        self.stack.append(False)

    def int1(self) -> None:
        self.stack.append(self.data[self.at])
        self.at += 1

    def int2(self) -> None:
        self.stack.append(self.number("<H", 2))

    def int4(self) -> None:
        self.stack.append(self.number("<i", 4))

    def long1(self) -> None:
        size = self.number("<B", 1)
        if size > 9:  # a 64-bit number and its sign
            raise self.refused(f"holds an integer of {size} bytes")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def float8(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def text1(self) -> None:
        self.stack.append(self.take(self.number("<B", 1)).decode())

    def text4(self) -> None:
        self.stack.append(self.take(self.number("<I", 4)).decode())

    def tuple0(self) -> None:
        self.stack.append(())

    def tuple1(self) -> None:
        self.stack[-1] = (self.stack[-1],)

    def tuple2(self) -> None:
        last = self.stack.pop()
        self.stack[-1] = (self.stack[-1], last)

    def tuple3(self) -> None:
        last, middle = self.stack.pop(), self.stack.pop()
        self.stack[-1] = (self.stack[-1], middle, last)

    def tuple_since_mark(self) -> None:
        items = tuple(self.since_mark())
        self.stack.append(items)

    def empty_list(self) -> None:
        self.stack.append([])

    def empty_dict(self) -> None:
        self.stack.append({})

    def append(self) -> None:
        self.extend([self.stack.pop()])

    def appends(self) -> None:
        self.extend(self.since_mark())

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise self.refused("appends to what is no list")
        self.stack[-1].extend(items)

    def setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.update([key, value])

    def setitems(self) -> None:
        self.update(self.since_mark())

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise self.refused("sets items of what is no dict")
        for index in range(0, len(items), 2):
            key = items[index]
            if not isinstance(key, str | int | Record):  # Records hash by identity; tuples could take forever
                raise self.refused(f"has {describe(key)} as a key")
            if key in target:
                raise self.refused(f"sets the key {describe(key)} twice")
            target[key] = items[index + 1]

    def put1(self) -> None:
        self.memo[self.number("<B", 1)] = self.stack[-1]

    def put4(self) -> None:
        self.memo[self.number("<I", 4)] = self.stack[-1]

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get1(self) -> None:
        self.stack.append(self.memo[self.data[self.at]])
        self.at += 1

    def get4(self) -> None:
        self.stack.append(self.memo[self.number("<I", 4)])

    def global_lines(self) -> None:
        self.push_name(self.line(), self.line())

    def global_stack(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.push_name(module, name)

    def push_name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str) or (module, name) not in self.allowed:
            shown = f"{describe(module)}.{describe(name)}".replace("'", "")
            raise refused(
                self.source,
                f"names {shown}, which a checkpoint has no reason to name; nothing was run",
                found=shown,
                next_move="do not load this file with torch.load or pickle; take the checkpoint from where it was written",
            )
        self.stack.append(Name(module, name))

    def call(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        if isinstance(function, Record) and function.kind == "__builtin__.getattr" and isinstance(args, tuple):
            self.stack.append(Record("attribute", args))  # protocol 2 restores an enum's members by a method of it; here it stays a record
            return
        if not isinstance(function, Name) or not isinstance(args, tuple):
            raise self.refused(f"calls {describe(function)}")
        if function.full == "collections.OrderedDict" and not args:
            self.stack.append({})
        else:
            self.stack.append(Record(function.full, args))

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, dict) and isinstance(state, dict):  # attributes of a module's state dict (_metadata): nothing of the model's
            return
        if not isinstance(target, Record) or target.state is not None:
            raise self.refused(f"sets the state of {describe(target)}")
        target.state = state

    def persistent_id(self) -> None:
        self.stack.append(Record("persistent_id", (self.stack.pop(),)))


_STEPS: dict[int, Callable[[_Machine], None]] = {
    0x80: _Machine.proto,
    0x95: _Machine.frame,
    0x28: _Machine.mark,
    0x4E: _Machine.none,
    0x88: _Machine.true,
    0x89: _Machine.false,
    0x4B: _Machine.int1,
    0x4D: _Machine.int2,
    0x4A: _Machine.int4,
    0x8A: _Machine.long1,
    0x47: _Machine.float8,
    0x8C: _Machine.text1,
    0x58: _Machine.text4,
    0x29: _Machine.tuple0,
    0x85: _Machine.tuple1,
    0x86: _Machine.tuple2,
    0x87: _Machine.tuple3,
    0x74: _Machine.tuple_since_mark,
    0x5D: _Machine.empty_list,
    0x7D: _Machine.empty_dict,
    0x61: _Machine.append,
    0x65: _Machine.appends,
    0x73: _Machine.setitem,
    0x75: _Machine.setitems,
    0x71: _Machine.put1,
    0x72: _Machine.put4,
    0x94: _Machine.memoize,
    0x68: _Machine.get1,
    0x6A: _Machine.get4,
    0x63: _Machine.global_lines,
    0x93: _Machine.global_stack,
    0x52: _Machine.call,
    0x81: _Machine.call,  # NEWOBJ
    0x62: _Machine.build,
    0x51: _Machine.persistent_id,
}
