"""``torch.spyre.graph``: what a block of operations launched, done again by one call.

In the manner of ``torch.cuda.graph``: a replay repeats launches and copies at the addresses they
had, so inputs are tensors that live on and are written in place, and results are those the block
made. Unlike there the block itself runs too, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from spyre.errors import LaunchError
from spyre.runtime.flex import capture_error
from spyre.torch_backend.device import Stream, card_of, cpu_generator
from spyre.torch_backend.tensors.buffer import DeviceBuffer, living_buffers
from spyre.torch_backend.tensors.copies import is_ordinary, reassemble

if TYPE_CHECKING:
    from spyre.runtime.flex import CapturedWork, FlexDevice


@dataclass(frozen=True, slots=True)
class _Placed:
    """How a storage lay when it was captured. ``is_padded``: zeros beyond its elements were relied
    on; ``stays_padded``: they are there after the block.
    """

    buffer: ref[DeviceBuffer]
    memory: object
    layout_id: int
    is_padded: bool
    stays_padded: bool

    def prepare(self) -> None:
        """Zeros that the block relied on are there again, whatever was written meanwhile.

        LaunchError SPY907 where a replay would read the storage as what it no longer is.
        """
        buffer = self.buffer()
        if buffer is None:
            return
        if buffer.memory is not self.memory or buffer.layout_id != self.layout_id:
            raise _changed("memory or another layout")
        if self.is_padded and not buffer.zero_padded:
            if not is_ordinary(buffer):
                raise _changed("numbers beyond its last elements, where zeros were relied on")
            reassemble(buffer)

    def replayed(self) -> None:
        """What the block wrote has been written again."""
        buffer = self.buffer()
        if buffer is not None and not self.stays_padded:
            buffer.zero_padded = False


def _changed(how: str) -> LaunchError:
    return LaunchError(
        "SPY907",
        "a tensor of a captured block is not laid out any more as it was",
        expected="the memory and layout it had in the block",
        found=f"other {how}",
        hint="write it before the block in the way it is written between replays; capture again",
    )


class SpyreGraph:
    """Launches and copies of a block, empty until `graph` has filled it. As torch.cuda.CUDAGraph:
    it keeps the memory that the block used.
    """

    def __init__(self) -> None:
        self._captured: tuple[FlexDevice, CapturedWork] | None = None
        self._placed: tuple[_Placed, ...] = ()
        self._resets = 0

    def replay(self) -> None:
        """Enqueue it on the current stream of its card.

        LaunchError SPY907 for tensors that were laid out anew meanwhile, SPY908 without a block, or
        after a reset of the card.
        """
        captured = self._captured
        if captured is None or captured[0].device.resets != self._resets:
            raise LaunchError(
                "SPY908",
                "there is nothing to replay",
                expected="a graph with a captured block, of a card that was not reset since",
                found="an empty graph" if captured is None else "a reset of its card",
            )
        for placed in self._placed:
            placed.prepare()
        card, work = captured
        card.streams.current.replay(work)
        for placed in self._placed:
            placed.replayed()

    def reset(self) -> None:
        """Forget the block, and give its memory back."""
        self._captured, self._placed = None, ()

    def _fill(self, card: FlexDevice, work: CapturedWork, before: dict[int, bool]) -> None:
        """``before``: whether storages were padded with zeros when the block began, by id."""
        used = {id(memory) for memory in work.memory()}
        self._captured, self._resets = (card, work), card.device.resets
        self._placed = tuple(
            _Placed(
                ref(buffer),
                buffer.memory,
                buffer.layout_id,
                before.get(id(buffer), False),
                buffer.zero_padded,
            )
            for buffer in living_buffers(card)
            if id(buffer.memory) in used
        )


@contextmanager
def graph(graph: SpyreGraph | None = None, stream: Any = None) -> Iterator[SpyreGraph]:
    """``with torch.spyre.graph() as step:`` runs the block on a stream of its own and keeps what it
    launched for ``step.replay()``.

    ``graph``: one to fill, by default a new one. ``stream``: of the pool, by default the next. Do
    once before what the block does, so that its kernels are compiled. UnsupportedError SPY888 for
    what a replay could not repeat: values read on the host, random numbers, events.
    """
    filled = SpyreGraph() if graph is None else graph
    chosen = Stream() if stream is None else stream
    card = card_of(chosen.device)
    before = card.streams.current
    chosen.flex.wait_stream(before)
    random = _random_state(card)
    buffers = living_buffers(card)  # living until the end, so that their ids stay theirs
    padded = {id(buffer): buffer.zero_padded for buffer in buffers}
    try:
        with chosen, chosen.flex.captured() as work:
            yield filled
    finally:
        before.wait_stream(chosen.flex)
    if _random_state(card) != random:
        raise capture_error("drawing random numbers")
    filled._fill(card, work, padded)
    del buffers


def _random_state(card: FlexDevice) -> bytes:
    state: bytes = cpu_generator(card.index).get_state().numpy().tobytes()
    return state
