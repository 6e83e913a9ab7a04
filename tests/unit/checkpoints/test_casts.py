import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneline.checkpoints.casts import cast, target_dtype
from tuneline.checkpoints.tensors import BF16, BY_TORCH_NAME, DTYPES, F16, F32, F64
from tuneline.core.errors import CheckpointError

WORDS = {F64: np.uint64, F32: np.uint32, F16: np.uint16, BF16: np.uint16}


def check(bits, source, target):
    """Our cast of the words `bits` equals torch's, and NaN stays NaN."""
    ours = torch.from_numpy(cast(bits.view(np.uint8).copy(), source, target).copy()).view(getattr(torch, target.name))
    theirs = torch.from_numpy(bits.view(np.uint8).copy()).view(getattr(torch, source.name)).to(getattr(torch, target.name))
    number = ~theirs.isnan()
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours[number], theirs[number])
    assert torch.equal(ours[number].signbit(), theirs[number].signbit())


@settings(max_examples=120, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.sampled_from([BF16, F16]))
def test_float32_rounds_as_torch_does(bits, target):
    check(np.array(bits, np.uint32), F32, target)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.floats() | st.floats(-1e5, 1e5) | st.floats(-1e-4, 1e-4), min_size=1, max_size=50), st.sampled_from([BF16, F16]))
def test_float64_rounds_as_torch_does(values, target):
    check(np.array(values, np.float64).view(np.uint64), F64, target)


@pytest.mark.parametrize(("source", "target"), [(a, b) for a in (F16, BF16) for b in (F16, BF16, F32, F64)])
def test_every_half_is_cast_as_torch_does(source, target):
    check(np.arange(2**16, dtype=np.uint16), source, target)


@pytest.mark.parametrize("target", [BF16, F16, F64])
def test_ties_carries_and_edges_of_float32(target):
    highs = np.arange(2**16, dtype=np.uint32) << 16
    for low in (0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        check(highs | np.uint32(low), F32, target)


def test_a_nan_with_only_low_bits_does_not_become_infinite():
    bits = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    words = cast(bits.view(np.uint8), F32, BF16).view(np.uint16)
    assert [hex(word) for word in words] == ["0x7fc0", "0xffc0", "0x7fff", "0xffff"]


def test_keep_returns_the_same_bytes():
    data = np.arange(8, dtype=np.uint8)
    assert cast(data, F32, F32) is data


def test_the_policy_casts_floats_only():
    for dtype in DTYPES:
        assert target_dtype(dtype, "keep") == dtype
        assert target_dtype(dtype, "bf16") == (BF16 if dtype in WORDS else dtype)
        assert target_dtype(dtype, "fp16") == (F16 if dtype in WORDS else dtype)
    assert target_dtype(BY_TORCH_NAME["float8_e5m2"], "bf16").code == "F8_E5M2"


def test_an_unknown_policy_names_the_choices():
    with pytest.raises(CheckpointError) as caught:
        target_dtype(F32, "int4")
    assert caught.value.choices == ("keep", "bf16", "fp16")
