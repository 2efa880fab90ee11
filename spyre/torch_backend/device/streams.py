"""``torch.spyre.Stream`` and ``Event``: the runtime's streams and events as subclasses of torch's.

A torch stream is a handle (card and id) of a `FlexStream`; several objects may refer to one.
Entering a stream makes it, and its card, current for the calling thread, which then submits copies
and operations there. Errors of a stream are raised by the next `synchronize` or `query` (runtime
reference §7). Thread-safe.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch

from spyre.errors import LaunchError
from spyre.torch_backend.compat import PRIVATE_USE_1
from spyre.torch_backend.device.cards import (
    card_at,
    card_of,
    current_device,
    index_of,
    made_cards,
    set_device,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import Event as FlexEvent, FlexStream


_event_ids = itertools.count(1)

_entered = threading.local()
"""``before``: per entered stream of a thread, the state it replaced: card index, card, stream."""


class SpyreStream(torch.Stream):  # type: ignore[misc]
    """The next stream of a card's pool: 1-32 for ``priority`` 0, 33-64 for any other.

    ``device``: the card, by default the current one. ``stream_id`` (and ``device_index``) selects
    a stream by its id; LaunchError SPY872 if no such stream was handed out.
    """

    flex: FlexStream

    def __new__(cls, device: Any = None, priority: int = 0, **named: Any) -> SpyreStream:
        """Return a stream of the pool, or the one with ``stream_id``."""
        if "stream_id" in named:
            card = card_at(named.get("device_index", index_of(device)))
            return cls._of(card.streams.of_id(named["stream_id"]))
        card = card_of(device)
        return cls._of(card.streams.take(priority))

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @classmethod
    def _of(cls, flex: FlexStream) -> SpyreStream:
        stream = torch.Stream.__new__(
            cls, stream_id=flex.stream_id, device_index=flex.device.index, device_type=PRIVATE_USE_1
        )
        stream.flex = flex
        return cast(SpyreStream, stream)

    @property
    def priority(self) -> int:
        """0, or -1 for streams of the high pool."""
        return self.flex.priority

    def synchronize(self) -> None:
        """Wait for all work submitted so far; raises the stream's error, once."""
        self.flex.synchronize()

    def query(self) -> bool:
        """Return True if all submitted work has ended; raises the stream's error, once."""
        return self.flex.query()

    def record_event(self, event: Any = None) -> Any:
        """Record ``event``, by default a new one, behind all work submitted so far; return it."""
        chosen = SpyreEvent(self.device) if event is None else event
        chosen.record(self)
        return chosen

    def wait_event(self, event: Any) -> None:
        """Let work submitted later wait for ``event``; the host does not wait."""
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        """Let work submitted later wait for the work ``stream`` has now. For streams of two cards
        the host waits.
        """
        self.wait_event(stream.record_event())

    def __enter__(self) -> SpyreStream:
        card = card_at(self.device.index)
        before = vars(_entered).setdefault("before", [])
        before.append((current_device(), card, card.streams.current))
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        index, card, stream = _entered.before.pop()
        card.streams.set_current(stream)
        set_device(index)


class EventsWithoutTime(LaunchError, ValueError):
    """The time between two events is unknown; a ValueError, as in torch."""


class SpyreEvent(torch.Event):  # type: ignore[misc]
    """A point in a stream. ``enable_timing``: allows `elapsed_time`.

    ``blocking`` has no effect, because waiting never spins. ``interprocess``: NotImplementedError.
    """

    flex: FlexEvent
    card_index: int
    known_id: int

    def __new__(
        cls,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> SpyreEvent:
        if interprocess:
            raise NotImplementedError("spyre events cannot be shared between processes")
        index = index_of(None if isinstance(device, bool) else device)
        from spyre.runtime.flex import Event as FlexEvent

        event = torch.Event.__new__(cls, device="spyre", enable_timing=enable_timing)
        event.flex = FlexEvent(enable_timing)
        event.card_index = card_at(index).index
        event.known_id = 0
        return cast(SpyreEvent, event)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:
        """The card it was last recorded on; without an index if it was never recorded."""
        return torch.device("spyre", self.card_index) if self.known_id else torch.device("spyre")

    @property
    def event_id(self) -> int:
        """A unique number; 0 before it is recorded."""
        return self.known_id

    def record(self, stream: Any = None) -> None:
        """Complete when all work submitted to ``stream`` (default: the current one) has ended."""
        chosen = current_stream(self.card_index) if stream is None else stream
        self.flex.record(chosen.flex)
        self.card_index = chosen.device.index
        self.known_id = self.known_id or next(_event_ids)

    def wait(self, stream: Any = None) -> None:
        """Let ``stream``, by default the current one, wait; the host waits for another card's."""
        chosen = current_stream(self.card_index) if stream is None else stream
        self.flex.wait(chosen.flex)

    def query(self) -> bool:
        """Return True if complete or never recorded; raises the error of a stream that failed."""
        return self.flex.query()

    def synchronize(self) -> None:
        """Wait until complete; raises the error of a stream that failed."""
        self.flex.synchronize()

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to ``end_event``; ValueError SPY875 unless both
        are complete.
        """
        if not (self.flex.enable_timing and end_event.flex.enable_timing):
            raise EventsWithoutTime(
                "SPY875", "Both events must be created with argument 'enable_timing=True'."
            )
        try:
            return self.flex.elapsed_time(end_event.flex)
        except LaunchError as error:
            found = error.finding
            raise EventsWithoutTime(
                found.code, found.message, expected=found.expected, found=found.found
            ) from None

    def __repr__(self) -> str:
        return f"torch.spyre.{self.flex!r}"


Stream, Event = SpyreStream, SpyreEvent
"""The names in ``torch.spyre``."""


def current_stream(device: Any = None) -> SpyreStream:
    """Return the calling thread's stream on a card."""
    return SpyreStream._of(card_of(device).streams.current)


def default_stream(device: Any = None) -> SpyreStream:
    """Return stream 0 of a card."""
    return SpyreStream._of(card_of(device).streams.default)


def set_stream(stream: Any) -> None:
    """Make ``stream``, and its card, current for the calling thread."""
    card = card_at(stream.device.index)
    card.streams.set_current(card.streams.of_id(stream.stream_id))
    set_device(card.index)


def stream(stream: Any) -> Any:
    """``with torch.spyre.stream(s):`` is ``with s:``, except that ``s`` may be None."""
    return nullcontext() if stream is None else stream


def follow_all_streams() -> None:
    """Let the calling thread's stream of each card wait for the work of all other streams.

    A backward pass runs on the current stream, on whichever stream the forward operation ran.
    """
    for card in made_cards():
        current = card.streams.current
        for other in card.streams.handed_out():
            last = other.queue.last
            if other is not current and last is not None and not last.has_ended:
                current.wait_stream(other)
