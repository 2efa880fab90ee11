"""Operations that stand in the way of a loop, and do not need what is before them, go first.

A converted weight between two operations on rows would end a stretch of rows; nothing of the
stretch goes into it, so it can as well be made before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spyre.torch_backend.inductor.auto_tile.dim_classes import Extent
from spyre.torch_backend.inductor.kernel import target_of
from spyre.torch_backend.inductor.tiling.accesses import names_read


def hoisted(operations: Sequence[Any], dims: Mapping[str, Mapping[str, Extent]]) -> list[Any]:
    """The operations of a run in another order their dependencies allow.

    One that lacks a dim its neighbours have goes directly behind what it reads, or to the front.
    Operations that change a buffer in place, and readers of such buffers, stay where they are.
    """
    mutated = {target_of(op) for op in operations if target_of(op) != op.get_name()}
    found = list(operations)
    for op in operations:
        place = found.index(op)
        if not 0 < place < len(found) - 1 or op.get_name() in mutated or names_read(op) & mutated:
            continue
        if target_of(op) != op.get_name() or not _is_in_the_way(found, place, dims):
            continue
        found.pop(place)
        found.insert(_earliest(found[:place], names_read(op)), op)
    return found


def _is_in_the_way(
    operations: Sequence[Any], place: int, dims: Mapping[str, Mapping[str, Extent]]
) -> bool:
    before, own, after = (set(dims[op.get_name()]) for op in operations[place - 1 : place + 2])
    return bool((before & after) - own)


def _earliest(before: Sequence[Any], needed: set[str]) -> int:
    """The place behind the last operation that makes one of ``needed``."""
    return max((k + 1 for k, op in enumerate(before) if op.get_name() in needed), default=0)
