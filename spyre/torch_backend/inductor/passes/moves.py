"""What has to be moved for an operation to read a value: restickifies, and how many elements."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from spyre.torch_backend.inductor.body import Load
from spyre.torch_backend.inductor.lane_graph import SPARSE, device_elements
from spyre.torch_backend.inductor.operand_views import Read, seen
from spyre.torch_backend.program.builder import ProgramBuilder
from spyre.torch_backend.program.value import Ints, Value

OVERHEAD = 1 << 18
"""What a restickify costs besides the elements it moves, in elements: with tensors of up to half a
MiB the fewest restickifies are best, with larger ones the fewest bytes.
"""
HARD = 3 * OVERHEAD
"""The same for operands that the kernel has to spread out."""


@dataclass(frozen=True, slots=True)
class Move:
    """A restickify: of the ``whole`` producer, to a lane in its dims, or of just what is read, to a
    lane in the dims of the operand. ``elements``: that it moves, stick padding included.
    """

    whole: bool
    lane: int
    elements: int

    @property
    def cost(self) -> int:
        """Elements, with those the operation costs by itself."""
        return self.elements + OVERHEAD


Moves = tuple[Move, ...]


def cost_of(moves: Moves | None) -> int:
    """The cost of moves one after the other; None: no moves are known."""
    return HARD if moves is None else sum(move.cost for move in moves)


@lru_cache(maxsize=4096)
def laid_out(sizes: Ints, dtype: str, lane: int) -> Value:
    """A value of ``sizes`` as an operation leaves it with sticks along ``lane``."""
    return ProgramBuilder().scratch(sizes, dtype, lane)


def moves_for(value: Value, read: Read, wanted: Collection[int]) -> Moves | None:
    """The cheapest way to read ``value`` with sticks along one of the dims ``wanted``.

    ``wanted``: lanes in the dims of the operand, `SPARSE` for sticks of one element; the first one
    is what is moved to. None where no one or two restickifies do it.
    """
    found = _seen(value, read)
    if found is not None and found.lane_dim in wanted:
        return ()
    options = list(_after_whole(value, read, wanted))
    if found is not None:
        options.append((_view_move(found, wanted),))
    return min(options, key=cost_of, default=None)


def _after_whole(value: Value, read: Read, wanted: Collection[int]) -> list[Moves]:
    """Ways that begin with a move of all of ``value``."""
    options: list[Moves] = []
    for lane in _lanes(value):
        found = _seen(laid_out(value.sizes, value.dtype, lane), read)
        if found is None:
            continue
        first = Move(True, lane, _elements(value))
        if found.lane_dim in wanted:
            options.append((first,))
        else:
            options.append((first, _view_move(found, wanted)))
    return options


def _lanes(value: Value) -> list[int]:
    lanes = [k for k, n in enumerate(value.sizes) if n > 1]
    return [k for k in (*lanes, SPARSE) if k != value.lane_dim]


def _view_move(found: Value, wanted: Collection[int]) -> Move:
    return Move(False, next(iter(wanted)), _elements(found))


def _elements(value: Value) -> int:
    return device_elements(value.sizes, value.lane_dim, value.view.elements_per_stick)


def _seen(value: Value, read: Read) -> Value | None:
    """What is read of ``value``; None where the cores cannot walk it along with other tensors."""
    load = read.operand
    assert isinstance(load, Load)
    found = seen(value, read.sizes, load.strides, load.offset)
    return None if found is None or _is_in_pieces(found) else found


def _is_in_pieces(found: Value) -> bool:
    """True if a dim along the lanes goes on in other sticks before one is full."""
    lanes = found.view.elements_per_stick
    for factors in found.view.dims:
        if any(factor.lane for factor in factors[:-1]):
            return True
        if len(factors) > 1 and factors[-1].lane and factors[-1].extent % lanes:
            return True
    return False
