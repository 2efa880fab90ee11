"""The streams of a card: the default one and the pools of low and high priority.

Runtime reference §7: id 0 is the default, 1 to 32 have priority 0, 33 to 64 any other; each pool is
handed out round robin. The current stream is a matter of the calling thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from spyre.errors import LaunchError
from spyre.runtime.flex.card import Card
from spyre.runtime.flex.flex_stream import FlexStream

POOL_STREAMS = 32
"""Streams of each pool."""


class StreamPool:
    """Streams of one card. Usable from any thread."""

    def __init__(self, device: Card) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._next = {False: 0, True: 0}
        self._local = threading.local()
        self.default = FlexStream(device, 0)
        self._streams: dict[int, FlexStream] = {0: self.default}

    def take(self, priority: int = 0) -> FlexStream:
        """The next stream of a pool: ``priority`` 0 the low one, anything else the high one."""
        high = priority != 0
        with self._lock:
            place = self._next[high]
            self._next[high] = (place + 1) % POOL_STREAMS
            stream_id = 1 + place + (POOL_STREAMS if high else 0)
            if stream_id not in self._streams:
                self._streams[stream_id] = FlexStream(self._device, stream_id, high)
            return self._streams[stream_id]

    def of_id(self, stream_id: int) -> FlexStream:
        """A stream that was handed out. LaunchError SPY872 for any other id."""
        found = self._streams.get(stream_id)
        if found is None:
            raise LaunchError(
                "SPY872",
                f"no flex handle for stream id {stream_id}: was the stream pool initialized?",
                expected=f"0, or an id that was handed out: {sorted(self._streams)}",
                found=str(stream_id),
            )
        return found

    def handed_out(self) -> list[FlexStream]:
        """Every stream so far, by id."""
        with self._lock:
            return [self._streams[k] for k in sorted(self._streams)]

    @property
    def current(self) -> FlexStream:
        """The calling thread's stream; the default one unless it chose another."""
        stream: FlexStream = getattr(self._local, "stream", self.default)
        return stream

    def set_current(self, stream: FlexStream) -> FlexStream:
        """Make ``stream`` the calling thread's; returns the one before."""
        before = self.current
        self._local.stream = stream
        return before

    @contextmanager
    def using(self, stream: FlexStream) -> Iterator[FlexStream]:
        """``stream`` as the current one within the block."""
        before = self.set_current(stream)
        try:
            yield stream
        finally:
            self.set_current(before)
