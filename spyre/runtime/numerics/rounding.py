"""Differences in units of the last place (ULP), and how many of them rounding explains.

One ULP is the distance of neighbouring numbers of a format at the larger of the two magnitudes;
where two formats are compared, that of the coarser one there. The rule of a verdict is that of
docs/cli.md: each mode's rounding of the result and, for sums of many terms, the error of rounding
the partial sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.dtypes import FORMATS, find_stored_format
from spyre.hw.numerics import Numerics
from spyre.hw.ops import Family, decode_constant
from spyre.hw.plan_table import CHUNK, CHUNKED_REDUCTIONS
from spyre.hw.plans import CorePlan

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]

DL16_SMALLEST = 2.0**-31 * (1 + 2.0**-9)
HALF_BEYOND = 65472.0
"""Numbers of at least this magnitude may round to binary16's infinity: DL16's last one below."""


@dataclass(frozen=True, slots=True)
class UlpSize:
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
            return _spacing(magnitude, self.data_format)
        sides = [n.mode == "ieee" for n in (self.first, self.second)]
        result = np.zeros_like(magnitude)
        if any(sides):
            result = _spacing(magnitude, "IEEE_FP16")
        if not all(sides):
            tiny = np.where(magnitude <= DL16_SMALLEST, DL16_SMALLEST, 0.0)
            result = np.maximum(np.maximum(result, _spacing(magnitude, self.data_format)), tiny)
        return result

    def half_units(self, numerics: Numerics) -> float:
        """Units one side's rounding may be off: half, or one where it cuts off."""
        cuts = numerics.mode != "ieee" and numerics.alu_rounding == "trunc"
        return 1.0 if cuts and self.data_format == "SEN169_FP16" else 0.5


def _spacing(magnitude: Float64Array, data_format: str) -> Float64Array:
    """Distance of neighbouring numbers of a floating format at these magnitudes."""
    fraction_bits, lowest = FORMATS[data_format].precision
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


def differences(first: Array, second: Array, unit: UlpSize) -> Differences:
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


Numbers = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
UlpArray = npt.NDArray[np.float64]

_SELECTING = ("max", "min", "absmax")
"""Reductions whose result is one of the elements."""


def explained_units(
    plan: CorePlan,
    inputs: Sequence[Numbers],
    values: tuple[Numbers, Numbers],
    at: Int64Array,
    unit: UlpSize,
) -> UlpArray:
    """ULP that rounding explains, for the elements ``at`` of the two results ``values``.

    ``inputs``: numbers of the input operands, in any order.
    """
    sides = (unit.first, unit.second)
    pair = [v[at].astype(np.float64) for v in values]
    magnitude = np.maximum(*(np.where(np.isfinite(p), np.abs(p), 0.0) for p in pair))
    ulp = unit.size(magnitude)
    explained = np.full(ulp.shape, sum(unit.half_units(side) for side in sides))
    terms = _terms(plan)
    if terms == 1:
        return explained
    # Partial sums are larger than the result where terms cancel; their size is estimated by the
    # largest result and by what random signs would leave.
    partial = max(*(_largest(v) for v in values), _typical_sum(plan, inputs, terms))
    explained += terms * 2.0**-24 * partial / ulp
    if unit.data_format == "SEN169_FP16" and _adds_in_chunks(plan):
        rounded = sum(_chunk_units(side, terms) for side in sides)
        explained += rounded * unit.size(np.array([partial]))[0] / ulp
    return explained


def _typical_sum(plan: CorePlan, inputs: Sequence[Numbers], terms: int) -> float:
    """Four times the expected sum of ``terms`` products of the inputs' RMS with random signs."""
    op, spec = plan.op, plan.spec
    typical = 4 * sqrt(terms)
    if spec.family is Family.REDUCTION and spec.constants:
        name = spec.constants[0]
        typical *= abs(decode_constant(op.constants[name], op.constant_formats[name]))
    for numbers in inputs:
        used = numbers[np.isfinite(numbers) & (numbers != 0)].astype(np.float64)
        typical *= sqrt(float(np.mean(used**2))) if used.size else 0.0
    return typical


def _largest(values: Numbers) -> float:
    numbers = np.abs(values.astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


def _chunk_units(numerics: Numerics, terms: int) -> float:
    """ULP, at the size of partial sums, that accumulating in DL16 may cost; 0 in float32."""
    if not numerics.chunked:
        return 0.0
    within, chunks = min(terms, CHUNK), -(-terms // CHUNK)
    # Cutting off errs in one direction every time; rounding errors add up like a random walk.
    if numerics.alu_rounding == "trunc":
        return float(within + chunks)
    return min(2 * (sqrt(within) + sqrt(chunks)), (within + chunks) / 2)


def _adds_in_chunks(plan: CorePlan) -> bool:
    """True for operations that accumulate in DL16 in the chunked number mode."""
    return plan.spec.family is Family.MATMUL or plan.spec.kernel_op in CHUNKED_REDUCTIONS


def _terms(plan: CorePlan) -> int:
    """Elements of the iteration space that are combined into one; 1 where one is selected."""
    op = plan.op
    if plan.spec.kernel_op in _SELECTING or plan.spec.family is Family.TOPK:
        return 1
    read = [d for d in op.dims if any(t.holds(d) for t in op.inputs)]
    return prod(op.extents[d] for d in read if not op.outputs[0].holds(d))
