"""The CPU fallback: operations without a kernel of their own run on copies of their arguments.

An operation is named in a warning the first time it falls back; `fallbacks` counts them, and
SPYRE_FALLBACK=error makes them errors. How one runs is in :mod:`.fallback_call`. Any thread may
fall back.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from spyre import config
from spyre.errors import UnsupportedError
from spyre.torch_backend.eager.recording import NotRecorded, current_recorder
from spyre.torch_backend.fallback_call import FallbackCall
from spyre.torch_backend.mixed_devices import check_devices
from spyre.torch_backend.user_warnings import warn_user

_lock = threading.Lock()
_counts: Counter[str] = Counter()
_warned: set[str] = set()


def fallbacks() -> dict[str, int]:
    """How often each operation ran on the CPU instead of the card, by its full name."""
    with _lock:
        return dict(_counts)


def reset_fallbacks() -> None:
    """Count from zero again; warnings already given are not repeated."""
    with _lock:
        _counts.clear()


def cpu_fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``op`` on the CPU over copies. UnsupportedError SPY900 with SPYRE_FALLBACK=error.

    RuntimeError, in torch's words, for tensors on several devices; NotRecorded while the compiler
    records what kernels do.
    """
    if current_recorder() is not None:
        raise NotRecorded(str(op))
    announce(str(op))
    check_devices(op, args, kwargs)
    return FallbackCall(op).run(args, kwargs)


def announce(name: str) -> None:
    """Count an operation that is about to run on the CPU; warn of it, or refuse it."""
    mode = config.FALLBACK.read().lower()
    if mode == "error":
        raise UnsupportedError(
            "SPY900",
            f"{name} has no kernel on the card",
            expected="an operation of docs/torch.md, or SPYRE_FALLBACK=warn",
            hint="move the tensors to the CPU explicitly, or allow the CPU fallback",
        )
    with _lock:
        _counts[name] += 1
        is_new = mode != "silent" and name not in _warned
        if is_new:
            _warned.add(name)
    if is_new:
        warn_user(
            f"{name} runs on the CPU: the spyre device has no kernel for it "
            "(SPYRE_FALLBACK=silent hides this, =error forbids it)"
        )
