"""Groups of operations that are tiled together, from callers and from hints.

A caller's group is a tuple ``(ops, count)``, ``(ops, count, dims)`` or
``(ops, [(count, dims), …])``, and becomes a `TileGroup`. `assign_dim_hints` runs after
`propagate_named_dims`; `hints_to_coarse_tile_groups` makes groups from ``operation.dim_hints``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import sympy

from spyre.errors import SpyreError
from spyre.torch_backend.device import warn_user
from spyre.torch_backend.inductor.hints import HintScope, declared_extent, scopes_of
from spyre.torch_backend.inductor.lowering.device_ir import program_of
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation


class TileLevel(msgspec.Struct, frozen=True):
    """One loop: its count, and the dim that its iterations split.

    ``dim``: an index in the iteration space, the same in every operation, or the name of a dim,
    whose index may differ and which some operations may lack.
    """

    count: Any
    dim: int | str


class TileGroup(msgspec.Struct, frozen=True):
    """Contiguous operations of a loop body, and the loops around them.

    ``path``: loop_group_id of the operations, one entry per level, the outermost first.
    """

    path: tuple[int, ...]
    levels: tuple[TileLevel, ...]
    operations: tuple[Any, ...]


def tile_extent(extent: Any, count: Any) -> int | None:
    """Return the elements of each of ``count`` tiles of a dim; None if that is not a whole number.

    For symbolic sizes the quotient has to be a number: T for ``s0 // T`` tiles of s0, which then
    has to be a multiple of T.
    """
    whole, number = sympy.sympify(extent), sympy.sympify(count)
    if type(number).__name__ == "FloorDiv":
        number = number.args[0] / number.args[1]
    elif isinstance(number, sympy.floor):
        number = number.args[0]
    quotient = sympy.cancel(whole / number)
    return int(quotient) if quotient.is_Integer else None


def normalised(groups: Sequence[Any], tiled_dims: Sequence[int] | None) -> list[TileGroup]:
    """Convert all groups to TileGroups; tuples are numbered by their order.

    A level that names several dims becomes one loop per dim with the same count, so that all tiles
    are visited. ``tiled_dims``: dims of flat groups without dims; None: dim 0. SpyreError SPY970
    for any other form.
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
        raise _wrong_group("dims are a list of different indices", dims)
    if any(isinstance(d, bool) or not isinstance(d, int) or d < 0 for d in dims):
        raise _wrong_group("a dim is an index in the iteration space, from 0", dims)
    return [TileLevel(count, dim) for dim in dims]


def _wrong_group(message: str, found: Any) -> SpyreError:
    return SpyreError(
        "SPY970",
        message,
        expected="(ops, K), (ops, K, dims) or (ops, [(K1, dims), (K2, dims)])",
        found=repr(found)[:200],
    )


def check_groups(operations: Sequence[Any], groups: Sequence[TileGroup]) -> None:
    """Check that the operations of each group, and of each outer loop, are contiguous.

    SpyreError SPY970 if an operation is not in ``operations`` or is in two groups, SPY971 for a
    gap.
    """
    index_of = {id(op): index for index, op in enumerate(operations)}
    seen: dict[int, TileGroup] = {}
    for group in groups:
        for op in group.operations:
            if id(op) not in index_of or id(op) in seen:
                fault = "is in two groups" if id(op) in seen else "is not in the graph"
                raise _wrong_group(
                    f"operation {op.get_name()} of a tiling group {fault}", group.path
                )
            seen[id(op)] = group
        positions = [index_of[id(op)] for op in group.operations]
        _check_contiguous(operations, positions, group.path)
    for prefix in {g.path[:n] for g in groups for n in range(1, len(g.path) + 1)}:
        inside = [g for g in groups if g.path[: len(prefix)] == prefix]
        positions = sorted(index_of[id(op)] for g in inside for op in g.operations)
        _check_contiguous(operations, positions, prefix)


def _check_contiguous(
    operations: Sequence[Any], positions: list[int], path: tuple[int, ...]
) -> None:
    expected = list(range(positions[0], positions[0] + len(positions)))
    if positions == expected:
        return
    between = [
        operations[index].get_name()
        for index in range(min(positions), max(positions))
        if index not in positions
    ]
    raise SpyreError(
        "SPY971",
        f"the operations of loop group {path} are not contiguous",
        expected="operations that follow each other, in their order",
        found=f"{', '.join(operations[p].get_name() for p in positions)}"
        + (f"; between them {', '.join(between)}" if between else ""),
        hint="put the operations between them into the group, or make two groups",
    )


def tiled_dims_of(operation: Any, levels: Sequence[TileLevel]) -> list[list[int]]:
    """Return, per level, the axis of the operation's iteration space it splits; empty for none."""
    stamped: list[list[int]] | None = getattr(operation, "loop_tiled_dims", None)
    if stamped is not None:
        return stamped
    names = getattr(operation, "named_dims", ())
    dims = (level.dim for level in levels)
    axes = (d if isinstance(d, int) else names.index(d) if d in names else None for d in dims)
    return [[] if axis is None else [axis] for axis in axes]


def assign_dim_hints(operations: Sequence[Any]) -> None:
    """Set ``dim_hints`` of every Pointwise and Reduction, the hint blocks around it, outer ones
    first.

    SpyreError SPY974 for a name that is not declared.
    """
    for op in filter(is_loop_operation, operations):
        op.dim_hints = _scopes_of_operation(op)
        for name, _ in (pair for s in op.dim_hints for pair in (*s.slices, *s.work_div)):
            if declared_extent(name) is None:
                raise SpyreError(
                    "SPY974",
                    f"spyre_hint names dim {name!r}, which is not declared",
                    hint=f"declare_tensor_dim({name!r}, …) before the function is compiled",
                )


def _scopes_of_operation(operation: Any) -> tuple[HintScope, ...]:
    """Return the hint blocks of the FX node an operation was made for, its last origin."""
    node = operation.get_origin_node()
    if node is None:
        origins = set(operation.get_origins())
        if not origins:
            return ()
        graph = next(iter(origins)).graph
        node = next((n for n in reversed(graph.nodes) if n in origins), None)
    return () if node is None else scopes_of(node)


_HintedLoops = tuple[tuple[int, tuple[TileLevel, ...]], ...]
"""Per hint block around an operation: its number, and its loops."""


def hints_to_coarse_tile_groups(operations: Sequence[Any]) -> list[TileGroup]:
    """Return the groups that hints request, for `coarse_tile`.

    Contiguous operations of a block share its loops; if other operations interrupt them, each part
    gets loops. An operation that lacks a dim is in the loop, and is the same in all iterations. A
    dim that no operation of a part has is ignored with a warning. Device programs are not tiled,
    with a warning.
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
    """Give one warning per device program that hints request to tile."""
    hinted = (program_of(op) for op in operations if is_hinted(op))
    for program in dict.fromkeys(program for program in hinted if program is not None):
        warn_user(
            f"spyre_hint: {program.name} is several operations, which depend on its operands' "
            "layouts, and is not tiled; operations before and behind it in the block are tiled "
            "separately"
        )


def is_hinted(operation: Any) -> bool:
    """Return True if a hint requests a loop around the operation."""
    return any(scope.slices for scope in getattr(operation, "dim_hints", ()))


def shares_of(operation: Any) -> tuple[tuple[int, int], ...]:
    """Return (index in the iteration space, cores) of each dim that hints divide; inner blocks take
    precedence. A program of several device operations gets a warning instead.
    """
    scopes, names = getattr(operation, "dim_hints", ()), getattr(operation, "named_dims", ())
    counts = dict(pair for scope in scopes for pair in scope.work_div)
    shares = {names.index(name): count for name, count in counts.items() if name in names}
    program = program_of(operation)
    if shares and program is not None:
        warn_user(f"spyre_hint: {program.name} is several operations, which work_div cannot divide")
        return ()
    return tuple(shares.items())


def _loops_of(operation: Any) -> _HintedLoops:
    scopes = () if program_of(operation) is not None else getattr(operation, "dim_hints", ())
    return tuple(
        (scope.number, tuple(TileLevel(count, name) for name, count in scope.slices))
        for scope in scopes
        if scope.slices
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
    """Yield the groups of operations that share the block at ``depth``, and of blocks inside it."""
    added = _known_levels(members[0][1][depth][1], [op for op, _ in members])
    if added:
        path, levels = (*path, next(numbers), *[0] * (len(added) - 1)), (*levels, *added)
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
