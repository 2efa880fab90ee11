"""Groups of operations that are tiled together: as callers write them, and as hints ask for them.

A group is a tuple ``(ops, count)``, ``(ops, count, dims)`` or ``(ops, [(count, dims), …])``, or a
`TileGroup`, which is what all of them become. `assign_dim_hints` runs after
`propagate_named_dims`; `hints_to_coarse_tile_groups` makes groups of ``operation.dim_hints``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sympy

from spyre.errors import SpyreError
from spyre.torch_backend.device import warn_user
from spyre.torch_backend.inductor.hints import HintScope, declared_extent, scopes_of
from spyre.torch_backend.inductor.lowering import program_of
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation


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
    quotient = sympy.cancel(whole / number)
    return int(quotient) if quotient.is_Integer else None


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
        raise _wrong_group("a group is a tuple of operations, count and, if wanted, dims", group)
    operations, second, *rest = group
    if not isinstance(operations, Sequence) or not operations:
        raise _wrong_group("a group needs a list of operations", operations)
    if isinstance(second, list):
        if rest:
            raise _wrong_group("a nested group has its dims beside each count", rest[0])
        pairs = second
    else:
        dims = rest[0] if rest and rest[0] is not None else tiled_dims
        pairs = [(second, [0] if dims is None else dims)]
    levels = tuple(level for pair in pairs for level in _levels(pair))
    if not levels:
        raise _wrong_group("a group needs at least one loop", second)
    return TileGroup((number, *[0] * (len(levels) - 1)), levels, tuple(operations))


def _levels(pair: Any) -> list[TileLevel]:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Sequence):
        raise _wrong_group("a level is a pair of a count and a list of dims", pair)
    count, dims = pair
    if isinstance(count, bool) or not (isinstance(count, int) or hasattr(count, "free_symbols")):
        raise _wrong_group("a count is an int or a sympy expression", count)
    if isinstance(count, int) and count < 1:
        raise _wrong_group("a count is positive", count)
    if isinstance(dims, str) or not dims or len(set(dims)) != len(dims):
        raise _wrong_group("dims are a list of different places", dims)
    if any(isinstance(d, bool) or not isinstance(d, int) or d < 0 for d in dims):
        raise _wrong_group("a dim is a place in the iteration space, from 0", dims)
    return [TileLevel(count, dim) for dim in dims]


def _wrong_group(message: str, found: Any) -> SpyreError:
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
                raise _wrong_group(
                    f"operation {op.get_name()} of a tiling group {what}", group.path
                )
            seen[id(op)] = group
        positions = [places[id(op)] for op in group.operations]
        _check_contiguous(operations, positions, group.path)
    for prefix in {g.path[:n] for g in groups for n in range(1, len(g.path) + 1)}:
        inside = [g for g in groups if g.path[: len(prefix)] == prefix]
        positions = sorted(places[id(op)] for g in inside for op in g.operations)
        _check_contiguous(operations, positions, prefix)


def _check_contiguous(
    operations: Sequence[Any], positions: list[int], path: tuple[int, ...]
) -> None:
    expected = list(range(positions[0], positions[0] + len(positions)))
    if positions == expected:
        return
    between = [
        operations[place].get_name()
        for place in range(min(positions), max(positions))
        if place not in positions
    ]
    raise SpyreError(
        "SPY971",
        f"the operations of loop group {path} are not contiguous",
        expected="operations that follow each other, in their order",
        found=f"{', '.join(operations[p].get_name() for p in positions)}"
        + (f"; between them {', '.join(between)}" if between else ""),
        hint="put what lies between into the group, or make two groups",
    )


def tiled_dims_of(operation: Any, levels: Sequence[TileLevel]) -> list[list[int]]:
    """Per level the place in the operation's iteration space it splits, empty for none."""
    stamped: list[list[int]] | None = getattr(operation, "loop_tiled_dims", None)
    if stamped is not None:
        return stamped
    names = getattr(operation, "named_dims", ())
    return [_places_of_dim(level.dim, names) for level in levels]


def _places_of_dim(dim: int | str, names: Sequence[str | None]) -> list[int]:
    if isinstance(dim, int):
        return [dim]
    return [names.index(dim)] if dim in names else []


class HintKind(StrEnum):
    """What a hint asks for."""

    SLICES = "slices"
    WORK_DIV = "work_div"


@dataclass(frozen=True, slots=True)
class DimHint:
    """What one hint block says of one dim to one operation.

    ``scope``: number of the block, rising inwards. ``number``: tiles, or cores. ``dim``: the place
    in ranges and reduction ranges that has the name; None where the operation lacks it.
    """

    scope: int
    kind: HintKind
    name: str
    number: int
    dim: int | None


def assign_dim_hints(operations: Sequence[Any]) -> None:
    """Set ``dim_hints`` of every Pointwise and Reduction, in the order of their loops.

    SpyreError SPY974 for a name that is not declared.
    """
    for op in operations:
        if is_loop_operation(op):
            names = getattr(op, "named_dims", ())
            op.dim_hints = [h for scope in _scopes_of_operation(op) for h in _hints(scope, names)]


def _scopes_of_operation(operation: Any) -> tuple[HintScope, ...]:
    """Hint blocks of the FX node an operation was made for: the last one of its origins."""
    node = operation.get_origin_node()
    if node is None:
        origins = set(operation.get_origins())
        if not origins:
            return ()
        graph = next(iter(origins)).graph
        node = next((n for n in reversed(graph.nodes) if n in origins), None)
    return () if node is None else scopes_of(node)


def _hints(scope: HintScope, names: Sequence[str | None]) -> Iterator[DimHint]:
    for kind, entries in ((HintKind.SLICES, scope.slices), (HintKind.WORK_DIV, scope.work_div)):
        for name, number in entries:
            if declared_extent(name) is None:
                raise SpyreError(
                    "SPY974",
                    f"spyre_hint names dim {name!r}, which is not declared",
                    hint=f"declare_tensor_dim({name!r}, …) before the function is compiled",
                )
            dim = names.index(name) if name in names else None
            yield DimHint(scope.number, kind, name, number, dim)


def is_hinted(operation: Any) -> bool:
    """Whether a hint asks for loops around the operation, along whatever dim."""
    return any(h.kind is HintKind.SLICES for h in getattr(operation, "dim_hints", ()))


_HintedLoops = tuple[tuple[int, tuple[TileLevel, ...]], ...]
"""Per hint block around an operation: its number, and its loops."""


def hints_to_coarse_tile_groups(operations: Sequence[Any]) -> list[TileGroup]:
    """The groups that hints ask for, for `coarse_tile`.

    Operations of a block that follow each other share its loops; where others lie between, the
    block has a loop for each stretch. An operation that lacks a dim is in the loop and the same in
    all its iterations. A dim that no operation of a stretch has is dropped with a warning. Device
    programs stay outside of loops, with a warning too.
    """
    _warn_of_programs(operations)
    numbers = itertools.count()
    groups: list[TileGroup] = []
    loops = [(op, _loops_of(op)) for op in operations]
    for _, run in itertools.groupby(loops, key=lambda item: _scope_at(item[1], 0)):
        members = list(run)
        if members[0][1]:
            groups.extend(_nest(members, 0, (), (), numbers))
    return groups


def _warn_of_programs(operations: Sequence[Any]) -> None:
    """One warning per program that hints ask to tile."""
    hinted = (program_of(op) for op in operations if _tile_hints(op))
    for program in dict.fromkeys(program for program in hinted if program is not None):
        warn_user(
            f"spyre_hint: {program.name} is several operations, made as its operands lie, and is "
            "not tiled; what stands before it in the block and behind it has loops of its own"
        )


def _tile_hints(operation: Any) -> list[DimHint]:
    return [h for h in getattr(operation, "dim_hints", ()) if h.kind is HintKind.SLICES]


def shares_of(operation: Any) -> tuple[tuple[int, int], ...]:
    """(place in the iteration space, cores) as hints divide an operation; inner blocks count.

    A program of several device operations, made as its operands lie, has a warning instead.
    """
    hints = (h for h in getattr(operation, "dim_hints", ()) if h.kind is HintKind.WORK_DIV)
    shares = {h.dim: h.number for h in hints if h.dim is not None}
    program = program_of(operation)
    if shares and program is not None:
        warn_user(f"spyre_hint: {program.name} is several operations, which work_div cannot divide")
        return ()
    return tuple(shares.items())


def _loops_of(operation: Any) -> _HintedLoops:
    hints = [] if program_of(operation) is not None else _tile_hints(operation)
    return tuple(
        (scope, tuple(TileLevel(h.number, h.name) for h in entries))
        for scope, entries in itertools.groupby(hints, key=lambda h: h.scope)
    )


def _scope_at(loops: _HintedLoops, depth: int) -> int | None:
    return loops[depth][0] if depth < len(loops) else None


def _nest(
    members: list[tuple[Any, _HintedLoops]],
    depth: int,
    path: tuple[int, ...],
    levels: tuple[TileLevel, ...],
    numbers: Iterator[int],
) -> Iterator[TileGroup]:
    """Groups of operations that share the block at ``depth``, with those of blocks in it."""
    own = _known_levels(members[0][1][depth][1], [op for op, _ in members])
    if own:
        path, levels = (*path, next(numbers), *[0] * (len(own) - 1)), (*levels, *own)
        numbers = itertools.count()
    for inner, run in itertools.groupby(members, key=lambda item: _scope_at(item[1], depth + 1)):
        inside = list(run)
        if inner is not None:
            yield from _nest(inside, depth + 1, path, levels, numbers)
        elif levels:
            yield TileGroup(path, levels, tuple(op for op, _ in inside))


def _known_levels(levels: Sequence[TileLevel], operations: Sequence[Any]) -> list[TileLevel]:
    known = []
    for level in levels:
        if any(level.dim in op.named_dims for op in operations):
            known.append(level)
        else:
            warn_user(
                f"spyre_hint: no operation among {', '.join(op.get_name() for op in operations)} "
                f"has a dim {level.dim!r}; it is not tiled"
            )
    return known
