"""The largest and smallest elements along a dim and their positions: top-k, sort, max, argmax.

Equal elements come in the order of their positions. NaN (in float32 only; the 16-bit format of the
card has none) is larger than infinity, and what max and min choose. The card ranks NaN as it likes:
it is put out of the way first, and the order of NaN and infinity is found apart. Integers are
ranked by their halves, which float32 holds: by the lower one first, then by the upper one, which
leaves those of equal upper halves in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, nan
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    INTEGERS,
    POSITIONS,
    Arguments,
    Conditions,
    EagerKernel,
    as_like,
    checked_dim,
)
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.special import extreme
from spyre.torch_backend.program import (
    Lowering,
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
    low: Lowering, x: Value, dim: int, count: int, descending: bool, keeps: bool, both: bool
) -> Value | tuple[Value, ...]:
    """The first ``count`` along ``dim`` in falling or rising order, and their positions.

    ``count`` 0: the one that max and min choose, to which NaN is first in both orders; with
    ``both`` its value too. ``keeps``: the dim stays in the results.
    """
    if not count:
        results = _chosen(low, x, dim, descending, both)
    elif x.dtype == "float32":
        results = _ordered_with_nan(low, off_lanes(low, x, dim), dim, count, descending)
    else:
        results = _ordered(low, off_lanes(low, x, dim), dim, count, descending)
    if not keeps:
        sizes = tuple(n for k, n in enumerate(x.sizes) if k != dim)
        results = [value.reshaped(sizes) for value in results]
    return tuple(results)


def _chosen(low: Lowering, x: Value, dim: int, descending: bool, both: bool) -> list[Value]:
    """What max or min choose along ``dim``, and its position: the first NaN where there is one."""
    values = [extreme(low, "max" if descending else "min", x, (dim,))] if both else []
    x = off_lanes(low, x, dim)
    key = x if descending else low.pointwise("neg", x)
    if x.dtype == "float32":
        is_number = low.pointwise("equal", x, x)
        is_nan = low.pointwise("notequal", x, x)
        key = low.pointwise("where3", low.reduce("min", is_number, (dim,)), key, is_nan)
    return [*values, largest(low, key, dim, 1, indices=True)]


def _ordered(low: Lowering, x: Value, dim: int, count: int, descending: bool) -> list[Value]:
    """The first ``count`` elements in order, and their positions; there is no NaN."""
    key = x if descending else low.pointwise("neg", x)
    values = largest(low, key, dim, count, indices=False)
    positions = largest(low, key, dim, count, indices=True)
    return [values if descending else low.pointwise("neg", values), positions]


def _ordered_with_nan(
    low: Lowering, x: Value, dim: int, count: int, descending: bool
) -> list[Value]:
    """As `_ordered`, of float32.

    With NaN as infinity the order is right but for the places that infinities and NaNs have in
    common, at one end. A second order, of the classes number, infinity and NaN, has these right.
    """
    infinity = low.constant(inf, "float32")
    nan_class, number_class = (2.0, 0.0) if descending else (0.0, 2.0)
    is_number = low.pointwise("equal", x, x)
    as_infinite = low.pointwise("where3", is_number, x, infinity)
    classes = low.pointwise(
        "where3",
        low.pointwise("equal", as_infinite, infinity),
        low.pointwise("where3", is_number, *(low.constant(c, "float32") for c in (1.0, nan_class))),
        low.constant(number_class, "float32"),
    )
    values, positions = _ordered(low, as_infinite, dim, count, descending)
    ranked_classes = largest(low, classes, dim, count, indices=False)
    by_class = largest(low, classes, dim, count, indices=True)
    nan_here = low.pointwise("equal", ranked_classes, low.constant(nan_class, "float32"))
    values = low.pointwise("where3", nan_here, low.constant(nan, "float32"), values)
    number_here = low.pointwise("equal", ranked_classes, low.constant(number_class, "float32"))
    return [values, _either(low, number_here, positions, by_class)]


def _either(low: Lowering, condition: Value, a: Value, b: Value) -> Value:
    """Positions, which float32 holds, from ``a`` or from ``b``."""
    a, b = low.convert(a, "float32"), low.convert(b, "float32")
    return low.convert(low.pointwise("where3", condition, a, b), "int64")


def _ranked(
    x: torch.Tensor, dim: int, count: int, descending: bool, keeps: bool = True, both: bool = True
) -> tuple[torch.Tensor, ...]:
    dim = checked_dim(dim, x.dim())
    if x.dim() == 0:
        position = torch.zeros((), dtype=torch.int64, device=x.device)
        return (x.clone(), position) if both else (position,)
    return run("ranked", ranked, [x], (dim, count, descending, keeps, both))


def _extent(x: torch.Tensor, dim: int) -> int:
    dim = checked_dim(dim, x.dim())
    return x.shape[dim] if x.dim() else 1


def _into(targets: Any, results: tuple[torch.Tensor, ...]) -> Any:
    if current_recorder() is not None:
        return results
    for target, source in zip(targets, results, strict=True):
        if target.shape != source.shape:
            target.resize_(source.shape)
        target.copy_(source)
    return targets


# --- kernels: each once for new results, once for given ones ------------------------------------


def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, ...]:
    """aten::topk; the results are in order always."""
    return _ranked(x, dim, k, largest)


def sort(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, ...]:
    """aten::sort.stable."""
    return tuple(as_like(x, result) for result in _ranked(x, dim, _extent(x, dim), descending))


HALF_WORD = 1 << 16


def _ranked_words(
    x: torch.Tensor, dim: int, count: int, descending: bool
) -> tuple[torch.Tensor, ...]:
    """The first ``count`` integers along ``dim`` in order, and their positions."""
    dim, extent = checked_dim(dim, x.dim()), _extent(x, dim)
    lower, upper = torch.remainder(x, HALF_WORD).float(), torch.floor_divide(x, HALF_WORD).float()
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    by_lower = _ranked(lower, dim, extent, descending)[1]
    by_upper = _ranked(upper.gather(dim, by_lower), dim, count, descending)[1]
    positions = by_lower.gather(dim, by_upper)
    return x.gather(dim, positions), positions


def _topk_words(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, ...]:
    return _ranked_words(x, dim, k, largest)


def _sort_words(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, ...]:
    results = _ranked_words(x, dim, _extent(x, dim), descending)
    return tuple(as_like(x, result) for result in results)


def _extreme(
    descending: bool, x: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, ...]:
    """aten::max.dim and min.dim."""
    return _ranked(x, dim, 0, descending, keepdim)


def _run_into(
    function: Callable[..., Any], names: tuple[str, ...], *args: Any, **named: Any
) -> Any:
    """``function`` with its results in tensors that the caller gives by these names."""
    targets = tuple(named.pop(name) for name in names)
    return _into(targets, function(*args, **named))


def _position(
    descending: bool,
    x: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """aten::argmax.out and argmin.out; without ``dim`` all elements are one row."""
    row, along = (x.reshape(-1), 0) if dim is None else (x, dim)
    (position,) = _ranked(row, along, 0, descending, keepdim and dim is not None, both=False)
    if dim is None and keepdim:
        position = position.reshape((1,) * x.dim())
    (result,) = _into((out,), (position,))
    return result


# --- the table -----------------------------------------------------------------------------------


def _rows_fit(x: torch.Tensor, dim: int) -> bool:
    """The tensor has room with sticks along another dim."""
    dims = x.dim()
    lane = other_lane(x.shape, dim % dims) if dims else -1
    return stored_elements(x.shape, lane) <= MAX_ELEMENTS


def _can_rank(x: torch.Tensor, dim: int, count: int) -> bool:
    """The cores can find the first ``count`` floats along ``dim``."""
    return x.dim() == 0 or (_rows_fit(x, dim) and _extent(x, dim) * count <= MAX_STEPS)


def _has_top(call: Arguments) -> bool:
    return bool(0 < call.k <= _extent(call.self, call.dim))


def _can_rank_top(call: Arguments) -> bool:
    return _has_top(call) and _can_rank(call.self, call.dim, call.k)


def _is_short(call: Arguments) -> bool:
    return _extent(call.self, call.dim) <= MAX_SORTED


def _can_sort(call: Arguments) -> bool:
    return _is_short(call) and _can_rank(call.self, call.dim, _extent(call.self, call.dim))


def _can_sort_words(call: Arguments) -> bool:
    return _is_short(call) and _rows_fit(call.self, call.dim)


def _can_find_one(call: Arguments) -> bool:
    if call.dim is None:
        return bool(call.self.numel() <= MAX_ELEMENTS // 64)
    return _can_rank(call.self, call.dim, 1)


_FLOATS = Conditions(dims=("dim",), dtypes={"self": FLOATS}, nonempty=("self",))
_WORDS = Conditions(dims=("dim",), dtypes={"self": INTEGERS}, nonempty=("self",))
_TOP_WORDS = replace(_WORDS, check=lambda call: _has_top(call) and _can_sort_words(call))
_ONE = replace(_FLOATS, check=_can_find_one)
_FUNCTIONS: tuple[tuple[str, Callable[..., Any], Conditions, str, str, str], ...] = (
    ("topk", topk, replace(_FLOATS, check=_can_rank_top), "topk.values", "values", "indices"),
    ("topk", _topk_words, _TOP_WORDS, "topk.values", "values", "indices"),
    (
        *("sort.stable", sort, replace(_FLOATS, check=_can_sort)),
        *("sort.values_stable", "values", "indices"),
    ),
    (
        *("sort.stable", _sort_words, replace(_WORDS, check=_can_sort_words)),
        *("sort.values_stable", "values", "indices"),
    ),
    ("max.dim", partial(_extreme, True), _ONE, "max.dim_max", "max", "max_values"),
    ("min.dim", partial(_extreme, False), _ONE, "min.dim_min", "min", "min_indices"),
)
"""Operator, kernel, conditions, and the variant with given results: its name and theirs."""

KERNELS = (
    *(EagerKernel(name, function, conditions) for name, function, conditions, *_ in _FUNCTIONS),
    *(
        EagerKernel(
            variant,
            partial(_run_into, function, (values, positions)),
            replace(conditions, dtypes={**conditions.dtypes, positions: POSITIONS}),
        )
        for _, function, conditions, variant, values, positions in _FUNCTIONS
    ),
    *(
        EagerKernel(
            name,
            partial(_position, descending),
            replace(_ONE, dtypes={"self": FLOATS, "out": POSITIONS}),
        )
        for name, descending in (("argmax.out", True), ("argmin.out", False))
    ),
)
