"""The largest and smallest elements along a dim and their positions: top-k, sort, max, argmax.

Equal elements keep the order of their positions. NaN (in float32 only; the card's 16-bit format has
none) ranks above infinity, and is the result of max and min. The card does not define the rank of
NaN, so NaN is replaced by infinity first, and a second sort orders the two. Integers are sorted by
their 16-bit halves, which float32 holds: by the lower one, then stably by the upper one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, nan
from typing import Any

import torch

from spyre.torch_backend.compat import operator
from spyre.torch_backend.device import cpu_generator
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    INTEGERS,
    POSITIONS,
    Arguments,
    Conditions,
    as_like,
    copy_into,
)
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.special import Term, extreme
from spyre.torch_backend.fallback import decided_by_cpu
from spyre.torch_backend.program import (
    Lowering,
    LoweringError,
    Value,
    current_recorder,
    largest,
    off_lanes,
    other_lane,
    stored_elements,
)

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
    """What max or min choose along ``dim``, and its position: the first NaN where there is one."""
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


# --- kernels -------------------------------------------------------------------------------------


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


def _extreme(descending: bool, args: Arguments) -> tuple[torch.Tensor, ...]:
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


# --- the table -----------------------------------------------------------------------------------


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
    ("max.dim", "max.dim_max", "max_values", partial(_extreme, True), _ONE),
    ("min.dim", "min.dim_min", "min_indices", partial(_extreme, False), _ONE),
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

KERNELS = (
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
