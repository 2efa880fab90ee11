"""Differences of numbers in units of the last place of the format they are stored in.

One unit (ULP) is the distance of neighbouring numbers of the format at the larger of the two
magnitudes; where two formats are compared, that of the coarser one there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import find_stored_format
from spyre.hw.numerics import Numerics

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]

DL16_SMALLEST = 2.0**-31 * (1 + 2.0**-9)
HALF_BEYOND = 65472.0
"""Numbers of at least this magnitude may round to binary16's infinity: DL16's last one below."""

_DL16 = (9, -31)
_HALF = (10, -14)
_FLOATS = {
    "IEEE_FP32": (23, -126),
    "IEEE_FP16": _HALF,
    "BFLOAT16": (7, -126),
    "SEN143_FP8": (3, -6),
    "SEN152_FP8": (2, -15),
}
"""Fraction bits and exponent of the smallest normal number."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The size of one ULP for values stored as ``data_format`` in two number modes."""

    data_format: str
    first: Numerics
    second: Numerics

    @property
    def holds_ieee(self) -> bool:
        """True if one side holds 16-bit floats as binary16, and the other as DL16."""
        modes = {self.first.mode == "ieee", self.second.mode == "ieee"}
        return self.data_format == "SEN169_FP16" and len(modes) == 2

    def size(self, magnitude: Float64Array) -> Float64Array:
        """ULP at finite magnitudes; 1 for integers and booleans."""
        if not find_stored_format(self.data_format).is_float:
            return np.ones_like(magnitude)
        if self.data_format != "SEN169_FP16":
            return _spacing(magnitude, *_FLOATS[self.data_format])
        sides = [n.mode == "ieee" for n in (self.first, self.second)]
        result = np.zeros_like(magnitude)
        if any(sides):
            result = _spacing(magnitude, *_HALF)
        if not all(sides):
            tiny = np.where(magnitude <= DL16_SMALLEST, DL16_SMALLEST, 0.0)
            result = np.maximum(np.maximum(result, _spacing(magnitude, *_DL16)), tiny)
        return result

    def half_units(self, numerics: Numerics) -> float:
        """Units one side's rounding may be off: half, or one where it cuts off."""
        cuts = numerics.mode != "ieee" and numerics.alu_rounding == "trunc"
        return 1.0 if cuts and self.data_format == "SEN169_FP16" else 0.5


def _spacing(magnitude: Float64Array, fraction_bits: int, lowest: int) -> Float64Array:
    _, exponent = np.frexp(magnitude)
    exponent = np.where(magnitude > 0, np.maximum(exponent - 1, lowest), lowest)
    return np.asarray(np.ldexp(1.0, exponent - fraction_bits), np.float64)


@dataclass(frozen=True, slots=True)
class Differences:
    """Two arrays compared element by element.

    ``absolute``: |a − b|; 0 where both are the same infinity or both NaN (or DL16's NINF against
    either), infinite where only one side is a number. ``units``: the same in ULP. ``beyond``: one
    side is infinite because binary16 cannot hold the other side's number.
    """

    absolute: Float64Array
    units: Float64Array
    beyond: npt.NDArray[np.bool_]


def differences(first: Array, second: Array, unit: Unit) -> Differences:
    """Compare decoded values of equal shape."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    if unit.holds_ieee:
        same |= (np.isnan(a) & np.isinf(b)) | (np.isinf(a) & np.isnan(b))
    magnitude = np.where(finite, np.maximum(np.abs(a), np.abs(b)), 1.0)
    absolute = np.full(a.shape, np.inf)
    np.subtract(a, b, out=absolute, where=finite)
    absolute = np.where(same, 0.0, np.abs(absolute))
    one_infinite = np.isinf(a) ^ np.isinf(b)
    number = np.where(np.isinf(a), b, a)
    with np.errstate(invalid="ignore"):
        beyond = one_infinite & (np.abs(number) >= HALF_BEYOND) & unit.holds_ieee
    return Differences(absolute, absolute / unit.size(magnitude), beyond)
