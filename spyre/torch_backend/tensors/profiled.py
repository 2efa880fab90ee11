"""Reports memory of cards to torch's profiler, while one with ``profile_memory=True`` runs."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from spyre.torch_backend.compat import report_memory
from spyre.torch_backend.device import made_cards
from spyre.torch_backend.tensors.allocation import DeviceBuffer, living_buffers, watch_memory


class _Shown(weakref.ref[DeviceBuffer]):
    """A buffer whose memory the profiler knows of; its callback reports the end."""

    card: int
    pointer: int
    size_bytes: int


_shown: dict[int, _Shown] = {}
"""Memory shown to the profiler, by pointer."""
_total_bytes: defaultdict[int, int] = defaultdict(int)
"""Bytes reported as in use, by card."""


def start(original: Callable[..., Any], profile: Any) -> None:
    """``torch.autograd.profiler.profile._start_trace``."""
    if profile.profile_memory:
        for card in made_cards():
            for buffer in living_buffers(card):
                if buffer.base is not None and not buffer.is_constant:
                    _remember(buffer, buffer.base.size_bytes)
        watch_memory(_show)
    original(profile)


def stop(original: Callable[..., Any], profile: Any, *args: Any) -> Any:
    """``torch.autograd.profiler.profile.__exit__``."""
    watch_memory(None)
    _shown.clear()
    _total_bytes.clear()
    return original(profile, *args)


def _show(buffer: DeviceBuffer, size_bytes: int) -> None:
    """Report that the buffer has ``size_bytes`` from now on."""
    _report_end(_shown.get(buffer.pointer))
    if size_bytes:
        shown = _remember(buffer, size_bytes)
        report_memory(shown.pointer, size_bytes, _total_bytes[shown.card], shown.card)


def _remember(buffer: DeviceBuffer, size_bytes: int) -> _Shown:
    shown = _Shown(buffer, _report_end)
    shown.card, shown.pointer, shown.size_bytes = buffer.card.index, buffer.pointer, size_bytes
    _shown[shown.pointer] = shown
    _total_bytes[shown.card] += size_bytes
    return shown


def _report_end(shown: Any) -> None:
    if shown is not None and _shown.get(shown.pointer) == shown:
        del _shown[shown.pointer]
        _total_bytes[shown.card] -= shown.size_bytes
        report_memory(shown.pointer, -shown.size_bytes, _total_bytes[shown.card], shown.card)
