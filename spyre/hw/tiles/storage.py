"""Places of values in the tiles' scratchpads: by liveness, the same on every tile.

Values of a KTIR function are placed where they are defined, and their places are free after their
last use; one used inside of a loop that does not define it lives until the loop ends. What does not
fit is refused with the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spyre.hw.spec import LX_BYTES, STICK_BYTES
from spyre.mlir.tiles import TileFunction, TileOp


def last_uses(function: TileFunction) -> tuple[dict[int, int], dict[tuple[int, str], int]]:
    """Numbers of operations in textual order by identity, and per definition its last use.

    Definitions are named by the number of their operation (-1: parameters) and their name.
    """
    numbers: dict[int, int] = {}
    uses: dict[tuple[int, str], int] = {}
    scopes: list[dict[str, tuple[int, str]]] = [{p.name: (-1, p.name) for p in function.parameters}]
    depths: dict[tuple[int, str], int] = {}

    def visit(body: tuple[TileOp, ...], loops: list[tuple[int, int]]) -> None:
        for op in body:
            number = numbers[id(op)] = len(numbers)
            for name in op.uses():
                key = next((s[name] for s in reversed(scopes) if name in s), None)
                if key is not None:
                    outside = [end for depth, end in loops if depth > depths.get(key, 0)]
                    uses[key] = max(uses.get(key, 0), number, *outside[:1])
            ends = number + sum(1 for region in op.regions for _ in _walk(region.body))
            for region in op.regions:
                inner = [*loops, (len(scopes), ends)] if op.name == "scf.for" else loops
                scopes.append({name: (number, name) for name, _ in region.arguments})
                depths.update({(number, name): len(scopes) - 1 for name, _ in region.arguments})
                visit(region.body, inner)
                scopes.pop()
            scopes[-1].update({name: (number, name) for name in op.results})
            depths.update({(number, name): len(scopes) - 1 for name in op.results})

    visit(function.body, [])
    return numbers, uses


def _walk(body: tuple[TileOp, ...]) -> list[TileOp]:
    found = []
    for op in body:
        found.append(op)
        for region in op.regions:
            found += _walk(region.body)
    return found


@dataclass
class Scratchpad:
    """Allocator of the scratchpads. ``taken``: offset → (end, number of its last use)."""

    limit: int = LX_BYTES
    taken: dict[int, tuple[int, int]] = field(default_factory=dict)

    def place(self, size_bytes: int, now: int, until: int) -> int | None:
        """Offset of ``size_bytes``, free at ``now``, kept until ``until``; None without room."""
        self.taken = {at: pair for at, pair in self.taken.items() if pair[1] >= now}
        size = -(-size_bytes // STICK_BYTES) * STICK_BYTES
        low = 0
        for at in sorted(self.taken):
            if at - low >= size:
                break
            low = max(low, self.taken[at][0])
        if low + size > self.limit:
            return None
        self.taken[low] = (low + size, until)
        return low

    def extend(self, offset: int, until: int) -> None:
        """Keep what holds byte ``offset`` until ``until`` at least."""
        for at, (end, last) in self.taken.items():
            if at <= offset < end:
                self.taken[at] = (end, max(last, until))
