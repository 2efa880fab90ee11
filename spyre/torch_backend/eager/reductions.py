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
    CONVERTED,
    FLOATS,
    INTEGERS,
    OPERANDS,
    REDUCTION,
    Arguments,
    Conditions,
    copy_into,
    counted_dims,
    fill,
    fill_number,
    row,
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
    dims = counted_dims([dim] if isinstance(dim, int) else dim, rank)
    return tuple(sorted(dims)) if rank else ()


def reduced_sizes(sizes: Sequence[int], dims: Sequence[int], keepdim: bool) -> Ints:
    """Sizes after a reduction."""
    if keepdim:
        return tuple(1 if k in dims else n for k, n in enumerate(sizes))
    return tuple(n for k, n in enumerate(sizes) if k not in dims)


# --- lowerings: (builder, x, dims, dtype, …) → a value with extent 1 along the dims --------------


def _reduced(
    reduction: LoweringFunction,
    builder: Lowering,
    x: Value,
    dims: Ints,
    keepdim: bool,
    *parameters: Any,
) -> Any:
    """``reduction`` in the sizes that ``keepdim`` asks for."""
    result: Any = reduction(builder, x, dims, *parameters)
    return result.reshaped(reduced_sizes(x.sizes, dims, keepdim))


def _folded(name: str, builder: Lowering, x: Value, dims: Ints, dtype: str) -> Value:
    return builder.reduce(name, builder.convert(x, dtype), dims)


def _extreme(name: str, builder: Lowering, x: Value, dims: Ints, dtype: str) -> Value:
    return extreme(builder, name, builder.convert(x, dtype), dims)


def _mean(builder: Lowering, x: Value, dims: Ints, dtype: str) -> Value:
    return builder.mean(builder.convert(x, dtype), dims)


def _variance(
    builder: Lowering, x: Value, dims: Ints, dtype: str, correction: float, root: bool
) -> Value:
    # squares and their sum overflow 16-bit floats long before the result does
    x = builder.convert(x, WIDE)
    centred = builder.pointwise("sub", x, builder.mean(x, dims))
    squares = builder.reduce("sum", builder.pointwise("mul", centred, centred), dims)
    count = max(prod(x.sizes[k] for k in dims) - correction, 0)
    result = builder.pointwise("realdiv", squares, count)
    return builder.convert(builder.pointwise("sqrt", result) if root else result, dtype)


def _norm(builder: Lowering, x: Value, dims: Ints, dtype: str, order: float) -> Value:
    inner = dtype if order in (inf, -inf, 0, 1) else WIDE
    magnitude = builder.pointwise("abs", builder.convert(x, inner))
    if order in (inf, -inf):
        result = extreme(builder, "max" if order == inf else "min", magnitude, dims)
    elif order == 0:
        result = builder.reduce("sum", builder.pointwise("notequal", magnitude, 0), dims)
    elif order == 1:
        result = builder.reduce("sum", magnitude, dims)
    elif order == 2:
        squares = builder.pointwise("mul", magnitude, magnitude)
        result = builder.pointwise("sqrt", builder.reduce("sum", squares, dims))
    else:
        logarithms = builder.pointwise("mul", logarithm(builder, magnitude, inner), order)
        total = builder.reduce("sum", builder.pointwise("exp", logarithms), dims)
        root = builder.pointwise("mul", logarithm(builder, total, inner), 1 / order)
        result = builder.pointwise("exp", root)
    return builder.convert(result, dtype)


def _truth(name: str, builder: Lowering, x: Value, dims: Ints, dtype: str) -> Value:
    """any and all: the largest and the smallest of the truth values."""
    x = builder.nonzero(x) if x.dtype != "bool" else x
    return builder.truth(builder.reduce(name, x, dims))


def _each(builder: Lowering, x: Value, dtype: str) -> Value:
    """Every element for itself, as ``dtype``."""
    return builder.copy(x) if x.dtype == dtype else builder.convert(x, dtype)


def _cumulated(builder: Lowering, x: Value, dim: int, dtype: str) -> Value:
    """Sums in float32, or in integers, rounded to ``dtype`` at the end."""
    inner = dtype if dtype in ("int32", "int64") else "float32"
    return builder.convert(running_sum(builder, builder.convert(x, inner), dim), dtype)


# --- kernels -------------------------------------------------------------------------------------


def _dims_and_sizes(args: Arguments) -> tuple[Ints, Ints]:
    """The dims that a call reduces, and the sizes of its result."""
    dims = dims_of(args.self, getattr(args, "dim", None))
    return dims, reduced_sizes(args.self.shape, dims, getattr(args, "keepdim", False))


def over_dims(
    label: str, lowering: LoweringFunction, args: Arguments, *numbers: float
) -> torch.Tensor:
    """A reduction in the dtype of the result; ``numbers``: further parameters of the lowering.

    max and min of all elements, which have no ``out``, make a new tensor.
    """
    x, (dims, sizes) = args.self, _dims_and_sizes(args)
    out = args.out if hasattr(args, "out") else torch.empty((), dtype=x.dtype, device=x.device)
    parameters = (dims, getattr(args, "keepdim", False), name_of(out.dtype), *numbers)
    return fill(label, partial(_reduced, lowering), [x], parameters, out, sizes)


def _extremes(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    x, dims = args.self, () if args.dim is None else (args.dim,)
    least, most = torch.amin(x, dims, args.keepdim), torch.amax(x, dims, args.keepdim)
    return copy_into(args.min, least), copy_into(args.max, most)


def _truth_of_each(args: Arguments) -> torch.Tensor:
    """any and all over an empty list of dims, which for them means none, not all."""
    return fill("truth", _each, [args.self], ("bool",), args.out, args.self.shape)


def _fill_zero_size(number: float, args: Arguments) -> torch.Tensor:
    """A reduction of no elements, whose result is ``number``."""
    return fill_number(args.out, _dims_and_sizes(args)[1], number)


def _variance_kernel(root: bool, args: Arguments) -> torch.Tensor:
    x, (dims, sizes) = args.self, _dims_and_sizes(args)
    if not x.numel():
        return torch.full(sizes, nan, dtype=x.dtype, device=x.device)
    result = torch.empty(sizes, dtype=x.dtype, device=x.device)
    correction = 1.0 if args.correction is None else float(args.correction)
    parameters = (dims, args.keepdim, name_of(x.dtype), correction, root)
    return fill("variance", partial(_reduced, _variance), [x], parameters, result)


def _variance_and_mean(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    x, keepdim, dims = args.self, args.keepdim, dims_of(args.self, args.dim)
    return x.var(dims, correction=args.correction, keepdim=keepdim), x.mean(dims, keepdim)


def cumsum(args: Arguments) -> torch.Tensor:
    x, dtype = args.self, name_of(args.out.dtype)
    if x.dim() == 0:
        return fill("cumsum", _each, [x], (dtype,), args.out, x.shape)
    return fill("cumsum", _cumulated, [x], (args.dim % x.dim(), dtype), args.out, x.shape)


# --- the table -----------------------------------------------------------------------------------


def _has_norm(args: Arguments) -> bool:
    """Norms of nothing that are a number: others have no smallest or largest element to be."""
    if 0 <= args.ord < inf:
        return True
    return 0 in _dims_and_sizes(args)[1]


def _names_no_dims(args: Arguments) -> bool:
    dim = getattr(args, "dim", None)
    return isinstance(dim, (list, tuple)) and not dim


def _has_room(args: Arguments) -> bool:
    """A running sum, with sticks along another dim, has room in memory."""
    if (rank := args.self.dim()) == 0:
        return True
    lane: Any = other_lane(args.self.shape, args.dim % rank)
    return stored_elements(args.self.shape, lane) <= MAX_CUMULATIVE_ELEMENTS


PLAIN = Conditions(values={"dtype": (None,)})
"""Arguments of functional variants whose result has the dtype of floating operands."""

_OF_NOTHING = Conditions(dtypes={"self": CONVERTED, "out": (*FLOATS, *INTEGERS)}, empty=("self",))
_VARIANCE = Conditions(dtypes={"self": FLOATS}, nonempty=("self",))
_ALL = Conditions(dtypes={"self": OPERANDS}, nonempty=("self",))
_TRUTH = Conditions(dtypes={"self": OPERANDS, "out": BOOL}, nonempty=("self",))
_TRUTH_OF_EACH = Conditions(dtypes={"self": CONVERTED, "out": BOOL}, check=_names_no_dims)
_LARGEST, _SMALLEST = partial(_extreme, "max"), partial(_extreme, "min")

KERNELS = (
    *(
        (name, partial(_fill_zero_size, number), _OF_NOTHING)
        for name, number in (("sum.IntList_out", 0.0), ("mean.out", nan), ("prod.int_out", 1.0))
    ),
    ("sum.IntList_out", partial(over_dims, "sum", partial(_folded, "sum")), REDUCTION),
    ("mean.out", partial(over_dims, "mean", _mean), REDUCTION),
    ("prod.int_out", partial(over_dims, "prod", partial(_folded, "prod")), REDUCTION),
    ("prod", lambda args: torch.prod(args.self.reshape(-1), 0, dtype=args.dtype), None),
    ("amax.out", partial(over_dims, "amax", _LARGEST), REDUCTION),
    ("amin.out", partial(over_dims, "amin", _SMALLEST), REDUCTION),
    row(
        _extremes,
        "aminmax.out",
        dtypes={"self": (*FLOATS, *INTEGERS)},
        same_dtype=("self", "results"),
        nonempty=("self",),
    ),
    ("max", partial(over_dims, "amax", _LARGEST), _ALL),
    ("min", partial(over_dims, "amin", _SMALLEST), _ALL),
    row(partial(_variance_kernel, False), "var.correction", dtypes={"self": FLOATS}),
    row(partial(_variance_kernel, True), "std.correction", dtypes={"self": FLOATS}),
    ("var_mean.correction", _variance_and_mean, _VARIANCE),
    (
        "linalg_vector_norm.out",
        partial(_fill_zero_size, 0.0),
        Conditions(dtypes={"out": FLOATS}, empty=("self",), check=_has_norm),
    ),
    (
        "linalg_vector_norm.out",
        lambda args: over_dims("vector_norm", _norm, args, float(args.ord)),
        REDUCTION,
    ),
    *(
        (f"{name}.{kind}", function, conditions)
        for name, lowering in (("any", partial(_truth, "max")), ("all", partial(_truth, "min")))
        for kind in ("out", "dims_out", "all_out")
        for function, conditions in (
            (_truth_of_each, _TRUTH_OF_EACH),
            (partial(over_dims, name, lowering), _TRUTH),
        )
    ),
    (
        "cumsum.out",
        cumsum,
        Conditions(dtypes={"self": CONVERTED, "out": (*FLOATS, *INTEGERS)}, check=_has_room),
    ),
)
