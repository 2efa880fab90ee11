"""What has to hold between the commands of a spyrecode.json; one function per fault.

Addresses are device virtual addresses of the program segment, multiples of 128 (runtime reference
§4.2, §5: the specification's own example breaks this; §8: 128-multiples are demanded, an overlap of
correction buffer and binary is a warning).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from spyre.errors import BundleError, Finding, JsonLocation, Severity
from spyre.runtime.spyrecode.commands import (
    ADDRESS_ALIGNMENT,
    PROGRAM_BASE,
    PROGRAM_END,
    SYMBOL_BYTES,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Direction,
    ExecutionCommand,
    SpyreCode,
)


def check_code(code: SpyreCode, file: str) -> tuple[Finding, ...]:
    """Warnings; BundleError SPY828-SPY832, SPY834, SPY836 for the first fault, in file order."""
    rules = _Rules(code, file)
    for k, transfer in enumerate(code.init_transfers, 1):
        rules.range(transfer.dev_ptr, transfer.size_bytes, f"JobPreparationPlan[{k}]")
    for k, command in enumerate(code.execution):
        rules.execution(command, f"JobExecPlan[{k}]")
    rules.order()
    return tuple(rules.overlaps())


@dataclass(slots=True)
class _Rules:
    """The walk over the plans; ``buffers``: size in bytes of every host buffer so far."""

    code: SpyreCode
    file: str
    buffers: dict[str, int] = field(default_factory=dict)

    def place(self, item: str, key: str) -> JsonLocation:
        return JsonLocation(self.file, f"$.{item}.properties.{key}")

    # --- addresses ---

    def pointer(self, address: int, item: str, key: str = "dev_ptr") -> None:
        """SPY828 outside of the program segment, SPY829 between sticks."""
        if not PROGRAM_BASE <= address < PROGRAM_END:
            raise BundleError(
                "SPY828",
                f"{key} {address:#x} is out of program segment bounds "
                f"[{PROGRAM_BASE:#x}, {PROGRAM_END:#x})",
                self.place(item, key),
            )
        self.aligned(address, item, key)

    def aligned(self, address: int, item: str, key: str = "dev_ptr") -> None:
        """SPY829."""
        if address % ADDRESS_ALIGNMENT:
            raise BundleError(
                "SPY829",
                f"{key} {address:#x} is not a multiple of {ADDRESS_ALIGNMENT}",
                self.place(item, key),
                expected=f"{address // ADDRESS_ALIGNMENT * ADDRESS_ALIGNMENT:#x}",
                found=f"{address:#x}",
            )

    def range(self, address: int, size_bytes: int, item: str, key: str = "dev_ptr") -> None:
        """A pointer with ``size_bytes`` behind it; SPY830 when they leave the allocation."""
        self.pointer(address, item, key)
        end = address - PROGRAM_BASE + size_bytes
        if end > self.code.allocation_bytes:
            raise BundleError(
                "SPY830",
                f"{key} reaches beyond the program allocation",
                self.place(item, key),
                expected=f"at most {self.code.allocation_bytes} bytes from {PROGRAM_BASE:#x}",
                found=f"{size_bytes} bytes at {address:#x}, which end at {end}",
            )

    # --- commands ---

    def execution(self, command: ExecutionCommand, item: str) -> None:
        """One command of the execution plan; host buffers are remembered."""
        match command:
            case ComputeOnHost():
                self.host_compute(command, item)
            case DataTransfer(direction=Direction.H2D):
                self.known(command.host_handle, item, "host_handle", "Host handle")
                self.fits(command, item)
                self.range(command.dev_ptr, command.size_bytes, item)
            case DataTransfer():
                self.from_device(command, item)
            case ComputeOnDevice():
                self.range(command.job_bin_ptr, 1, item, "job_bin_ptr")

    def host_compute(self, command: ComputeOnHost, item: str) -> None:
        """Its buffers, and whether the output holds its symbols (SPY834)."""
        self.new(command.ohandle, item, "ohandle", "ohandle")
        if command.ihandle:
            self.known(command.ihandle, item, "ihandle", "ihandle")
        n_symbols = len(command.hcm.symbols or ())
        if n_symbols * SYMBOL_BYTES > command.size_bytes:
            raise BundleError(
                "SPY834",
                f"Failed to import Hcm for ohandle '{command.ohandle}': "
                f"{n_symbols} symbols do not fit into the buffer",
                self.place(item, "size"),
                expected=f"at least {n_symbols * SYMBOL_BYTES} bytes",
                found=f"{command.size_bytes}",
            )
        self.buffers[command.ohandle] = command.size_bytes

    def from_device(self, command: DataTransfer, item: str) -> None:
        """D2H makes a buffer; its address may lie in a tensor segment."""
        self.new(command.host_handle, item, "host_handle", "Host handle")
        if command.dev_ptr < PROGRAM_BASE:
            self.aligned(command.dev_ptr, item)
        else:
            self.range(command.dev_ptr, command.size_bytes, item)
        self.buffers[command.host_handle] = command.size_bytes

    def new(self, handle: str, item: str, key: str, what: str) -> None:
        """SPY831."""
        if handle in self.buffers:
            message = f"{what} '{handle}' already exists in pinned buffer map"
            raise BundleError("SPY831", message, self.place(item, key))

    def known(self, handle: str, item: str, key: str, what: str) -> None:
        """SPY832."""
        if handle not in self.buffers:
            raise BundleError(
                "SPY832",
                f"{what} '{handle}' not found in pinned buffer map",
                self.place(item, key),
                found=", ".join(self.buffers) or "no buffers before this command",
            )

    def fits(self, command: DataTransfer, item: str) -> None:
        """SPY830: more bytes than the host buffer has."""
        buffer_bytes = self.buffers[command.host_handle]
        if command.size_bytes > buffer_bytes:
            raise BundleError(
                "SPY830",
                f"the transfer is larger than host buffer '{command.host_handle}'",
                self.place(item, "size"),
                expected=f"at most {buffer_bytes} bytes",
                found=f"{command.size_bytes}",
            )

    # --- plans ---

    def order(self) -> None:
        """SPY836: a plan that begins on the host prepares (host compute, then H2D) and computes.

        The two kinds are looked at as sequences of their own, and the first H2D has to come
        before the first compute.
        """
        execution = self.code.execution
        if not execution or not isinstance(execution[0], ComputeOnHost):
            return
        expected: type[ComputeOnHost | DataTransfer] = ComputeOnHost
        for k, command in enumerate(execution):
            is_compute = isinstance(command, ComputeOnDevice)
            wrong = k < 2 if is_compute else not isinstance(command, expected)
            if wrong or (isinstance(command, DataTransfer) and command.direction is Direction.D2H):
                raise self.misplaced(k, "DataTransfer (host to device), then ComputeOnDevice")
            if not is_compute:
                expected = DataTransfer if expected is ComputeOnHost else ComputeOnHost
        if expected is DataTransfer or not isinstance(execution[-1], ComputeOnDevice):
            raise self.misplaced(len(execution) - 1, "a plan that ends with ComputeOnDevice")

    def misplaced(self, k: int, expected: str) -> BundleError:
        """SPY836."""
        names = [type(command).__name__ for command in self.code.execution]
        return BundleError(
            "SPY836",
            f"{names[k]} may not stand here in a plan that begins with ComputeOnHost",
            JsonLocation(self.file, f"$.JobExecPlan[{k}].command"),
            expected=expected,
            found=", ".join(names[:8]),
        )

    def overlaps(self) -> Iterator[Finding]:
        """SPY837, a warning per transfer that overwrites part of the program."""
        for k, command in enumerate(self.code.execution):
            if not isinstance(command, DataTransfer) or command.direction is Direction.D2H:
                continue
            first, end = command.dev_ptr, command.dev_ptr + command.size_bytes
            for binary in self.code.init_transfers:
                if first < binary.dev_ptr + binary.size_bytes and binary.dev_ptr < end:
                    yield Finding(
                        "SPY837",
                        Severity.WARNING,
                        f"the correction buffer overwrites part of {binary.init_bin_file}",
                        self.place(f"JobExecPlan[{k}]", "dev_ptr"),
                        expected=f"outside of {binary.dev_ptr:#x} + {binary.size_bytes}",
                        found=f"{first:#x} + {command.size_bytes}",
                    )
