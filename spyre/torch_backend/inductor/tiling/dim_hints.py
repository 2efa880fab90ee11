"""From hint blocks and names of dims to groups of operations that are tiled together.

`assign_dim_hints` runs after `propagate_named_dims`; `hints_to_coarse_tile_groups` makes of
``operation.dim_hints`` what `coarse_tile` takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.graph_to_ir import program_of
from spyre.torch_backend.inductor.tiling.accesses import is_loop_operation
from spyre.torch_backend.inductor.tiling.dim_names import declared_extent
from spyre.torch_backend.inductor.tiling.groups import TileGroup, TileLevel
from spyre.torch_backend.inductor.tiling.hints import HintScope, scopes_of
from spyre.torch_backend.user_warnings import warn_user


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
            op.dim_hints = [h for scope in _scopes(op) for h in _hints(scope, names)]


def _scopes(operation: Any) -> tuple[HintScope, ...]:
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


def work_division_of(operation: Any) -> dict[int, int]:
    """Cores by place in the iteration space, as ``work_div`` hints ask; the innermost one counts.

    Dims the operation lacks are left out.
    """
    hints = getattr(operation, "dim_hints", ())
    found = (h for h in hints if h.kind is HintKind.WORK_DIV and h.dim is not None)
    return {h.dim: h.number for h in found}


def is_hinted(operation: Any) -> bool:
    """Whether a hint asks for loops around the operation, along whatever dim."""
    return any(h.kind is HintKind.SLICES for h in getattr(operation, "dim_hints", ()))


_Loops = tuple[tuple[int, tuple[TileLevel, ...]], ...]
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


def _loops_of(operation: Any) -> _Loops:
    hints = [] if program_of(operation) is not None else _tile_hints(operation)
    return tuple(
        (scope, tuple(TileLevel(h.number, h.name) for h in entries))
        for scope, entries in itertools.groupby(hints, key=lambda h: h.scope)
    )


def _scope_at(loops: _Loops, depth: int) -> int | None:
    return loops[depth][0] if depth < len(loops) else None


def _nest(
    members: list[tuple[Any, _Loops]],
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
    found = []
    for level in levels:
        if any(level.dim in op.named_dims for op in operations):
            found.append(level)
        else:
            warn_user(
                f"spyre_hint: no operation among {', '.join(op.get_name() for op in operations)} "
                f"has a dim {level.dim!r}; it is not tiled"
            )
    return found
