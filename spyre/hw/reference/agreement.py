"""Allowed distances between engine and reference, in units of the stored format.

A distance is counted in ulp of the format a tensor is stored in: the number of codes between two
numbers. Sums may also differ by the error of float32 accumulation in another order, since a sum
that cancels is only as exact as its terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.dtypes import (
    DataFormat,
    FormatKind,
    Mode,
    NumericRules,
    decode_device,
    find_stored_format,
)
from spyre.hw.ops import Family
from spyre.mlir.operation import Operation

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

NOT_COMPARABLE = 1 << 40
"""Distance, in ulp, of a NaN from a number."""
_FLOAT32_UNIT = 2.0**-24


class Agreement(msgspec.Struct, frozen=True):
    """Allowed distance: ``ulps`` of formats up to 16 bits, ``wide_ulps`` of float32.

    The two sides evaluate functions by different formulas, which shows in float32 outputs:
    gelu, which multiplies a small tail, differs by up to 90 ulp; exp and its kin by 3.

    ``sums``: outputs may also differ by the float32 rounding of their sum, `sum_noise`.
    """

    ulps: int = 1
    wide_ulps: int = 128
    sums: bool = False

    def ulps_of(self, stored: DataFormat) -> int:
        """Allowed distance of elements stored as ``stored``; integers must be equal."""
        if not stored.is_float:
            return 0
        return self.ulps if stored.bits <= 16 else self.wide_ulps


EXACT = Agreement(0, 0)
COMPUTED = Agreement()
SUMMED = Agreement(wide_ulps=4, sums=True)

AGREEMENTS: dict[str, Agreement] = {
    Family.ELEMENTWISE: COMPUTED,
    Family.REDUCTION: SUMMED,
    Family.MATMUL: SUMMED,
    Family.COPY: EXACT,
    Family.CONVERT: EXACT,
    Family.RESTICKIFY: EXACT,
    Family.TOPK: EXACT,
    Family.PACKED_MATMUL: SUMMED,
    Family.WINDOWING: SUMMED,
    Family.REQUANTIZE: EXACT,
    Family.SHUFFLE: EXACT,
}
"""Tolerance of ``--verify`` per family; a family that is not listed computes sums."""


def agreement_of(family: str) -> Agreement:
    """Return the tolerance of a family of operations."""
    return AGREEMENTS.get(family, SUMMED)


def ulp_distance(found: Array, expected: Array, stored: DataFormat, mode: Mode) -> Int64Array:
    """Distance of every element of two byte arrays (uint8) that hold elements of ``stored``.

    Zeros of both signs are equal, and so are two NaNs; a NaN is NOT_COMPARABLE to a number.
    ``mode``: the number mode, which defines 16-bit floats. Elements smaller than a byte are
    compared byte by byte.
    """
    if stored.bits < 8:
        return np.asarray(found != expected, np.int64)
    a, b = (ordered_codes(side, stored) for side in (found, expected))
    distance: Int64Array = np.abs(a - b)
    different = np.flatnonzero(distance)
    if stored.is_float and different.size:
        rules = NumericRules(numerics=mode)
        nan = [np.isnan(_values(side, stored, rules)[different]) for side in (found, expected)]
        distance[different[nan[0] & nan[1]]] = 0
        distance[different[nan[0] ^ nan[1]]] = NOT_COMPARABLE
    return distance


def ordered_codes(content: Array, stored: DataFormat) -> Int64Array:
    """Elements of a byte array as integers in the order of their values; floats' zeros are 0."""
    unsigned = content.view(f"u{stored.bits // 8}")
    if stored.kind is FormatKind.SIGNED:
        return np.asarray(unsigned.view(f"i{stored.bits // 8}"), np.int64)
    codes = unsigned.astype(np.int64)
    if not stored.is_float:
        return codes
    sign = 1 << (stored.bits - 1)
    magnitude = codes & (sign - 1)
    return np.where(codes & sign, -magnitude, magnitude)


def decoded(content: Array, data_format: str, mode: Mode) -> Array:
    """The numbers of a byte array (uint8) that holds elements of ``data_format``."""
    return _values(content, find_stored_format(data_format), NumericRules(numerics=mode))


def _values(content: Array, stored: DataFormat, rules: NumericRules) -> Array:
    return decode_device(content.view(stored.code_dtype), stored.name, rules)


def sum_noise(op: Operation, inputs: Sequence[Sequence[Array]], mode: Mode) -> float:
    """Return the error of another order of float32 additions: 2^-24 · terms · largest term.

    ``inputs``: per input, the bytes (uint8) its cores may read. Terms are products of one element
    of every input (squares for exx2).
    """
    terms = prod(op.extents[dim] for dim in op.dims if not op.outputs[0].holds(dim))
    largest = [
        max(_largest(content, tensor.data_format, mode) for content in contents)
        for tensor, contents in zip(op.inputs, inputs, strict=True)
    ]
    term = max(prod(largest), largest[0] ** 2 if len(largest) == 1 else 0.0)
    return _FLOAT32_UNIT * max(terms, 1) * term


def _largest(content: Array, data_format: str, mode: Mode) -> float:
    """The largest finite magnitude among the elements of a byte array."""
    stored = find_stored_format(data_format)
    if stored.bits < 8:
        return float(1 << (stored.bits - 1))
    values = np.abs(decoded(content, data_format, mode).astype(np.float64))
    return float(values[np.isfinite(values)].max(initial=0.0))
