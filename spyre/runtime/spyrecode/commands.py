"""The commands of a spyrecode.json as structs, the file as a whole, and its consistency checks.

Numbers are integers here and decimal strings in the file. Addresses are device virtual addresses of
the program segment, multiples of 128 (runtime reference §4.2, §5; the example in the specification
breaks this; §8: multiples of 128 are required, an overlap of correction buffer and binary is a
warning).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from spyre.errors import BundleError, Finding, JsonLocation, Severity
from spyre.hw.spec import REGION_BYTES, REGIONS, STICK_BYTES
from spyre.rules import Fault, RuleSet
from spyre.runtime.program import SymbolKind

PROGRAM_REGION = REGIONS - 1
PROGRAM_BASE = PROGRAM_REGION * REGION_BYTES
"""Address of the program segment: 0x1C00000000."""
PROGRAM_END = PROGRAM_BASE + REGION_BYTES
ADDRESS_ALIGNMENT = STICK_BYTES
SYMBOL_BYTES = 8
"""One int64 per symbol in a correction tensor."""


class Direction(Enum):
    """Which way a DataTransfer goes; the value is how ``dirn`` spells it."""

    H2D = "false"
    D2H = "true"


class InitTransfer(msgspec.Struct, frozen=True):
    """Copy ``size_bytes`` of a file of the directory to ``dev_ptr``, once, when prepared."""

    init_bin_file: str
    dev_ptr: int
    size_bytes: int


class Hcm(msgspec.Struct, frozen=True):
    """The computation of a ComputeOnHost. ``symbols``: one kind per int64 of the correction tensor.

    ``symbols`` is None in files of other compilers. ``others``: keys this package does not know.
    """

    vdci: dict[str, Any]
    sen_constants: tuple[Any, ...] = ()
    symbols: tuple[SymbolKind, ...] | None = None
    others: dict[str, Any] = {}


class ComputeOnHost(msgspec.Struct, frozen=True):
    """Fill the new host buffer ``ohandle`` of ``size_bytes``.

    ``ihandle``: name of the buffer that is read, or "" for the launch's symbols. ``ishape``: shape
    of that input in elements, (0,) without an input.
    """

    ihandle: str
    ishape: tuple[int, ...]
    ohandle: str
    size_bytes: int
    hcm: Hcm


class DataTransfer(msgspec.Struct, frozen=True):
    """Copy between the host buffer ``host_handle`` and ``dev_ptr``; D2H makes the buffer."""

    direction: Direction
    host_handle: str
    size_bytes: int
    dev_ptr: int


class ComputeOnDevice(msgspec.Struct, frozen=True):
    """Run the program whose bytes begin at ``job_bin_ptr``."""

    job_bin_ptr: int
    name: str | None = None


ExecutionCommand = ComputeOnHost | DataTransfer | ComputeOnDevice

FileRecord = tuple[int, str]
"""Bytes and SHA-256 (hexadecimal) of another file of the directory."""


class SpyreCode(msgspec.Struct, frozen=True):
    """A spyrecode.json.

    Preparing it reserves ``allocation_bytes`` of the program segment and carries out
    ``init_transfers``. ``files``: records of the other files, by name, if our compiler wrote it.
    ``findings``: warnings about the plans.
    """

    allocation_bytes: int
    init_transfers: tuple[InitTransfer, ...]
    execution: tuple[ExecutionCommand, ...]
    files: dict[str, FileRecord] = {}
    findings: tuple[Finding, ...] = ()


# --- rules between commands -------------------------------------------------------------------


CodeFault = Fault[str]
"""A fault whose place is a JSON path without the root."""


def check_code(code: SpyreCode, file: str) -> tuple[Finding, ...]:
    """Warnings; BundleError SPY828-SPY832, SPY834, SPY836 for the first fault, in file order."""

    def locate(path: str) -> JsonLocation:
        return JsonLocation(file, f"$.{path}")

    for fault in _faults(code):
        raise fault.error(BundleError, locate(fault.place))
    return WARNINGS.findings(code, locate)


def _faults(code: SpyreCode) -> Iterator[CodeFault]:
    """All errors in file order. What comes after one may assume that it is not there."""
    for k, transfer in enumerate(code.init_transfers, 1):
        yield from _range(code, transfer.dev_ptr, transfer.size_bytes, f"JobPreparationPlan[{k}]")
    buffers: dict[str, int] = {}  # size in bytes of every host buffer so far
    for k, command in enumerate(code.execution):
        location = f"JobExecPlan[{k}]"
        match command:
            case ComputeOnHost():
                yield from _host_compute(command, buffers, location)
                buffers[command.ohandle] = command.size_bytes
            case DataTransfer(direction=Direction.H2D):
                yield from _to_device(code, command, buffers, location)
            case DataTransfer():
                yield from _from_device(code, command, buffers, location)
                buffers[command.host_handle] = command.size_bytes
            case ComputeOnDevice():
                yield from _range(code, command.job_bin_ptr, 1, location, "job_bin_ptr")
    yield from _order(code)


# --- addresses --------------------------------------------------------------------------------


def _range(
    code: SpyreCode, address: int, size_bytes: int, item: str, key: str = "dev_ptr"
) -> Iterator[CodeFault]:
    """A pointer into the program segment with ``size_bytes`` behind it, inside the allocation."""
    location = f"{item}.properties.{key}"
    if not PROGRAM_BASE <= address < PROGRAM_END:
        bounds = f"[{PROGRAM_BASE:#x}, {PROGRAM_END:#x})"
        message = f"{key} {address:#x} is out of program segment bounds {bounds}"
        yield Fault("SPY828", location, message)
    yield from _alignment(address, location, key)
    end = address - PROGRAM_BASE + size_bytes
    if end > code.allocation_bytes:
        message = f"{key} reaches beyond the program allocation"
        expected = f"at most {code.allocation_bytes} bytes from {PROGRAM_BASE:#x}"
        found = f"{size_bytes} bytes at {address:#x}, which end at {end}"
        yield Fault("SPY830", location, message, expected, found)


def _alignment(address: int, location: str, key: str) -> Iterator[CodeFault]:
    if address % ADDRESS_ALIGNMENT:
        message = f"{key} {address:#x} is not a multiple of {ADDRESS_ALIGNMENT}"
        below = address // ADDRESS_ALIGNMENT * ADDRESS_ALIGNMENT
        yield Fault("SPY829", location, message, f"{below:#x}", f"{address:#x}")


# --- commands ---------------------------------------------------------------------------------


def _host_compute(
    command: ComputeOnHost, buffers: Mapping[str, int], item: str
) -> Iterator[CodeFault]:
    """Its buffers, and whether the output holds its symbols."""
    properties = f"{item}.properties"
    yield from _new(buffers, command.ohandle, f"{properties}.ohandle", "ohandle")
    if command.ihandle:
        yield from _known(buffers, command.ihandle, f"{properties}.ihandle", "ihandle")
    n_symbols = len(command.hcm.symbols or ())
    if n_symbols * SYMBOL_BYTES > command.size_bytes:
        message = (
            f"Failed to import Hcm for ohandle '{command.ohandle}': "
            f"{n_symbols} symbols do not fit into the buffer"
        )
        expected = f"at least {n_symbols * SYMBOL_BYTES} bytes"
        yield Fault("SPY834", f"{properties}.size", message, expected, f"{command.size_bytes}")


def _to_device(
    code: SpyreCode, command: DataTransfer, buffers: Mapping[str, int], item: str
) -> Iterator[CodeFault]:
    """A host buffer that is there, no more bytes than it has, and where they go."""
    handle = command.host_handle
    yield from _known(buffers, handle, f"{item}.properties.host_handle", "Host handle")
    if command.size_bytes > buffers[handle]:
        message = f"the transfer is larger than host buffer '{handle}'"
        expected = f"at most {buffers[handle]} bytes"
        location = f"{item}.properties.size"
        yield Fault("SPY830", location, message, expected, f"{command.size_bytes}")
    yield from _range(code, command.dev_ptr, command.size_bytes, item)


def _from_device(
    code: SpyreCode, command: DataTransfer, buffers: Mapping[str, int], item: str
) -> Iterator[CodeFault]:
    """Check a D2H transfer, which makes a buffer; its address may be in a tensor segment."""
    properties = f"{item}.properties"
    yield from _new(buffers, command.host_handle, f"{properties}.host_handle", "Host handle")
    if command.dev_ptr < PROGRAM_BASE:
        yield from _alignment(command.dev_ptr, f"{properties}.dev_ptr", "dev_ptr")
    else:
        yield from _range(code, command.dev_ptr, command.size_bytes, item)


def _new(buffers: Mapping[str, int], handle: str, location: str, name: str) -> Iterator[CodeFault]:
    if handle in buffers:
        yield Fault("SPY831", location, f"{name} '{handle}' already exists in pinned buffer map")


def _known(
    buffers: Mapping[str, int], handle: str, location: str, name: str
) -> Iterator[CodeFault]:
    if handle not in buffers:
        message = f"{name} '{handle}' not found in pinned buffer map"
        found = ", ".join(buffers) or "no buffers before this command"
        yield Fault("SPY832", location, message, found=found)


# --- plans ------------------------------------------------------------------------------------


def _order(code: SpyreCode) -> Iterator[CodeFault]:
    """Check the order of a plan that begins with a host compute.

    Host computes and H2D transfers must alternate, and the first H2D comes before the first device
    compute.
    """
    execution = code.execution
    if not execution or not isinstance(execution[0], ComputeOnHost):
        return
    expected: type[ComputeOnHost | DataTransfer] = ComputeOnHost
    for k, command in enumerate(execution):
        is_compute = isinstance(command, ComputeOnDevice)
        wrong = k < 2 if is_compute else not isinstance(command, expected)
        if wrong or (isinstance(command, DataTransfer) and command.direction is Direction.D2H):
            yield _misplaced(code, k, "DataTransfer (host to device), then ComputeOnDevice")
        if not is_compute:
            expected = DataTransfer if expected is ComputeOnHost else ComputeOnHost
    if expected is DataTransfer or not isinstance(execution[-1], ComputeOnDevice):
        yield _misplaced(code, len(execution) - 1, "a plan that ends with ComputeOnDevice")


def _misplaced(code: SpyreCode, k: int, expected: str) -> CodeFault:
    names = [type(command).__name__ for command in code.execution]
    message = f"{names[k]} is not allowed at this position of a plan that begins with ComputeOnHost"
    return Fault("SPY836", f"JobExecPlan[{k}].command", message, expected, ", ".join(names[:8]))


def _overlaps(code: SpyreCode) -> Iterator[CodeFault]:
    """A fault per transfer and file of the program that it overwrites."""
    for k, command in enumerate(code.execution):
        if not isinstance(command, DataTransfer) or command.direction is Direction.D2H:
            continue
        first, end = command.dev_ptr, command.dev_ptr + command.size_bytes
        for binary in code.init_transfers:
            if first < binary.dev_ptr + binary.size_bytes and binary.dev_ptr < end:
                yield Fault(
                    "SPY837",
                    f"JobExecPlan[{k}].properties.dev_ptr",
                    f"the correction buffer overwrites part of {binary.init_bin_file}",
                    expected=f"outside of {binary.dev_ptr:#x} + {binary.size_bytes}",
                    found=f"{first:#x} + {command.size_bytes}",
                )


WARNINGS: RuleSet[SpyreCode, str] = RuleSet({"SPY837": Severity.WARNING}, (_overlaps,))
"""Faults of a directory that can be loaded all the same."""
