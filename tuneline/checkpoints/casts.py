"""Float casts in numpy that round to nearest even as torch does; bfloat16 is handled as the upper half of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tuneline.checkpoints.disk import Bytes
from tuneline.checkpoints.refusal import refused
from tuneline.checkpoints.tensors import BF16, F16, F32, F64, DType

_FORMS: dict[DType, type[np.floating[Any]]] = {F16: np.float16, F32: np.float32, F64: np.float64}

#: What `dtype` parameters take; `keep` casts nothing.
POLICIES: dict[str, DType | None] = {"keep": None, "bf16": BF16, "fp16": F16}


def target_dtype(source: DType, policy: str) -> DType:
    """The dtype of a tensor after `policy` (a key of POLICIES): floats are cast, everything else is kept.

    Raises:
        CheckpointError: There is no such policy.
    """
    if policy not in POLICIES:
        raise refused("dtype", f"there is no policy {policy!r}", asked=policy, choices=list(POLICIES))
    target = POLICIES[policy]
    return target if target is not None and source.castable else source


def cast(data: Bytes, source: DType, target: DType) -> Bytes:
    """The elements in `data` (raw bytes, little-endian) as `target`.

    Rounds to nearest even; what is too large becomes infinite; NaN stays NaN, though its bits may differ from torch's.
    float64 goes by way of float32, as in torch.
    """
    if source == target:
        return data
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if target == F64 and source in (F16, F32):
            return data.view(_FORMS[source]).astype(np.float64).view(np.uint8)
        values = _to_float32(data, source)
        result: npt.NDArray[Any] = _to_bf16(values.view(np.uint32)) if target == BF16 else values.astype(_FORMS[target], copy=False)
    return result.view(np.uint8)


def _to_float32(data: Bytes, source: DType) -> npt.NDArray[np.float32]:
    if source == BF16:
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(_FORMS[source]).astype(np.float32, copy=False)


def _to_bf16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """float32 bits to bfloat16 bits: adding 0x7FFF plus the last kept bit carries exactly when nearest-even rounds up."""
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    result = rounded.astype(np.uint16)
    nan = np.isnan(bits.view(np.float32))  # the addition could carry a NaN into infinity
    if nan.any():
        result[nan] = (bits[nan] >> 16).astype(np.uint16) | 0x0040
    return result
