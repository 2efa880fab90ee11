"""NaN in extremes of float32: the card's prefer numbers, torch's prefer NaN.

16-bit floats need nothing: their one code for infinity and NaN ranks above all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.program.value import Value


def with_nan(low: Lowering, found: Value, *operands: Value) -> Value:
    """``found``, an elementwise extreme, and NaN where an operand in float32 is."""
    for x in operands:
        if x.dtype == "float32":
            found = low.pointwise("where3", low.pointwise("equal", x, x), found, x)
    return found


def extreme(low: Lowering, name: str, x: Value, dims: Sequence[int]) -> Value:
    """The reduction max or min over ``dims``, NaN in float32 where one of the elements is."""
    found = low.reduce(name, x, dims)
    if x.dtype != "float32":
        return found
    numbers = low.reduce("min", low.pointwise("equal", x, x), dims)
    return low.pointwise("where3", numbers, found, low.constant(float("nan"), x.dtype))
