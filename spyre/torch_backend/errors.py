"""Errors of the device that are also the ones PyTorch users catch.

All of them are RuntimeErrors, as every `SpyreError` is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spyre.errors import DeviceOutOfMemory, Finding, LaunchError, UnsupportedError

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice
    from spyre.runtime.memory.storage import DeviceStorage


class UnsupportedDtype(UnsupportedError):
    """SPY311 for a torch dtype; its text begins with what torch users look for."""

    def __init__(self, dtype: torch.dtype, known: str) -> None:
        name = str(dtype).removeprefix("torch.")
        super().__init__(
            "SPY311",
            f"Spyre backend does not support dtype {name}",
            expected=known,
            hint="convert on the CPU first, for example x.float().to('spyre')",
        )
        self.args = (_message_first(self.finding),)


class SpyreOutOfMemory(DeviceOutOfMemory, torch.OutOfMemoryError):  # type: ignore[misc]
    """DeviceOutOfMemory that ``except torch.OutOfMemoryError`` catches."""


class Int64Overflow(LaunchError, OverflowError):
    """An int64 value has no place in the card's int32."""


def _message_first(finding: Finding) -> str:
    head, _, rest = str(finding).partition("\n")
    return f"{finding.message} [{finding.code}]\n{rest}" if head else rest


def allocate_memory(card: FlexDevice, size_bytes: int) -> DeviceStorage:
    """Memory of ``card`` that nobody uses; more than `KEEP_BYTES` may hold anything.

    SpyreOutOfMemory SPY401 when there is no room.
    """
    try:
        return card.allocate(size_bytes, uncleared=True)
    except DeviceOutOfMemory as error:
        from spyre.torch_backend.tensor_memory import tensor_memory

        tensor_memory(card).note_out_of_memory()
        raise _out_of_memory(card, size_bytes, error) from None


def _out_of_memory(card: FlexDevice, size_bytes: int, error: DeviceOutOfMemory) -> SpyreOutOfMemory:
    found = card.allocator.statistics()
    return SpyreOutOfMemory(
        error.code,
        f"spyre:{card.index} out of memory. Tried to allocate {size_bytes} bytes",
        expected=f"at most {found.largest_free_bytes} bytes, the largest free block",
        found=f"{found.free_bytes} of {found.reserved_bytes} bytes are free, "
        f"{found.allocated_bytes.current} allocated",
        hint="delete tensors that are no longer needed, or use smaller batches",
    )
