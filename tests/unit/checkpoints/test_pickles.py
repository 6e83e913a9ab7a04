import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.checkpoints.pickles import Name, Record, describe, load
from tuneline.core.errors import CheckpointError

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5) | st.lists(inner, max_size=5).map(tuple)
    ),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(VALUES, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_come_back(value, protocol):
    assert load(pickle.dumps(value, protocol), frozenset(), "x") == value


def test_objects_become_inert_records():
    value = load(pickle.dumps([Path("a"), OrderedDict()]), frozenset({("pathlib", "PosixPath"), ("collections", "OrderedDict")}), "x")
    assert isinstance(value[0], Record)
    assert (value[0].kind, value[0].args) == ("pathlib.PosixPath", ("a",))
    assert value[1] == {}


class Boom:
    def __init__(self, function, *args):
        self.parts = function, args

    def __reduce__(self):
        return self.parts


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "make",
    [
        lambda path: Boom(os.system, f"touch {path}"),
        lambda path: Boom(eval, f"open({str(path)!r}, 'w')"),
        lambda path: Boom(os.mkdir, str(path)),
        lambda path: {"a": [Boom(Path.touch, path)]},
    ],
)
def test_code_is_refused_and_not_run(tmp_path, make, protocol):
    target = tmp_path / "ran"
    data = pickle.dumps(make(target), protocol)
    allowed = frozenset({("pathlib", "PosixPath"), ("builtins", "getattr")})
    with pytest.raises(CheckpointError, match="nothing was run"):
        load(data, allowed, "x")
    assert not target.exists()
    pickle.loads(data)
    assert target.exists(), "the pickle would have done something"


def test_the_allow_list_is_exact():
    for module, name in (("torch", "Sizes"), ("torc", "Size"), ("torch.", "Size"), ("torch", "Size.x"), ("builtins", "Size")):
        data = b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n."
        with pytest.raises(CheckpointError, match="has no reason to name"):
            load(data, frozenset({("torch", "Size")}), "x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\x80\x09N.", "protocol 9"),
        (b"\x80\x02.", "stops in the middle"),
        (b"\x80\x02(N.", "stops in the middle"),
        (b"\x80\x02t.", "malformed"),
        (b"\x80\x02h\x05.", "malformed"),
        (b"\x80\x02r\xff\xff\xff\xff.", "malformed"),
        (b"\x80\x02X\xff\xff\xff\xffab.", "cut short"),
        (b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".", "an integer of 255 bytes"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "malformed"),
        (b"\x80\x02K\x05K\x01\x85R.", "calls 1|calls 5"),
        (b"\x80\x02]K\x01b.", "sets the state"),
        (b"\x80\x02}K\x01a.", "no list"),
        (b"\x80\x02]K\x01K\x02s.", "no dict"),
        (b"\x80\x02}(K\x01u.", "no dict"),
        (b"\x80\x02}(K\x01K\x02K\x01K\x03u.", "twice"),
        (b"\x80\x02}]N\x73.", "a list as a key"),
        (b"\x80\x02ctorch\nSize\n.", "has no reason to name"),
        (b"\x80\x02c" + b"a" * 1000, "malformed"),
        (b"I12\n.", "opcode 0x49"),
        (b"\x80\x02\x82\x01.", "opcode 0x82"),
        (b"\x80\x02i os\nsystem\n.", "opcode 0x69"),
    ],
)
def test_malformed_pickles_are_refused(data, reason):
    with pytest.raises(CheckpointError, match=reason):
        load(data, frozenset(), "x")


def test_a_tuple_that_takes_forever_to_hash_is_refused_at_once():
    data = b"\x80\x02})" + b"q\x00h\x00\x86" * 200 + b"Ns."
    with pytest.raises(CheckpointError, match="a tuple as a key"):
        load(data, frozenset(), "x")


def test_every_prefix_of_a_pickle_is_refused():
    data = pickle.dumps({"a": [1, 2.5, "b", (3, None)], "c": True})
    for length in range(len(data)):
        with pytest.raises(CheckpointError):
            load(data[:length], frozenset(), "x")


def test_a_cyclic_value_is_described_in_short():
    cycle = load(b"\x80\x02]q\x00h\x00a.", frozenset(), "x")
    assert describe(cycle) == "a list"
    assert describe("x" * 1000) == repr("x" * 100)
    assert describe(Name("torch", "int8")) == "torch.int8"


def test_state_of_slots_is_read():
    record = Record("m.C", ())
    record.state = (None, {"a": 1})
    assert record.fields() == {"a": 1}
    record.state = ("torch", struct)
    assert record.fields() == {}
