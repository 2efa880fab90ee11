"""Which results may take over the place of an operand.

Source: hardware reference §4.3: the operation is pointwise (exp, sub, add, rsqrt, or tagged so),
uses the operand for the last time, and operand and result agree in size and device layout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from spyre.torch_backend.inductor.scratchpad.liveness import (
    first_is_write,
    live_range,
    outlives,
)
from spyre.torch_backend.inductor.scratchpad.operations import Access, Kind, Operations

ByName = Mapping[str, Sequence[tuple[int, Access]]]


def in_place_parents(operations: Operations, eligible: Collection[str]) -> dict[str, str]:
    """Per result that may be made in place, the operand whose place it may take.

    ``eligible``: buffers that may lie in LX; others take no part. An operand is given to one
    result only, and a result takes the first of its operands that it may.
    """
    accesses = operations.accesses()
    taking_part = {name: accesses[name] for name in eligible}
    parents: dict[str, str] = {}
    for step, operation in enumerate(operations.steps):
        if operation.kind is not Kind.POINTWISE:
            continue
        dying = _dying(operations, taking_part, step)
        for child in _born(operations, taking_part, step):
            fitting = (n for n in dying if _agree(operation.accesses, n, child))
            if (parent := next(fitting, None)) is not None:
                parents[child] = parent
                dying.remove(parent)
    return parents


def _born(operations: Operations, accesses: ByName, step: int) -> list[str]:
    """Results whose life begins at ``step``."""
    written = [n for n in operations.steps[step].writes if n in accesses]
    return [
        name
        for name in written
        if live_range(accesses[name], operations.loops)[0] == step
        and first_is_write(accesses[name])
    ]


def _dying(operations: Operations, accesses: ByName, step: int) -> list[str]:
    """Operands whose life ends at ``step``, and that no later iteration of a loop reads again."""
    around = [loop for loop in operations.loops if loop[0] <= step < loop[1]]
    return [
        name
        for name in operations.steps[step].reads
        if name in accesses
        and live_range(accesses[name], operations.loops)[1] == step + 1
        and not any(outlives(accesses[name], loop) for loop in around)
    ]


def _agree(accesses: Sequence[Access], parent: str, child: str) -> bool:
    """True if the operation touches both buffers at the same places, element by element."""
    seen = {
        (a.view, a.device_dtype, a.coordinates, a.size_bytes)
        for a in accesses
        if a.buffer in (parent, child)
    }
    return len(seen) == 1
