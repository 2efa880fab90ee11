"""Reductions over any dims: sums, means, extremes, products, variances, norms, truth; and cumsum.

Reductions of nothing need no program: their results are filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, nan, prod
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    BOOL,
    COMPUTED,
    CONVERTED,
    FLOATS,
    INTEGERS,
    OPERANDS,
    REDUCTION,
    Arguments,
    Conditions,
    EagerKernel,
    checked_dims,
    copy_into,
    fill,
    fill_number,
)
from spyre.torch_backend.eager.special import extreme, logarithm
from spyre.torch_backend.program import (
    Ints,
    Lowering,
    LoweringFunction,
    Value,
    other_lane,
    running_sum,
    stored_elements,
)

WIDE = "float32"
MAX_CUMULATIVE_ELEMENTS = 1 << 24
"""Elements a running sum may need room for with sticks along another dim."""


def dims_of(tensor: torch.Tensor, dim: Any) -> Ints:
    """Dims as torch names them: None or none given means all, negative ones count from the end."""
    rank = tensor.dim()
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    dims = checked_dims([dim] if isinstance(dim, int) else dim, rank)
    return tuple(sorted(dims)) if rank else ()


def reduced_sizes(sizes: Sequence[int], dims: Sequence[int], keepdim: bool) -> Ints:
    """Sizes after a reduction."""
    if keepdim:
        return tuple(1 if k in dims else n for k, n in enumerate(sizes))
    return tuple(n for k, n in enumerate(sizes) if k not in dims)


# --- lowerings: (low, x, dims, keepdim, dtype, …) -------------------------------------------------


def _reduced(name: str, low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
    result = low.reduce(name, low.convert(x, dtype), dims)
    return result.reshaped(reduced_sizes(x.sizes, dims, keepdim))


def _extreme(name: str, low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
    result = extreme(low, name, low.convert(x, dtype), dims)
    return result.reshaped(reduced_sizes(x.sizes, dims, keepdim))


def _mean(low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
    result = low.mean(low.convert(x, dtype), dims)
    return result.reshaped(reduced_sizes(x.sizes, dims, keepdim))


def _variance(
    low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str, correction: float, root: bool
) -> Value:
    # squares and their sum soon leave the range of 16-bit floats, in which the result lies
    x = low.convert(x, WIDE)
    centred = low.pointwise("sub", x, low.mean(x, dims))
    squares = low.reduce("sum", low.pointwise("mul", centred, centred), dims)
    count = max(prod(x.sizes[k] for k in dims) - correction, 0)
    result = low.pointwise("realdiv", squares, low.constant(count, WIDE))
    if root:
        result = low.pointwise("sqrt", result)
    return low.convert(result, dtype).reshaped(reduced_sizes(x.sizes, dims, keepdim))


def _norm(low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str, order: float) -> Value:
    inner = dtype if order in (inf, -inf, 0, 1) else WIDE
    magnitude = low.pointwise("abs", low.convert(x, inner))
    result = low.convert(_norm_of(low, magnitude, dims, order, inner), dtype)
    return result.reshaped(reduced_sizes(x.sizes, dims, keepdim))


def _norm_of(low: Lowering, magnitude: Value, dims: Ints, order: float, dtype: str) -> Value:
    if order == inf:
        return extreme(low, "max", magnitude, dims)
    if order == -inf:
        return extreme(low, "min", magnitude, dims)
    if order == 0:
        zero = low.constant(0, dtype)
        return low.reduce("sum", low.pointwise("notequal", magnitude, zero), dims)
    if order == 1:
        return low.reduce("sum", magnitude, dims)
    if order == 2:
        total = low.reduce("sum", low.pointwise("mul", magnitude, magnitude), dims)
        return low.pointwise("sqrt", total)
    exponent, inverse = low.constant(order, dtype), low.constant(1 / order, dtype)
    powers = low.pointwise("exp", low.pointwise("mul", logarithm(low, magnitude, dtype), exponent))
    total = logarithm(low, low.reduce("sum", powers, dims), dtype)
    return low.pointwise("exp", low.pointwise("mul", total, inverse))


def _truth(name: str, low: Lowering, x: Value, dims: Ints, keepdim: bool, dtype: str) -> Value:
    """any and all: the largest and the smallest of the truth values."""
    result = low.reduce(name, low.nonzero(x) if x.dtype != "bool" else x, dims)
    return low.truth(result.reshaped(reduced_sizes(x.sizes, dims, keepdim)))


def _each(low: Lowering, x: Value, dtype: str) -> Value:
    """Every element for itself, as ``dtype``."""
    return low.copy(x) if x.dtype == dtype else low.convert(x, dtype)


def _cumulated(low: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """Sums in float32, or in integers, rounded to ``dtype`` at the end."""
    inner = dtype if dtype in ("int32", "int64") else "float32"
    return low.convert(running_sum(low, low.convert(x, inner), dim), dtype)


# --- kernels: (label of the programs, lowering, *aten's arguments) -------------------------------


def over_dims(
    label: str,
    lowering: LoweringFunction,
    x: torch.Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """A reduction over ``dim``, in the dtype of the result."""
    dims = dims_of(x, dim)
    sizes = reduced_sizes(x.shape, dims, keepdim)
    return fill(label, lowering, [x], (dims, keepdim, name_of(out.dtype)), out, sizes)


def _extremes(
    x: torch.Tensor,
    *,
    dim: int | None = None,
    keepdim: bool = False,
    min: torch.Tensor,
    max: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::aminmax.out."""
    dims = () if dim is None else (dim,)
    least, most = torch.amin(x, dims, keepdim), torch.amax(x, dims, keepdim)
    return copy_into(min, least), copy_into(max, most)


def _truth_of_each(
    x: torch.Tensor, dim: Any, keepdim: bool = False, *, out: torch.Tensor
) -> torch.Tensor:
    """any and all over an empty list of dims, which for them means none, not all."""
    return fill("truth", _each, [x], ("bool",), out, x.shape)


def reduce_all(label: str, lowering: LoweringFunction, x: torch.Tensor) -> torch.Tensor:
    """Over all dims, into a new tensor of rank 0 (max and min without dim)."""
    result = torch.empty((), dtype=x.dtype, device=x.device)
    return fill(label, lowering, [x], (dims_of(x, None), False, name_of(x.dtype)), result)


def _product_of_all(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """aten::prod: a product over one dim."""
    return torch.prod(x.reshape(-1), 0, dtype=dtype)


def _fill_zero_size(
    number: float,
    x: torch.Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    """A reduction of nothing, which gives ``number``."""
    return fill_number(out, reduced_sizes(x.shape, dims_of(x, dim), keepdim), number)


def _variance_kernel(
    root: bool,
    x: torch.Tensor,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    dims = dims_of(x, dim)
    result = torch.empty(reduced_sizes(x.shape, dims, keepdim), dtype=x.dtype, device=x.device)
    taken = 1.0 if correction is None else float(correction)
    parameters = (dims, keepdim, name_of(x.dtype), taken, root)
    return fill("variance", _variance, [x], parameters, result)


def _variance_and_mean(
    x: torch.Tensor,
    dim: Any = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::var_mean.correction."""
    dims = dims_of(x, dim)
    return x.var(dims, correction=correction, keepdim=keepdim), x.mean(dims, keepdim)


def _variance_of_nothing(
    x: torch.Tensor, dim: Any = None, *, keepdim: bool = False, **_: Any
) -> torch.Tensor:
    sizes = reduced_sizes(x.shape, dims_of(x, dim), keepdim)
    return torch.full(sizes, nan, dtype=x.dtype, device=x.device)


def _vector_norm(
    x: torch.Tensor,
    order: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor,
) -> torch.Tensor:
    dims = dims_of(x, dim)
    parameters = (dims, keepdim, name_of(out.dtype), float(order))
    sizes = reduced_sizes(x.shape, dims, keepdim)
    return fill("vector_norm", _norm, [x], parameters, out, sizes)


def _norm_of_nothing(
    x: torch.Tensor,
    order: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    out: torch.Tensor,
    **_: Any,
) -> torch.Tensor:
    return fill_number(out, reduced_sizes(x.shape, dims_of(x, dim), keepdim), 0.0)


def cumsum(
    x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None, out: torch.Tensor
) -> torch.Tensor:
    if x.dim() == 0:
        return fill("cumsum", _each, [x], (name_of(out.dtype),), out, x.shape)
    return fill("cumsum", _cumulated, [x], (dim % x.dim(), name_of(out.dtype)), out, x.shape)


# --- the table -----------------------------------------------------------------------------------


def _has_norm(call: Arguments) -> bool:
    """Norms of nothing that are a number: others have no smallest or largest element to be."""
    if 0 <= call.ord < inf:
        return True
    return 0 in reduced_sizes(call.self.shape, dims_of(call.self, call.dim), call.keepdim)


def _names_no_dims(call: Arguments) -> bool:
    dim = getattr(call, "dim", None)
    return isinstance(dim, (list, tuple)) and not dim


def _has_room(call: Arguments) -> bool:
    """A running sum, with sticks along another dim, has room in memory."""
    if (rank := call.self.dim()) == 0:
        return True
    lane: Any = other_lane(call.self.shape, call.dim % rank)
    return stored_elements(call.self.shape, lane) <= MAX_CUMULATIVE_ELEMENTS


PLAIN = Conditions(values={"dtype": (None,)})
"""Arguments of functional variants whose result has the dtype of floating operands."""

_OF_NOTHING = Conditions(dtypes={"self": COMPUTED, "out": FLOATS}, empty=("self",))
_VARIANCE = Conditions(dtypes={"self": FLOATS}, nonempty=("self",))
_VARIANCE_OF_NOTHING = Conditions(dtypes={"self": FLOATS}, empty=("self",))
_ALL = Conditions(dtypes={"self": OPERANDS}, nonempty=("self",))
_TRUTH = Conditions(dtypes={"self": OPERANDS, "out": BOOL}, nonempty=("self",))
_TRUTH_OF_EACH = Conditions(dtypes={"self": CONVERTED, "out": BOOL}, check=_names_no_dims)
_LARGEST, _SMALLEST = partial(_extreme, "max"), partial(_extreme, "min")

KERNELS = (
    *(
        EagerKernel(name, partial(_fill_zero_size, number), _OF_NOTHING)
        for name, number in (("sum.IntList_out", 0.0), ("mean.out", nan), ("prod.int_out", 1.0))
    ),
    EagerKernel("sum.IntList_out", partial(over_dims, "sum", partial(_reduced, "sum")), REDUCTION),
    EagerKernel("mean.out", partial(over_dims, "mean", _mean), REDUCTION),
    EagerKernel("prod.int_out", partial(over_dims, "prod", partial(_reduced, "prod")), REDUCTION),
    EagerKernel("prod", _product_of_all),
    EagerKernel("amax.out", partial(over_dims, "amax", _LARGEST), REDUCTION),
    EagerKernel("amin.out", partial(over_dims, "amin", _SMALLEST), REDUCTION),
    EagerKernel(
        "aminmax.out",
        _extremes,
        Conditions(
            dtypes={"self": (*FLOATS, *INTEGERS)},
            same_dtype=("self", "results"),
            nonempty=("self",),
        ),
    ),
    EagerKernel("max", partial(reduce_all, "amax", _LARGEST), _ALL),
    EagerKernel("min", partial(reduce_all, "amin", _SMALLEST), _ALL),
    *(
        EagerKernel(f"{name}.correction", function, conditions)
        for name, root in (("var", False), ("std", True))
        for function, conditions in (
            (_variance_of_nothing, _VARIANCE_OF_NOTHING),
            (partial(_variance_kernel, root), _VARIANCE),
        )
    ),
    EagerKernel("var_mean.correction", _variance_and_mean, _VARIANCE),
    EagerKernel(
        "linalg_vector_norm.out",
        _norm_of_nothing,
        Conditions(dtypes={"out": FLOATS}, empty=("self",), check=_has_norm),
    ),
    EagerKernel("linalg_vector_norm.out", _vector_norm, REDUCTION),
    *(
        EagerKernel(f"{name}.{kind}", function, conditions)
        for name, lowering in (("any", partial(_truth, "max")), ("all", partial(_truth, "min")))
        for kind in ("out", "dims_out", "all_out")
        for function, conditions in (
            (_truth_of_each, _TRUTH_OF_EACH),
            (partial(over_dims, name, lowering), _TRUTH),
        )
    ),
    EagerKernel(
        "cumsum.out",
        cumsum,
        Conditions(
            dtypes={"self": CONVERTED, "out": (*FLOATS, *INTEGERS)},
            check=_has_room,
        ),
    ),
)
