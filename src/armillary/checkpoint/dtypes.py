"""The element types that safetensors files name, and what torch calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class DType(NamedTuple):
    """Torch's name without prefix, and the bytes of one of torch's elements."""

    name: str
    itemsize: int


DTYPES: Mapping[str, DType] = {
    "F64": DType("float64", 8),
    "F32": DType("float32", 4),
    "F16": DType("float16", 2),
    "BF16": DType("bfloat16", 2),
    "F8_E4M3": DType("float8_e4m3fn", 1),
    "F8_E4M3FNUZ": DType("float8_e4m3fnuz", 1),
    "F8_E5M2": DType("float8_e5m2", 1),
    "F8_E5M2FNUZ": DType("float8_e5m2fnuz", 1),
    "F8_E8M0": DType("float8_e8m0fnu", 1),
    # two values a byte: the file counts values, torch counts bytes (see `header`)
    "F4": DType("float4_e2m1fn_x2", 1),
    "C64": DType("complex64", 8),
    "I64": DType("int64", 8),
    "I32": DType("int32", 4),
    "I16": DType("int16", 2),
    "I8": DType("int8", 1),
    "U64": DType("uint64", 8),
    "U32": DType("uint32", 4),
    "U16": DType("uint16", 2),
    "U8": DType("uint8", 1),
    "BOOL": DType("bool", 1),
}
"""safetensors code -> torch type. Packed 6-bit floats (F6_*) are left out: torch has no type for them."""

BY_NAME: Mapping[str, DType] = {dtype.name: dtype for dtype in DTYPES.values()}
"""Torch's name -> the same torch types."""
