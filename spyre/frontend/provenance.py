"""Kernel provenance: the operations of the user's program that a compiled kernel computes.

torch-spyre names kernels ``spyre_kernel_v1_DISPLAY_KEY``, where KEY is 16 characters of base 32,
and registers the debug handles of their operations under the key. Profiles show the names.
"""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Sequence

_EVENT_NAME = re.compile(r"spyre_kernel_v1_[A-Za-z0-9_]+_([a-z2-7]{16})(#[0-9]+)?")


class _Registry:
    """Debug handles by key; later ones for the same key are ignored."""

    def __init__(self) -> None:
        self.entries: dict[str, list[str]] = {}
        self.counts = {"hits": 0, "misses": 0, "conflicts": 0}
        self.lock = threading.Lock()


_registry = _Registry()


def extract_kernel_provenance_key(event_name: str) -> str | None:
    """The key in a kernel's name, with or without the number of a step; None without one."""
    match = _EVENT_NAME.fullmatch(event_name)
    return None if match is None else match[1]


def register_kernel_provenance(event_base_name: str, debug_handle_ids: Sequence[str]) -> bool:
    """Whether these are the handles of the kernel's key from now on.

    Names without a key, and other handles for a known key, are warned of and not taken.
    """
    key = extract_kernel_provenance_key(event_base_name)
    if key is None:
        warnings.warn(
            f"no kernel provenance is registered: {event_base_name!r} is no name of a kernel",
            stacklevel=2,
        )
        return False
    handles = list(debug_handle_ids)
    with _registry.lock:
        known = _registry.entries.setdefault(key, handles)
        if known == handles:
            return True
        _registry.counts["conflicts"] += 1
    warnings.warn(
        f"kernel provenance of {key} stays {json.dumps(known)}; {json.dumps(handles)} is not taken",
        stacklevel=2,
    )
    return False


def lookup_kernel_provenance(key: str) -> list[str] | None:
    """The debug handles registered for a key; None without any."""
    with _registry.lock:
        found = _registry.entries.get(key)
        _registry.counts["misses" if found is None else "hits"] += 1
    return None if found is None else list(found)


def kernel_provenance_registry_stats() -> dict[str, int]:
    """Number of entries, and of lookups and conflicts until now."""
    with _registry.lock:
        return {"entries": len(_registry.entries), **_registry.counts}
