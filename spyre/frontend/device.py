"""Cards, streams, random numbers and memory with the interface of ``torch_spyre._C``.

Adapters of `spyre.torch_backend.device` with the extension's names, signatures and messages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from spyre.frontend.formats import SpyreDeviceState, SpyreStreamError, named_as_extension
from spyre.torch_backend.device import (
    SpyreGenerator,
    card_at,
    card_of,
    current_device,
    device_count,
    made_cards,
    memory_stats,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_device as set_current_card,
    synchronize,
)

if TYPE_CHECKING:
    from spyre.runtime.flex import FlexStream

# --- cards ----------------------------------------------------------------------------------------

_MAX_INDEX = 127
"""Of a torch device."""


def start_runtime() -> None:
    """Make the card that LOCAL_RANK names (default: 0), and make it current, the first time.

    ValueError for a LOCAL_RANK that is no number, LaunchError SPY883 for a card that is not there.
    """
    if not made_cards():
        rank = _local_rank()
        if rank:
            set_current_card(rank)
        card_at(-1)


def _local_rank() -> int:
    text = os.environ.get("LOCAL_RANK", "")
    if not text:
        return 0
    try:
        rank = int(text)
    except ValueError:
        raise ValueError(f"LOCAL_RANK must be a valid integer: '{text}'") from None
    if rank < 0:
        raise ValueError(f"LOCAL_RANK value is out of range: '{text}'")
    if rank > _MAX_INDEX:
        raise ValueError(
            f"LOCAL_RANK value {rank} exceeds the maximum supported device index ({_MAX_INDEX})"
        )
    return rank


def free_runtime() -> None:
    """Wait for all cards. Their memory is that of their tensors, which may still be in use."""
    synchronize()


def get_device_state() -> SpyreDeviceState:
    """Whether there is a card yet, and whether one of its streams has failed."""
    cards = made_cards()
    if not cards:
        return SpyreDeviceState.NotInitialized
    failed = any(s.error is not None for card in cards for s in card.streams.handed_out())
    return SpyreDeviceState.StreamError if failed else SpyreDeviceState.Ok


def set_device(idx: int) -> None:
    """Make a card the calling thread's. RuntimeError for one that is not there."""
    count = device_count()
    if not 0 <= idx < count:
        raise RuntimeError(f"Device index {idx} out of range [0, {count})")
    set_current_card(idx)


# --- streams --------------------------------------------------------------------------------------

FIRST_HOST_STREAM = 65
"""Ids of streams for computations on the host begin behind those of both pools."""


@named_as_extension("_SpyreStreamBase")
class FrontendStream:
    """A stream of a card. Any thread. ``flex``: the runtime's."""

    def __init__(self, flex: FlexStream) -> None:
        self.flex = flex

    def synchronize(self) -> None:
        """Wait for everything submitted until now; raises the stream's error, once."""
        self.flex.synchronize()

    def query(self) -> bool:
        """True if everything submitted has ended; raises the stream's error, once."""
        return self.flex.query()

    def device(self) -> torch.device:
        return torch.device("spyre", self.flex.device.index)

    def id(self) -> int:
        return self.flex.stream_id

    def priority(self) -> int:
        return self.flex.priority

    def __repr__(self) -> str:
        return f"<torch_spyre.Stream device={self.flex.device.index} id={self.id()}>"


def get_stream_from_pool(device: Any, priority: int = 0) -> FrontendStream:
    """The next stream of a card's pool: the low one for priority 0, else the high one."""
    return FrontendStream(card_of(device).streams.take(priority))


def current_stream(device: Any) -> FrontendStream:
    """The calling thread's stream on a card."""
    return FrontendStream(card_of(device).streams.current)


def default_stream(device: Any) -> FrontendStream:
    """Stream 0 of a card."""
    return FrontendStream(card_of(device).streams.default)


def set_current_stream(stream: FrontendStream) -> FrontendStream:
    """Make a stream the calling thread's on its card; returns the one before."""
    card = card_at(stream.flex.device.index)
    return FrontendStream(card.streams.set_current(stream.flex))


_host_streams: dict[tuple[int, int], FlexStream] = {}
"""Streams for host computations, by card and id."""
_turns: dict[int, int] = {}
"""Which of them is next, by card."""
_streams_lock = threading.Lock()


def _host_stream_count() -> int:
    return int(os.environ.get("TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS", "4"))


def host_compute_stream(device: Any) -> FrontendStream:
    """The next stream for computations on the host."""
    card = card_of(device).index
    with _streams_lock:
        turn = _turns.get(card, 0)
        _turns[card] = (turn + 1) % _host_stream_count()
    return host_compute_stream_by_id(FIRST_HOST_STREAM + turn, device)


def host_compute_stream_by_id(id: int, device: Any) -> FrontendStream:
    """A stream for computations on the host. RuntimeError for the id of another stream."""
    end = FIRST_HOST_STREAM + _host_stream_count()
    if not FIRST_HOST_STREAM <= id < end:
        raise RuntimeError(
            f"getHostComputeStreamById: stream id {id} is not a host compute stream id "
            f"(valid range [{FIRST_HOST_STREAM}, {end}))"
        )
    from spyre.runtime.flex import FlexStream

    card = card_of(device)
    with _streams_lock:
        if (card.index, id) not in _host_streams:
            _host_streams[card.index, id] = FlexStream(card, id)
        return FrontendStream(_host_streams[card.index, id])


def stream_get_error(stream: FrontendStream) -> SpyreStreamError:
    """Whether a stream takes work."""
    failed = stream.flex.error is not None
    return SpyreStreamError.Shutdown if failed else SpyreStreamError.Success


def stream_get_error_string(error: SpyreStreamError) -> str:
    """Its name."""
    return error.name


# --- random numbers -------------------------------------------------------------------------------

_generators: dict[int, torch.Generator] = {}


def _get_default_generator(device: int = -1) -> torch.Generator:
    """The generator of a card (-1: the current one), the same object every time."""
    index = current_device() if device == -1 else int(device)
    count = device_count()
    if not 0 <= index < count:
        raise RuntimeError(f"Device index {index} out of range [0, {count})")
    if index not in _generators:
        _generators[index] = SpyreGenerator(torch.device("spyre", index))
    return _generators[index]


def manual_seed(seed: int, device: int = -1) -> None:
    """Seed the generator of a card."""
    _get_default_generator(device).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cards."""
    for index in range(device_count()):
        manual_seed(seed, index)


def get_rng_state(device: int = -1) -> torch.Tensor:
    """State of a card's generator."""
    return _get_default_generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: int = -1) -> None:
    """Go on from a state."""
    _get_default_generator(device).set_state(new_state)


def initial_seed(device: int = -1) -> int:
    """The seed of a card's generator."""
    return int(_get_default_generator(device).initial_seed())


# --- memory ---------------------------------------------------------------------------------------


def allocator_stats(device: int) -> dict[str, int]:
    """Bytes and number of allocations of a card's tensors."""
    stats = memory_stats(device)
    names = ("allocated_bytes.all.current", "allocation.all.current")
    return {name: stats[name] for name in names}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "start_runtime": start_runtime,
    "free_runtime": free_runtime,
    "get_device_state": get_device_state,
    "device_count": device_count,
    "set_device": set_device,
    "current_device": current_device,
    "get_stream_from_pool": get_stream_from_pool,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "set_current_stream": set_current_stream,
    "host_compute_stream": host_compute_stream,
    "host_compute_stream_by_id": host_compute_stream_by_id,
    "synchronize": synchronize,
    "stream_get_error": stream_get_error,
    "stream_get_error_string": stream_get_error_string,
    "_get_default_generator": _get_default_generator,
    "manual_seed": manual_seed,
    "manual_seed_all": manual_seed_all,
    "get_rng_state": get_rng_state,
    "set_rng_state": set_rng_state,
    "initial_seed": initial_seed,
    "_spyre_get_allocator_stats": allocator_stats,
    "_spyre_reset_accumulated_stats": reset_accumulated_memory_stats,
    "_spyre_reset_peak_stats": reset_peak_memory_stats,
}
"""By their name in ``torch_spyre._C``."""
