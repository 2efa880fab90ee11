"""``torch.spyre.graph``: capture the launches of a block and replay them with one call.

As with ``torch.cuda.graph``, a replay repeats launches and copies at the same addresses: inputs are
tensors that stay alive and are written in place, and results are the tensors that the block
created. Unlike there, the block also runs once during capture.
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
from spyre.torch_backend.tensors.allocation import DeviceBuffer, living_buffers
from spyre.torch_backend.tensors.copies import is_ordinary, reassemble

if TYPE_CHECKING:
    from spyre.runtime.flex import CapturedWork, FlexDevice


@dataclass(frozen=True, slots=True)
class _Placed:
    """Memory and layout of a storage at capture. ``is_padded``: its sticks were padded with zeros
    before the block; ``stays_padded``: also after it.
    """

    buffer: ref[DeviceBuffer]
    memory: object
    layout_id: int
    is_padded: bool
    stays_padded: bool

    def prepare(self) -> None:
        """Restore the zero padding that the block relied on, if it was overwritten since.

        LaunchError SPY907 if the storage has other memory or another layout than at capture.
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
        """Update the buffer after a replay has written it."""
        buffer = self.buffer()
        if buffer is not None and not self.stays_padded:
            buffer.zero_padded = False


def _changed(how: str) -> LaunchError:
    return LaunchError(
        "SPY907",
        "a tensor of a captured block has another memory or layout than at capture",
        expected="the memory and layout at capture",
        found=f"other {how}",
        hint="write it before the block in the way it is written between replays; capture again",
    )


class SpyreGraph:
    """Launches and copies of a block, empty until `graph` has filled it. Like torch.cuda.CUDAGraph,
    it keeps the memory that the block used.
    """

    def __init__(self) -> None:
        self._captured: tuple[FlexDevice, CapturedWork] | None = None
        self._placed: tuple[_Placed, ...] = ()
        self._resets = 0

    def replay(self) -> None:
        """Enqueue the block on the current stream of its card.

        LaunchError SPY907 if a tensor's layout has changed since, SPY908 without a block or after a
        reset of the card.
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
        """Drop the block and free its memory."""
        self._captured, self._placed = None, ()

    def _fill(self, card: FlexDevice, work: CapturedWork, before: dict[int, bool]) -> None:
        """``before``: by id of a buffer, whether it was padded with zeros when the block began."""
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
    """``with torch.spyre.graph() as step:`` runs the block on a separate stream and captures its
    launches for ``step.replay()``.

    ``graph``: one to fill, by default a new one. ``stream``: of the pool, by default the next. Run
    the operations once before, so that their kernels are compiled. UnsupportedError SPY888 for
    operations that cannot be replayed: values read on the host, random numbers, events.
    """
    filled = SpyreGraph() if graph is None else graph
    chosen = Stream() if stream is None else stream
    card = card_of(chosen.device)
    before = card.streams.current
    chosen.flex.wait_stream(before)
    random = _random_state(card)
    buffers = living_buffers(card)  # kept alive until the end, so that their ids stay unique
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
