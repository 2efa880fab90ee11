"""The default solver: buffers in the order of their first use, none moved afterwards.

Source: hardware reference §4.3 (greedy solver).
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.torch_backend.inductor.scratchpad.gaps import aligned, gaps
from spyre.torch_backend.inductor.scratchpad.liveness import Buffer


def solve_greedy(buffers: Sequence[Buffer], capacity_bytes: int) -> dict[str, int | None]:
    """Offset of every buffer in LX (bytes), None where it stays in HBM.

    At each operation, what has ended is freed, then what starts is placed, in the order given: in
    the place of its living in-place operand; at 0 where that is free; behind the highest living
    buffer; in the first gap.
    """
    places: dict[str, int | None] = {}
    live: dict[str, tuple[int, Buffer]] = {}
    for buffer in sorted(buffers, key=lambda b: b.start):
        live = {n: (at, b) for n, (at, b) in live.items() if b.end > buffer.start}
        place = _place(buffer, live, capacity_bytes)
        places[buffer.name] = place
        if place is not None:
            live[buffer.name] = (place, buffer)
    return {buffer.name: places[buffer.name] for buffer in buffers}


def _place(buffer: Buffer, live: dict[str, tuple[int, Buffer]], capacity_bytes: int) -> int | None:
    """Where ``buffer`` goes; takes its operand out of ``live`` if it goes there."""
    if buffer.in_place_of in live:
        return live.pop(buffer.in_place_of)[0]
    taken = sorted((at, at + other.size_bytes) for at, other in live.values())
    if buffer.size_bytes > capacity_bytes:
        return None
    if not taken or taken[0][0] >= buffer.size_bytes:
        return 0
    top = aligned(max(end for _, end in taken))
    if top + buffer.size_bytes <= capacity_bytes:
        return top
    free = (begin for begin, end in gaps(taken, capacity_bytes) if end - begin >= buffer.size_bytes)
    return next(free, None)
