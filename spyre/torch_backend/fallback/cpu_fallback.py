"""The CPU fallback: operations without a kernel on the card run on copies of their arguments.

The first fallback of each operation gives a warning; `fallbacks` counts the calls,
`fallback_seconds` sums their times, and SPYRE_FALLBACK=error makes them errors. :mod:`.call` runs
one. Tensors of several devices are refused: the CPU could compute with them, but PyTorch users rely
on the error, because the same code fails on any other device. Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from spyre import config
from spyre.errors import UnsupportedError
from spyre.torch_backend.compat import schema_of
from spyre.torch_backend.device import warn_user
from spyre.torch_backend.fallback.call import FallbackCall, tensors_in
from spyre.torch_backend.program import NotRecorded, current_recorder

_lock = threading.Lock()
_counts: Counter[str] = Counter()
_seconds: dict[str, float] = {}
_warned: set[str] = set()


def fallbacks() -> dict[str, int]:
    """Return the number of CPU fallbacks of each operation, by its full name."""
    with _lock:
        return dict(_counts)


def fallback_seconds() -> dict[str, float]:
    """Return the host seconds that each operation spent in the CPU fallback, by its full name,
    including copies and waiting for earlier work of the card.
    """
    with _lock:
        return dict(_seconds)


def reset_fallbacks() -> None:
    """Reset counts and times to zero; warnings already given are not repeated."""
    with _lock:
        _counts.clear()
        _seconds.clear()


def cpu_fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``op`` on the CPU with copies. UnsupportedError SPY900 with SPYRE_FALLBACK=error.

    RuntimeError with torch's text for tensors on several devices; NotRecorded while the compiler
    records kernels.
    """
    if current_recorder() is not None:
        raise NotRecorded(str(op))
    with on_cpu(str(op)):
        check_devices(op, args, kwargs)
        return FallbackCall(op).run(args, kwargs)


def on_cpu(name: str) -> AbstractContextManager[None]:
    """Count and time an operation that the block runs on the CPU; warn of it, or refuse it."""
    _announce(name)
    return _timed(name)


@contextmanager
def _timed(name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - start
        with _lock:
            _seconds[name] = _seconds.get(name, 0.0) + seconds


def _announce(name: str) -> None:
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


HOST_ARGUMENTS = {
    "aten::_ctc_loss": ("input_lengths", "target_lengths"),
    "aten::_ctc_loss_backward": ("input_lengths", "target_lengths"),
    "aten::_fused_adam_": ("state_steps",),
    "aten::_fused_adamw_": ("state_steps",),
    "aten::_index_put_impl_": ("indices",),
    "aten::_pack_padded_sequence": ("lengths",),
    "aten::_pad_packed_sequence": ("batch_sizes",),
    "aten::_pin_memory": ("self",),
    "aten::_unsafe_index": ("indices",),
    "aten::_unsafe_index_put": ("indices",),
    "aten::copy": ("src",),
    "aten::copy_": ("src",),
    "aten::index": ("indices",),
    "aten::index_put": ("indices",),
    "aten::index_put_": ("indices",),
    "aten::lstm": ("batch_sizes",),
    "aten::set_data": ("new_data",),
}
"""By operator, the arguments that may be CPU tensors of any size."""


def check_devices(op: Any, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError with torch's text if tensors are on two cards, or on a card and the CPU.

    CPU tensors without dims count as numbers, as in torch.
    """
    tensors = [tensor for value in (*args, *kwargs.values()) for tensor in tensors_in(value)]
    if len({tensor.device for tensor in tensors}) < 2:
        return
    schema = schema_of(op)
    allowed = HOST_ARGUMENTS.get(schema.name, ())
    specs = {spec.name: spec for spec in schema.arguments}
    pairs = [*zip(schema.arguments, args, strict=False)]
    pairs += [(specs[name], value) for name, value in kwargs.items()]
    devices: dict[torch.device, None] = {}
    for spec, value in pairs:
        for tensor in tensors_in(value):
            is_written = spec.alias_info is not None and spec.alias_info.is_write
            is_number = tensor.device.type == "cpu" and tensor.dim() == 0 and not is_written
            if not is_number and not (tensor.device.type == "cpu" and spec.name in allowed):
                devices[tensor.device] = None
    if len(devices) > 1:
        first, second = [*devices][:2]
        raise RuntimeError(
            "Expected all tensors to be on the same device, "
            f"but found at least two devices, {first} and {second}! (in {schema.name})"
        )
