"""How far two number modes may differ in one execute of equal operands: the rule of a verdict.

The rule is that of docs/cli.md: each mode's rounding of the result, and where many terms are added
up, what rounding the partial sums costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.hw.core_plan import CorePlan
from spyre.hw.kernels.opcodes import CHUNK, CHUNKED_REDUCTIONS
from spyre.hw.numerics import Numerics
from spyre.hw.ops import Family
from spyre.hw.plans.context import decode_constant
from spyre.runtime.ulp import Unit

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_SELECTING = ("max", "min", "absmax")
"""Reductions whose result is one of the elements."""


def explained_units(
    plan: CorePlan,
    inputs: Sequence[Array],
    values: tuple[Array, Array],
    at: Int64Array,
    unit: Unit,
) -> Float64Array:
    """ULP that rounding explains, for the elements ``at`` of the two results ``values``.

    ``inputs``: numbers of the input operands, in any order.
    """
    sides = (unit.first, unit.second)
    pair = [v[at].astype(np.float64) for v in values]
    magnitude = np.maximum(*(np.where(np.isfinite(p), np.abs(p), 0.0) for p in pair))
    own = unit.size(magnitude)
    explained = np.full(own.shape, sum(unit.half_units(side) for side in sides))
    terms = _terms(plan)
    if terms == 1:
        return explained
    partial = max(*(_largest(v) for v in values), _typical_sum(plan, inputs, terms))
    explained += terms * 2.0**-24 * partial / own
    if unit.data_format == "SEN169_FP16" and _adds_in_chunks(plan):
        rounded = sum(_chunk_units(side, terms) for side in sides)
        explained += rounded * unit.size(np.array([partial]))[0] / own
    return explained


def _typical_sum(plan: CorePlan, inputs: Sequence[Array], terms: int) -> float:
    """Four times what ``terms`` products of the inputs' mean square add up to at random signs."""
    op, spec = plan.op, plan.spec
    typical = 4 * sqrt(terms)
    if spec.family is Family.REDUCTION and spec.constants:
        name = spec.constants[0]
        typical *= abs(decode_constant(op.constants[name], op.constant_formats[name]))
    for numbers in inputs:
        used = numbers[np.isfinite(numbers) & (numbers != 0)].astype(np.float64)
        typical *= sqrt(float(np.mean(used**2))) if used.size else 0.0
    return typical


def _largest(values: Array) -> float:
    numbers = np.abs(values.astype(np.float64))
    return float(numbers[np.isfinite(numbers)].max(initial=0.0))


def _chunk_units(numerics: Numerics, terms: int) -> float:
    """ULP, at the size of partial sums, that accumulating in DL16 may cost; 0 in float32."""
    if not numerics.chunked:
        return 0.0
    within, chunks = min(terms, CHUNK), -(-terms // CHUNK)
    if numerics.alu_rounding == "trunc":
        return float(within + chunks)
    return min(2 * (sqrt(within) + sqrt(chunks)), (within + chunks) / 2)


def _adds_in_chunks(plan: CorePlan) -> bool:
    """True for operations that accumulate in DL16 where the number mode says so."""
    return plan.spec.family is Family.MATMUL or plan.spec.kernel_op in CHUNKED_REDUCTIONS


def _terms(plan: CorePlan) -> int:
    """Elements of the iteration space that are combined into one; 1 where one is selected."""
    op = plan.op
    if plan.spec.kernel_op in _SELECTING or plan.spec.family is Family.TOPK:
        return 1
    read = [d for d in op.dims if any(t.holds(d) for t in op.inputs)]
    return prod(op.extents[d] for d in read if not op.outputs[0].holds(d))
