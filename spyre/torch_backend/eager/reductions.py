"""Reductions over any dims; cumsum; the largest elements along a dim and their positions.

Sums, means, extremes, products, variances, norms, truth; top-k, sort, max, argmax. Reductions of
nothing need no program: their results are filled in.

Equal elements keep the order of their positions. NaN (in float32 only; the card's 16-bit format has
none) ranks above infinity, and is the result of max and min. The card does not define the rank of
NaN, so NaN is replaced by infinity first, and a second sort orders the two. Integers are sorted by
their 16-bit halves, which float32 holds: by the lower one, then stably by the upper one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, nan, prod
from typing import Any

import torch
from msgspec.structs import replace

from spyre.torch_backend.compat import operator
from spyre.torch_backend.device import cpu_generator, name_of
from spyre.torch_backend.eager.dispatch import (
    BOOL,
    CONVERTED,
    FLOATS,
    INTEGERS,
    OPERANDS,
    POSITIONS,
    REDUCTION,
    Arguments,
    Conditions,
    as_like,
    copy_into,
    counted_dims,
    fill,
    fill_number,
    row,
)
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.special import Term, extreme, logarithm, terms_of
from spyre.torch_backend.fallback import decided_by_cpu
from spyre.torch_backend.program import (
    Ints,
    Lowering,
    LoweringError,
    LoweringFunction,
    Value,
    current_recorder,
    largest,
    off_lanes,
    other_lane,
    running_sum,
    stored_elements,
)

# --- order along a dim ---------------------------------------------------------------------------

MAX_ELEMENTS = 1 << 24
"""Elements a tensor may need room for with sticks along another dim."""
MAX_STEPS = 1 << 20
"""Comparisons per lane: the extent times k."""
MAX_SORTED = 256


def ranked(
    builder: Lowering, x: Value, dim: int, count: int, descending: bool, keeps: bool, both: bool
) -> Value | tuple[Value, ...]:
    """The first ``count`` along ``dim`` in falling or rising order, and their positions.

    ``count`` 0: the one that max and min choose, to which NaN is first in both orders; with
    ``both`` its value too. ``keeps``: the dim stays in the results.
    """
    if not count:
        results = _chosen(builder, x, dim, descending, both)
    elif x.dtype == "float32":
        results = _ordered_with_nan(builder, off_lanes(builder, x, dim), dim, count, descending)
    else:
        results = _ordered(builder, off_lanes(builder, x, dim), dim, count, descending)
    if not keeps:
        sizes = tuple(n for k, n in enumerate(x.sizes) if k != dim)
        results = [value.reshaped(sizes) for value in results]
    return tuple(results)


def _chosen(builder: Lowering, x: Value, dim: int, descending: bool, both: bool) -> list[Value]:
    """The choice of max or min along ``dim``, and its position: the first NaN if there is one."""
    values = [extreme(builder, "max" if descending else "min", x, (dim,))] if both else []
    x = off_lanes(builder, x, dim)
    key = x if descending else builder.pointwise("neg", x)
    if x.dtype == "float32":
        is_number = builder.pointwise("equal", x, x)
        is_nan = builder.pointwise("notequal", x, x)
        key = builder.pointwise("where3", builder.reduce("min", is_number, (dim,)), key, is_nan)
    return [*values, largest(builder, key, dim, 1, indices=True)]


def _ordered(builder: Lowering, x: Value, dim: int, count: int, descending: bool) -> list[Value]:
    """The first ``count`` elements in order, and their positions; there is no NaN."""
    key = x if descending else builder.pointwise("neg", x)
    values = largest(builder, key, dim, count, indices=False)
    positions = largest(builder, key, dim, count, indices=True)
    return [values if descending else builder.pointwise("neg", values), positions]


def _ordered_with_nan(
    builder: Lowering, x: Value, dim: int, count: int, descending: bool
) -> list[Value]:
    """As `_ordered`, of float32.

    With NaN as infinity the order is right but for the places that infinities and NaNs have in
    common, at one end. A second order, of the classes number, infinity and NaN, has these right.
    """
    nan_class, number_class = (2.0, 0.0) if descending else (0.0, 2.0)
    term = Term(builder, x)
    is_number = term.equal(term)
    as_infinite = is_number.chosen(term, inf)
    infinite_or_nan = is_number.chosen(1.0, nan_class)
    classes = as_infinite.equal(inf).chosen(infinite_or_nan, number_class).value
    values, positions = _ordered(builder, as_infinite.value, dim, count, descending)
    ranked_classes = Term(builder, largest(builder, classes, dim, count, indices=False))
    by_class = largest(builder, classes, dim, count, indices=True)
    values = ranked_classes.equal(nan_class).chosen(nan, Term(builder, values)).value
    # float32 holds positions
    chosen = (Term(builder, p).convert("float32") for p in (positions, by_class))
    positions = ranked_classes.equal(number_class).chosen(*chosen).convert("int64").value
    return [values, positions]


def _ranked(
    x: torch.Tensor, dim: int, count: int, descending: bool, keeps: bool = True, both: bool = True
) -> tuple[torch.Tensor, ...]:
    if x.dim() == 0:
        position = torch.zeros((), dtype=torch.int64, device=x.device)
        return (x.clone(), position) if both else (position,)
    return run("ranked", ranked, [x], (dim % x.dim(), count, descending, keeps, both))


def _extent(x: torch.Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


HALF_WORD = 1 << 16


def _ranked_words(
    x: torch.Tensor, dim: int, count: int, descending: bool
) -> tuple[torch.Tensor, ...]:
    """The first ``count`` integers along ``dim`` in order, and their positions."""
    extent = _extent(x, dim)
    lower, upper = torch.remainder(x, HALF_WORD).float(), torch.floor_divide(x, HALF_WORD).float()
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    by_lower = _ranked(lower, dim, extent, descending)[1]
    by_upper = _ranked(upper.gather(dim, by_lower), dim, count, descending)[1]
    positions = by_lower.gather(dim, by_upper)
    return x.gather(dim, positions), positions


def topk(rank: Callable[..., tuple[torch.Tensor, ...]], args: Arguments) -> Any:
    """aten::topk; the results are always in order."""
    return rank(args.self, args.dim, args.k, args.largest)


def sort(rank: Callable[..., tuple[torch.Tensor, ...]], args: Arguments) -> Any:
    x = args.self
    results = rank(x, args.dim, _extent(x, args.dim), args.descending)
    return tuple(as_like(x, result) for result in results)


def _extreme_float(descending: bool, args: Arguments) -> tuple[torch.Tensor, ...]:
    """aten::max.dim and min.dim."""
    return _ranked(args.self, args.dim, 0, descending, args.keepdim)


def _extreme_word(descending: bool, args: Arguments) -> tuple[torch.Tensor, ...]:
    """The same of integers."""
    value, marks = _marked(args.self, args.dim, descending)
    position = torch.argmax(marks, args.dim, keepdim=args.keepdim)
    return value.reshape(position.shape), position


def _marked(x: torch.Tensor, dims: Any, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest or smallest integers along dims, which stay, and 1.0 where they are."""
    value = (torch.amax if descending else torch.amin)(x, dims, keepdim=True)
    return value, (x == value).half()


def _into_results(function: Callable[..., Any], args: Arguments) -> Any:
    """Copy results to the tensors that are given for them."""
    return tuple(map(copy_into, args.results, function(args)))


def _position(descending: bool, args: Arguments) -> torch.Tensor:
    """aten::argmax.out and argmin.out; without ``dim`` all elements are one row."""
    x, keepdim, is_row = args.self, args.keepdim, args.dim is None
    if x.dtype in INTEGERS:
        (_, x), descending = _marked(x, () if is_row else args.dim, descending), True
    row, along = (x.reshape(-1), 0) if is_row else (x, args.dim)
    (position,) = _ranked(row, along, 0, descending, keepdim and not is_row, both=False)
    if is_row and keepdim:
        position = position.reshape((1,) * x.dim())
    return copy_into(args.out, position)


def multinomial(args: Arguments) -> torch.Tensor:
    """aten::multinomial of one sample or without replacement: the largest quotients of weights and
    exponentials, which are drawn on the host, as all random numbers are.
    """
    if current_recorder() is not None:
        raise LoweringError("random numbers")
    x = args.self
    if not bool((x.max() < inf) & (x.min() >= 0) & (x.sum(-1) > 0).all()):
        op, given = operator("multinomial"), (x, args.num_samples, args.replacement)
        refused: torch.Tensor = decided_by_cpu(op, *given, generator=args.generator)
        return refused
    drawn = torch.empty(x.shape, dtype=x.dtype, device="cpu")
    drawn.exponential_(generator=args.generator or cpu_generator(x.device.index))
    found = (x.float() / drawn.float().to(x.device)).topk(args.num_samples)[1]
    return copy_into(args.results[0], found) if args.results else found


def _rows_fit(x: torch.Tensor, dim: int) -> bool:
    """The tensor has room with sticks along another dim."""
    dims = x.dim()
    lane = other_lane(x.shape, dim % dims) if dims else -1
    return stored_elements(x.shape, lane) <= MAX_ELEMENTS


def _can_rank(x: torch.Tensor, dim: int, count: int) -> bool:
    """The cores can find the first ``count`` floats along ``dim``."""
    return x.dim() == 0 or (_rows_fit(x, dim) and _extent(x, dim) * count <= MAX_STEPS)


def _has_top(args: Arguments) -> bool:
    return bool(0 < args.k <= _extent(args.self, args.dim))


def _can_sort(args: Arguments) -> bool:
    return _extent(args.self, args.dim) <= MAX_SORTED and _rows_fit(args.self, args.dim)


def _can_find_one(args: Arguments) -> bool:
    if args.dim is None:
        return bool(args.self.numel() <= MAX_ELEMENTS // 64)
    return _can_rank(args.self, args.dim, 1)


_FLOATS = Conditions(dtypes={"self": FLOATS}, nonempty=("self",))
_WORDS = Conditions(dtypes={"self": INTEGERS}, nonempty=("self",))
_TOP = replace(
    _FLOATS, check=lambda args: _has_top(args) and _can_rank(args.self, args.dim, args.k)
)
_TOP_WORDS = replace(_WORDS, check=lambda args: _has_top(args) and _can_sort(args))
_ONE = replace(_FLOATS, check=_can_find_one)
_ONE_WORD = replace(_WORDS, check=_can_find_one)
_SORT = ("sort.stable", "sort.values_stable", "indices")
_FUNCTIONS: tuple[tuple[str, str, str, Callable[..., Any], Conditions], ...] = (
    ("topk", "topk.values", "indices", partial(topk, _ranked), _TOP),
    ("topk", "topk.values", "indices", partial(topk, _ranked_words), _TOP_WORDS),
    (*_SORT, partial(sort, _ranked), replace(_FLOATS, check=_can_sort)),
    (*_SORT, partial(sort, _ranked_words), replace(_WORDS, check=_can_sort)),
    ("max.dim", "max.dim_max", "max_values", partial(_extreme_float, True), _ONE),
    ("min.dim", "min.dim_min", "min_indices", partial(_extreme_float, False), _ONE),
    ("max.dim", "max.dim_max", "max_values", partial(_extreme_word, True), _ONE_WORD),
    ("min.dim", "min.dim_min", "min_indices", partial(_extreme_word, False), _ONE_WORD),
)
"""Operator, variant with given results, its name for positions, kernel and conditions."""

_DRAWN = Conditions(
    dtypes={"self": FLOATS, "out": POSITIONS},
    ranks={"self": (1, 2)},
    nonempty=("self",),
    check=lambda args: (
        0 < args.num_samples <= args.self.shape[-1]
        and (args.num_samples == 1 or not args.replacement)
        and _can_rank(args.self, -1, args.num_samples)
    ),
)


# --- reductions ----------------------------------------------------------------------------------

WIDE = "float32"


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
    (term,) = terms_of(builder, WIDE, x)
    centred = term - term.mean(dims)
    count = max(prod(x.sizes[k] for k in dims) - correction, 0)
    result = (centred * centred).reduce("sum", dims) / count
    return (result.sqrt() if root else result).convert(dtype).value


def _norm(builder: Lowering, x: Value, dims: Ints, dtype: str, order: float) -> Value:
    inner = dtype if order in (inf, -inf, 0, 1) else WIDE
    size = abs(Term(builder, builder.convert(x, inner)))
    if order in (inf, -inf):
        result = extreme(builder, "max" if order == inf else "min", size.value, dims)
        return builder.convert(result, dtype)
    if order == 0:
        size = size.apply("notequal", 0).reduce("sum", dims)
    elif order == 1:
        size = size.reduce("sum", dims)
    elif order == 2:
        size = (size * size).reduce("sum", dims).sqrt()
    else:
        total = (_logarithm(size) * order).exp().reduce("sum", dims)
        size = (_logarithm(total) * (1 / order)).exp()
    return size.convert(dtype).value


def _logarithm(x: Term) -> Term:
    return replace(x, value=logarithm(x.builder, x.value, x.value.dtype))


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


def _has_norm(args: Arguments) -> bool:
    """Norms of nothing that are a number: others have no smallest or largest element to be."""
    if 0 <= args.ord < inf:
        return True
    return 0 in _dims_and_sizes(args)[1]


def _names_no_dims(args: Arguments) -> bool:
    dim = getattr(args, "dim", None)
    return isinstance(dim, (list, tuple)) and not dim


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
        Conditions(
            dtypes={"self": CONVERTED, "out": (*FLOATS, *INTEGERS)},
            check=lambda args: args.self.dim() == 0 or _rows_fit(args.self, args.dim),
        ),
    ),
    ("multinomial", multinomial, _DRAWN),
    ("multinomial.out", multinomial, _DRAWN),
    *((name, function, conditions) for name, _, _, function, conditions in _FUNCTIONS),
    *(
        (
            variant,
            partial(_into_results, function),
            replace(conditions, dtypes={**conditions.dtypes, positions: POSITIONS}),
        )
        for _, variant, positions, function, conditions in _FUNCTIONS
    ),
    *(
        (
            name,
            partial(_position, descending),
            replace(_ONE, dtypes={"self": (*FLOATS, *INTEGERS), "out": POSITIONS}),
        )
        for name, descending in (("argmax.out", True), ("argmin.out", False))
    ),
)
