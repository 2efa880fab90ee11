"""Groups of operations to be tiled together: both forms callers may write, as one.

A group is a tuple ``(ops, count)``, ``(ops, count, dims)`` or ``(ops, [(count, dims), …])``, or a
`TileGroup`, which is what all of them become.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from spyre.errors import SpyreError


@dataclass(frozen=True, slots=True)
class TileLevel:
    """One loop: its count, and the dim its iterations split.

    ``dim``: a place in the iteration space, the same in every operation, or the name of a dim,
    which each operation has where it has it, or not at all.
    """

    count: Any
    dim: int | str


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Operations that form one stretch of a loop body, and the loops around them.

    ``path``: loop_group_id of the operations, one entry per level, the outermost first.
    """

    path: tuple[int, ...]
    levels: tuple[TileLevel, ...]
    operations: tuple[Any, ...]


def tile_extent(extent: Any, count: Any) -> int | None:
    """Elements of each of ``count`` tiles of a dim, None where that is no whole number.

    Of sizes only a launch knows the quotient has to be a number: T for ``s0 // T`` tiles of s0,
    which then has to be a multiple of T.
    """
    whole, number = sympy.sympify(extent), sympy.sympify(count)
    if type(number).__name__ == "FloorDiv":
        number = number.args[0] / number.args[1]
    elif isinstance(number, sympy.floor):
        number = number.args[0]
    found = sympy.cancel(whole / number)
    return int(found) if found.is_Integer else None


def normalised(groups: Sequence[Any], tiled_dims: Sequence[int] | None) -> list[TileGroup]:
    """Every group as a TileGroup; groups given as tuples are numbered by their order.

    A level that names several dims becomes one loop per dim with the same count, so that all tiles
    are visited. ``tiled_dims``: dims of flat groups without dims of their own; None: dim 0.
    SpyreError SPY970 for any other form.
    """
    if groups and all(isinstance(group, TileGroup) for group in groups):
        return list(groups)
    return [_from_tuple(group, number, tiled_dims) for number, group in enumerate(groups)]


def _from_tuple(group: Any, number: int, tiled_dims: Sequence[int] | None) -> TileGroup:
    if not isinstance(group, tuple) or len(group) not in (2, 3):
        raise _wrong("a group is a tuple of operations, count and, if wanted, dims", group)
    operations, second, *rest = group
    if not isinstance(operations, Sequence) or not operations:
        raise _wrong("a group needs a list of operations", operations)
    if isinstance(second, list):
        if rest:
            raise _wrong("a nested group has its dims beside each count", rest[0])
        pairs = second
    else:
        dims = rest[0] if rest and rest[0] is not None else tiled_dims
        pairs = [(second, [0] if dims is None else dims)]
    levels = tuple(level for pair in pairs for level in _levels(pair))
    if not levels:
        raise _wrong("a group needs at least one loop", second)
    return TileGroup((number, *[0] * (len(levels) - 1)), levels, tuple(operations))


def _levels(pair: Any) -> list[TileLevel]:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Sequence):
        raise _wrong("a level is a pair of a count and a list of dims", pair)
    count, dims = pair
    if isinstance(count, bool) or not (isinstance(count, int) or hasattr(count, "free_symbols")):
        raise _wrong("a count is an int or a sympy expression", count)
    if isinstance(count, int) and count < 1:
        raise _wrong("a count is positive", count)
    if isinstance(dims, str) or not dims or len(set(dims)) != len(dims):
        raise _wrong("dims are a list of different places", dims)
    if any(isinstance(d, bool) or not isinstance(d, int) or d < 0 for d in dims):
        raise _wrong("a dim is a place in the iteration space, from 0", dims)
    return [TileLevel(count, dim) for dim in dims]


def _wrong(message: str, found: Any) -> SpyreError:
    return SpyreError(
        "SPY970",
        message,
        expected="(ops, K), (ops, K, dims) or (ops, [(K1, dims), (K2, dims)])",
        found=repr(found)[:200],
    )


def check_groups(operations: Sequence[Any], groups: Sequence[TileGroup]) -> None:
    """SpyreError unless each group, and all of one outer loop, lie side by side in ``operations``.

    SPY970: an operation of a group is not among them, or is in two groups; SPY971: a gap.
    """
    places = {id(op): place for place, op in enumerate(operations)}
    seen: dict[int, TileGroup] = {}
    for group in groups:
        for op in group.operations:
            if id(op) not in places or id(op) in seen:
                what = "is in two groups" if id(op) in seen else "is not in the graph"
                raise _wrong(f"operation {op.get_name()} of a tiling group {what}", group.path)
            seen[id(op)] = group
        found = [places[id(op)] for op in group.operations]
        _check_stretch(operations, found, group.path)
    for prefix in {g.path[:n] for g in groups for n in range(1, len(g.path) + 1)}:
        inside = [g for g in groups if g.path[: len(prefix)] == prefix]
        found = sorted(places[id(op)] for g in inside for op in g.operations)
        _check_stretch(operations, found, prefix)


def _check_stretch(operations: Sequence[Any], found: list[int], path: tuple[int, ...]) -> None:
    expected = list(range(found[0], found[0] + len(found)))
    if found == expected:
        return
    between = [
        operations[place].get_name()
        for place in range(min(found), max(found))
        if place not in found
    ]
    raise SpyreError(
        "SPY971",
        f"the operations of loop group {path} are not contiguous",
        expected="operations that follow each other, in their order",
        found=f"{', '.join(operations[p].get_name() for p in found)}"
        + (f"; between them {', '.join(between)}" if between else ""),
        hint="put what lies between into the group, or make two groups",
    )


def tiled_dims_of(operation: Any, levels: Sequence[TileLevel]) -> list[list[int]]:
    """Per level the place in the operation's iteration space it splits, empty for none."""
    stamped: list[list[int]] | None = getattr(operation, "loop_tiled_dims", None)
    if stamped is not None:
        return stamped
    names = getattr(operation, "named_dims", ())
    return [_places(level.dim, names) for level in levels]


def _places(dim: int | str, names: Sequence[str | None]) -> list[int]:
    if isinstance(dim, int):
        return [dim]
    return [names.index(dim)] if dim in names else []


def checked_groups_fn(function: Callable[..., Any]) -> Callable[..., Any]:
    """``coarse_tiling_groups_fn`` itself, if compile caches can name it.

    SpyreError SPY978 for lambdas and functions that are not at the top of a module.
    """
    name: str = getattr(function, "__qualname__", "")
    module: str | None = getattr(function, "__module__", None)
    found: Any = None
    if name.isidentifier() and module:
        found = getattr(importlib.import_module(module), name, None)
    if found is None or found != function:
        raise SpyreError(
            "SPY978",
            "coarse_tiling_groups_fn must be a named function of a module",
            found=name or repr(function),
            hint="compile caches pickle it by its name: no lambda, no nested function",
        )
    return function
