"""Places of values in the tiles' scratchpads: by liveness, the same on every tile.

Values of a KTIR function are placed where they are defined, and their places are free after their
last use; one used inside of a loop that does not define it lives until the loop ends. Without
room for one, it is placed in device memory.
"""

from __future__ import annotations

import msgspec

from spyre.hw.spec import LX_BYTES, STICK_BYTES
from spyre.mlir.tiles import TileFunction, TileOp


def last_uses(function: TileFunction) -> tuple[dict[int, int], dict[tuple[int, str], int]]:
    """Numbers of operations in textual order by identity, and the last use of each definition, by
    the number of its operation (-1: parameters) and name.
    """
    numbers: dict[int, int] = {}
    uses: dict[tuple[int, str], int] = {}

    def visit(
        body: tuple[TileOp, ...], outer: dict[str, int], loops: list[tuple[int, int]]
    ) -> None:
        made = dict(outer)
        for op in body:
            number = numbers[id(op)] = len(numbers)
            last = number + sum(1 for _ in op.inside())  # regions read their operation's operands
            for name in op.uses():
                if (by := made.get(name)) is not None:
                    ends = [end for start, end in loops if start > by]
                    uses[by, name] = max(uses.get((by, name), 0), last, *ends[:1])
            inner = [*loops, (number, last)] if op.name == "scf.for" else loops
            for region in op.regions:
                arguments = {str(name): number for name, _ in region.arguments}
                visit(region.body, {**made, **arguments}, inner)
            made |= dict.fromkeys(op.results, number)

    visit(function.body, dict.fromkeys((p.name for p in function.parameters), -1), [])
    return numbers, uses


class BlockedError(Exception):
    """Bytes of the scratchpads that have to be blocked before the function is traced."""


class Scratchpad(msgspec.Struct):
    """Allocator of the scratchpads. ``taken``: offset → (end, number of its last use); ``blocked``:
    first bytes and ends of views.
    """

    blocked: tuple[tuple[int, int], ...] = ()
    taken: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)

    def place(self, size_bytes: int, now: int, until: int) -> int | None:
        """Offset of ``size_bytes``, free at ``now``, kept until ``until``; None without room."""
        self.taken = {at: pair for at, pair in self.taken.items() if pair[1] >= now}
        size = -(-size_bytes // STICK_BYTES) * STICK_BYTES
        low, taken = 0, [(at, end) for at, (end, _) in self.taken.items()]
        for at, end in sorted([*self.blocked, *taken, (LX_BYTES, LX_BYTES)]):
            if at - low >= size:
                self.taken[low] = (low + size, until)
                return low
            low = max(low, -(-end // STICK_BYTES) * STICK_BYTES)
        return None

    def block(self, low: int, end: int) -> None:
        """Check that no values are placed where a view is. BlockedError if some may be."""
        if not any(a <= low and end <= b for a, b in self.blocked):
            raise BlockedError(low, end)

    def extend(self, offset: int, until: int) -> None:
        """Keep the value at byte ``offset`` until ``until`` at least."""
        for at, (end, last) in self.taken.items():
            if at <= offset < end:
                self.taken[at] = (end, max(last, until))
