"""The SpyreCode of a bundle: what prepares it and what launches it.

Plan shapes are those of the runtime reference (§5): allocate and transfer the binary; then, for a
program with parameters, pack their values on the host, transfer them behind the binary, compute.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.hw.spec import STICK_BYTES
from spyre.runtime.launch_spec import SymbolKind
from spyre.runtime.spyrecode.commands import (
    PROGRAM_BASE,
    SYMBOL_BYTES,
    Allocate,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Direction,
    ExecutionCommand,
    Hcm,
    InitTransfer,
    SpyreCode,
)
from spyre.runtime.spyrecode.init_binary import INIT_BINARY_FILE

CORRECTION = "correction"
"""Name of the host buffer with the symbols' values."""


def make_code(name: str, symbols: Sequence[SymbolKind], binary_bytes: int) -> SpyreCode:
    """The plans of a program with ``symbols`` whose binary has ``binary_bytes`` (whole sticks)."""
    correction_bytes = correction_tensor_bytes(len(symbols))
    preparation = (
        Allocate(binary_bytes + correction_bytes),
        InitTransfer(INIT_BINARY_FILE, PROGRAM_BASE, binary_bytes),
    )
    compute = ComputeOnDevice(PROGRAM_BASE, name)
    if not symbols:
        return SpyreCode(preparation, (compute,))
    correct = _correction(symbols, correction_bytes, PROGRAM_BASE + binary_bytes)
    return SpyreCode(preparation, (*correct, compute))


def correction_tensor_bytes(n_symbols: int) -> int:
    """Bytes of a correction tensor: one int64 per symbol, whole sticks."""
    return -(-n_symbols * SYMBOL_BYTES // STICK_BYTES) * STICK_BYTES


def _correction(
    symbols: Sequence[SymbolKind], size_bytes: int, address: int
) -> tuple[ExecutionCommand, ...]:
    return (
        ComputeOnHost(
            ihandle="",
            ishape=(len(symbols),),
            ohandle=CORRECTION,
            size_bytes=size_bytes,
            hcm=Hcm(vdci={}, symbols=tuple(symbols)),
        ),
        DataTransfer(Direction.H2D, CORRECTION, size_bytes, address),
    )
