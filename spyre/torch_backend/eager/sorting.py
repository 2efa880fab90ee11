"""The largest and smallest elements along a dim and their positions: top-k, sort, max, argmax.

Equal elements come in the order of their positions. NaN (in float32 only; the 16-bit format of the
card has none) is larger than infinity, and what max and min choose. The card ranks NaN as it likes:
it is put out of the way first, and the order of NaN and infinity is found apart. Integers are
ranked by their halves, which float32 holds: by the lower one first, then by the upper one, which
leaves those of equal upper halves in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

import torch

from spyre.torch_backend.eager.dispatch import (
    FLOAT,
    FLOATS,
    INTEGER,
    INTEGERS,
    ArgumentClass,
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


def takes_ranking(x: torch.Tensor, dim: int, count: int) -> bool:
    """True if the cores can rank along ``dim``."""
    if x.dtype not in FLOATS or not x.numel() or not count:
        return False
    dim = checked_dim(dim, x.dim())
    if x.dim() == 0:
        return True
    lane = other_lane(x.shape, dim)
    steps = x.shape[dim] * count
    return stored_elements(x.shape, lane) <= MAX_ELEMENTS and steps <= MAX_STEPS


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


def _takes_topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> bool:
    extent = _extent(x, dim)
    return 0 < k <= extent and takes_ranking(x, dim, k)


def sort(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, ...]:
    """aten::sort.stable."""
    return tuple(as_like(x, result) for result in _ranked(x, dim, _extent(x, dim), descending))


def _takes_sort(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> bool:
    extent = _extent(x, dim)
    return extent <= MAX_SORTED and takes_ranking(x, dim, extent)


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


def _takes_topk_words(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> bool:
    return 0 < k <= _extent(x, dim) and _takes_words(x, dim)


def _sort_words(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[torch.Tensor, ...]:
    results = _ranked_words(x, dim, _extent(x, dim), descending)
    return tuple(as_like(x, result) for result in results)


def _takes_sort_words(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> bool:
    return _takes_words(x, dim)


def _takes_words(x: torch.Tensor, dim: int) -> bool:
    """True if the cores can rank integers along ``dim``."""
    extent = _extent(x, dim)
    if x.dtype not in INTEGERS or not x.numel() or extent > MAX_SORTED:
        return False
    lane = other_lane(x.shape, checked_dim(dim, x.dim())) if x.dim() else -1
    return stored_elements(x.shape, lane) <= MAX_ELEMENTS


def _extreme(
    descending: bool, x: torch.Tensor, dim: int, keepdim: bool = False
) -> tuple[torch.Tensor, ...]:
    """aten::max.dim and min.dim."""
    return _ranked(x, dim, 0, descending, keepdim)


def _takes_extreme(x: torch.Tensor, dim: int, keepdim: bool = False) -> bool:
    return takes_ranking(x, dim, 1)


def _run_into(
    function: Callable[..., Any], names: tuple[str, ...], *args: Any, **named: Any
) -> Any:
    """``function`` with its results in tensors that the caller gives by these names."""
    targets = tuple(named.pop(name) for name in names)
    return _into(targets, function(*args, **named))


def _takes_into(
    takes: Callable[..., bool], names: tuple[str, ...], *args: Any, **named: Any
) -> bool:
    targets = [named.pop(name) for name in names]
    return takes(*args, **named) and targets[-1].dtype == torch.int64


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


def _takes_position(
    x: torch.Tensor, dim: int | None = None, keepdim: bool = False, *, out: torch.Tensor
) -> bool:
    if out.dtype != torch.int64:
        return False
    if dim is None:
        return x.dtype in FLOATS and 0 < x.numel() <= MAX_ELEMENTS // 64
    return takes_ranking(x, dim, 1)


_LARGEST, _SMALLEST = partial(_extreme, True), partial(_extreme, False)
_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "topk": (topk, _takes_topk),
    "sort.stable": (sort, _takes_sort),
    "max.dim": (_LARGEST, _takes_extreme),
    "min.dim": (_SMALLEST, _takes_extreme),
}
_WORD_FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., bool]]] = {
    "topk": (_topk_words, _takes_topk_words),
    "sort.stable": (_sort_words, _takes_sort_words),
}
_INTO: dict[str, tuple[str, tuple[str, str]]] = {
    "topk.values": ("topk", ("values", "indices")),
    "sort.values_stable": ("sort.stable", ("values", "indices")),
    "max.dim_max": ("max.dim", ("max", "max_values")),
    "min.dim_min": ("min.dim", ("min", "min_indices")),
}
"""Variants with given results: the function, and the names the results have."""

_BY_CLASS = {INTEGER: _WORD_FUNCTIONS, FLOAT: _FUNCTIONS}

KERNELS: dict[str, dict[ArgumentClass, EagerKernel]] = {
    **{
        name: {c: EagerKernel(*known[name]) for c, known in _BY_CLASS.items() if name in known}
        for name in _FUNCTIONS
    },
    **{
        name: {
            c: EagerKernel(
                partial(_run_into, known[function][0], results),
                partial(_takes_into, known[function][1], results),
            )
            for c, known in _BY_CLASS.items()
            if function in known
        }
        for name, (function, results) in _INTO.items()
    },
    "argmax.out": {FLOAT: EagerKernel(partial(_position, True), _takes_position)},
    "argmin.out": {FLOAT: EagerKernel(partial(_position, False), _takes_position)},
}
