"""Which results may take over the place of an operand.

Source: hardware reference §4.3: the operation is pointwise (exp, sub, add, rsqrt, or tagged so),
uses the operand for the last time, and operand and result agree in size and device layout.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from spyre.torch_backend.inductor.scratchpad.liveness import live_range
from spyre.torch_backend.inductor.scratchpad.operations import Access, Kind, Operations


def in_place_parents(operations: Operations, eligible: Collection[str]) -> dict[str, str]:
    """Per result that may be made in place, the operand whose place it may take.

    ``eligible``: buffers that may lie in LX; others take no part. An operand is given to one
    result only, and a result takes the first of its operands that it may.
    """
    accesses = operations.accesses()
    ranges = {name: live_range(accesses[name], operations.loops) for name in eligible}
    parents: dict[str, str] = {}
    for step, operation in enumerate(operations.steps):
        if operation.kind is not Kind.POINTWISE:
            continue
        made = [n for n in operation.writes if n in ranges and _is_born(accesses[n], step)]
        dying = [n for n in operation.reads if n in ranges and ranges[n][1] == step + 1]
        for child in (name for name in made if ranges[name][0] == step):
            for parent in dying:
                if parent not in parents.values() and _agree(operation.accesses, parent, child):
                    parents[child] = parent
                    break
    return parents


def _is_born(accesses: Sequence[tuple[int, Access]], step: int) -> bool:
    return accesses[0][0] == step and all(a.is_write for s, a in accesses if s == step)


def _agree(accesses: Sequence[Access], parent: str, child: str) -> bool:
    """True if the operation touches both buffers at the same places, element by element."""
    seen = {
        (a.view, a.device_dtype, a.coordinates, a.size_bytes)
        for a in accesses
        if a.buffer in (parent, child)
    }
    return len(seen) == 1
