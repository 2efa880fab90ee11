"""Views of single executes of a linked program: memory of each operand, and the core and element
at an address.

`stepping_runner` runs dispatches ``first`` .. ``last`` of a view with `Executor.run_part`.
Observers read memory before and after: the reference implementation (``--verify``), the comparison
of number modes, breakpoints and the search for the first wrong execute. An execute whose cores have
slices of different sizes has a view per part, run one after another.

``--verify`` runs every execute on the engine and on :mod:`spyre.hw.reference`, which is slow and
has a memory beside the device's. Before an execute the operands are copied into it, so that
rounding differences do not accumulate; afterwards the outputs must agree
(:mod:`spyre.hw.reference.agreement`) and the inputs must be unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from math import prod
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.dtypes import Mode, find_stored_format
from spyre.errors import DeviceLocation, Finding, MismatchError, Severity
from spyre.hw.access import TensorAccess, core_boxes, covers, global_coordinate, touched_bytes
from spyre.hw.counters import UNLABELLED, ExecuteLabels, StatementView
from spyre.hw.device import Device, Progress
from spyre.hw.linking import LinkedProgram, arrangements_at
from spyre.hw.memory import DeviceMemory
from spyre.hw.plans import CorePlan, LinkedPart
from spyre.hw.reference import (
    NOT_COMPARABLE,
    Execution,
    agreement_of,
    decoded,
    run_reference,
    sum_noise,
    ulp_distance,
)
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES, STICK_BYTES
from spyre.layout import Int64Array, arrangement_positions
from spyre.mlir.operation import Component, Indirection, Operation
from spyre.runtime.kernel import ExecutedLaunch, Runner


class ByteRange(msgspec.Struct, frozen=True):
    """Bytes that an operand touches; ``operand``: as in ``Operation.tensors``; ``core``: of LX."""

    operand: int
    address_bytes: int
    size_bytes: int
    core: int | None = None


class ExecuteView(msgspec.Struct, frozen=True, dict=True):
    """One part of one execution of an execute statement; most have a single one.

    ``first``/``last``: its dispatches, end excluded. ``static``: index of the execute statement,
    ``instance``: which of its executions. ``is_first_part``: False for its further parts.
    """

    linked: LinkedProgram
    first: int
    last: int
    static: int
    instance: int
    run: LinkedPart
    is_first_part: bool = True

    @property
    def statement(self) -> StatementView:
        """The execute statement."""
        return self.linked.view.statements[self.static]

    @property
    def plan(self) -> CorePlan:
        """The plan that runs."""
        return self.run.plan

    @property
    def op(self) -> Operation:
        """The plain operation of the part, see :mod:`spyre.hw.plans.normalise`."""
        return self.run.plan.op

    @property
    def loop_indices(self) -> tuple[int, ...]:
        """Indices of the enclosing loops, outermost first."""
        return self.linked.view.loop_indices(self.static, self.instance)

    @cached_property
    def starts(self) -> Int64Array:
        """Device addresses in bytes, [operand, core]."""
        row = int(np.flatnonzero(self.run.instances == self.instance)[0])
        return self.run.bases[row, :, None] + self.run.pattern

    @cached_property
    def arrangements(self) -> tuple[str, ...]:
        """Element arrangement of every operand."""
        return arrangements_at(self.op, self.starts[:, 0], self.linked.binding)

    @cached_property
    def ranges(self) -> tuple[ByteRange, ...]:
        """Bytes that the operands touch, in their order; one range per core (or cell) in LX."""
        return tuple(r for k in range(len(self.op.tensors)) for r in self._ranges(k))

    def _ranges(self, operand: int) -> Iterator[ByteRange]:
        access, starts = self.plan.accesses[operand], self.starts[operand]
        if access.tensor.component is not Component.LX:
            low, high = _hbm_extent(self, operand)
            yield ByteRange(operand, low, high - low)
            return
        for start in starts.tolist():
            core = (start - LX_BASE) // LX_BYTES
            indirect = access.tensor.indirection is Indirection.VALUE
            end = LX_BASE + (core + 1) * LX_BYTES if indirect else start + access.span_bytes
            yield ByteRange(operand, start, end - start, core)

    def location(self, operand: int, core: int | None, address_bytes: int) -> DeviceLocation:
        """Location of a byte of an operand, for findings; ``core`` has it in its LX, or wrote it.

        Addresses in a scratchpad count from its start.
        """
        tensor = self.op.tensors[operand]
        if tensor.component is Component.LX and core is not None:
            address_bytes = (address_bytes - LX_BASE) % LX_BYTES
        return DeviceLocation(
            self.op.file,
            self.static,
            core,
            tensor.name,
            address_bytes,
            self.loop_indices,
            self.statement.location,
        )


def execute_views(linked: LinkedProgram) -> Iterator[ExecuteView]:
    """All steps of a program in program order."""
    runs = [run for group in linked.runs for run in group]
    which = np.searchsorted(linked.code.run_rows, linked.dispatch[:, 0], side="right") - 1
    key = np.column_stack((linked.dispatch[:, 1:3], which))
    if not len(key):
        return
    change = np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1
    before = None
    for first, last in pairwise([0, *change.tolist(), len(key)]):
        static, instance, run = (int(v) for v in key[first])
        is_first_part = before != (static, instance)
        yield ExecuteView(linked, first, last, static, instance, runs[run], is_first_part)
        before = static, instance


class MemoryWindow(msgspec.Struct, frozen=True):
    """Memory an operand may touch: ``low`` .. ``high`` of HBM, or of every scratchpad.

    Bytes; in LX they are offsets within the scratchpads of cores ``cores``, end excluded.
    """

    low: int
    high: int
    cores: tuple[int, int] | None = None

    def view(self, memory: DeviceMemory) -> npt.NDArray[np.uint8]:
        """The bytes, writable in place: [bytes], or [core, bytes] of scratchpads."""
        if self.cores is None:
            return memory.view(self.low, self.high - self.low)
        pads = memory.view(LX_BASE, CORES * LX_BYTES).reshape(CORES, LX_BYTES)
        return pads[slice(*self.cores), self.low : self.high]

    def address(self, position: Int64Array) -> Int64Array:
        """Device addresses of flat byte positions of `view`."""
        if self.cores is None:
            return self.low + position
        core, offset = np.divmod(position, self.high - self.low)
        return LX_BASE + (self.cores[0] + core) * LX_BYTES + self.low + offset


def operand_window(step: ExecuteView, operand: int) -> MemoryWindow:
    """Return the memory an operand may touch on all cores; with an index, its whole allocation."""
    access = step.plan.accesses[operand]
    if access.tensor.component is not Component.LX:
        return MemoryWindow(*_hbm_extent(step, operand))
    # The starts may be in the scratchpads of other cores.
    pads, offsets = np.divmod(step.starts[operand] - LX_BASE, LX_BYTES)
    is_indexed = access.tensor.indirection is Indirection.VALUE
    high = LX_BYTES if is_indexed else int(offsets.max()) + access.span_bytes
    return MemoryWindow(int(offsets.min()), high, (int(pads.min()), int(pads.max()) + 1))


def _hbm_extent(step: ExecuteView, operand: int) -> tuple[int, int]:
    access, starts = step.plan.accesses[operand], step.starts[operand]
    low, high = touched_bytes(step.op, access.tensor, starts)
    if access.tensor.indirection is Indirection.VALUE:
        owners = [
            a for a in step.linked.binding.allocations if a.address_bytes <= low < a.end_bytes
        ]
        high = max([high, *(a.end_bytes for a in owners)])
    return low, high


_PIECE = 1 << 16
"""Sticks whose cores are looked up at once."""


def output_elements(op: Operation, access: TensorAccess) -> int:
    """Stored elements of an output that an execute writes, over all cores."""
    dims = [d for d in op.dims if access.tensor.holds(d)]
    return prod(op.extents[d] for d in dims) * (access.lanes if access.is_lane else 1)


def writers(step: ExecuteView, operand: int, addresses: Int64Array) -> Int64Array:
    """Position of the first core that writes each address (bytes, ascending); -1: none does.

    Where an index moves the output, addresses depend on data, and it is the first core for all.
    """
    access, starts = step.plan.accesses[operand], step.starts[operand]
    if not addresses.size:
        return np.zeros(0, np.int64)
    if access.tensor.indirection is Indirection.VALUE:
        return np.zeros(addresses.size, np.int64)
    # Addresses ascend, so those of one stick are neighbours, and one look-up serves all of them.
    sticks = addresses // STICK_BYTES
    new = np.concatenate([[True], sticks[1:] != sticks[:-1]])
    which, heads = np.cumsum(new) - 1, addresses[new]
    owner = np.empty(heads.size, np.int64)
    for at in range(0, heads.size, _PIECE):
        offsets = heads[at : at + _PIECE, None] - starts[None, :]
        inside = covers(step.plan.op, access.tensor, offsets)
        owner[at : at + _PIECE] = np.where(inside.any(axis=1), inside.argmax(axis=1), -1)
    owners: Int64Array = owner[which]
    return owners


def element_coordinates(step: ExecuteView, operand: int, address: int, core: int) -> dict[str, int]:
    """Coordinates of an operand's element at an address, for the ``core`` at this position."""
    op, access = step.plan.op, step.plan.accesses[operand]
    tensor, offset = access.tensor, address - int(step.starts[operand][core])
    box = core_boxes(op, tensor)[core]
    assert box is not None
    steps = dict(global_coordinate(op, tensor, box, core, offset))
    if access.stick_dim in steps:
        steps[access.stick_dim] += offset % STICK_BYTES // tensor.word_length_bytes
    return {d: steps[d] for d in tensor.dims if d in steps}


def find_point(
    execution: Execution, address_bytes: int, core: int | None = None
) -> tuple[int | None, dict[str, int]]:
    """The core and the coordinates, by the dims that the output holds, of the element at
    ``address_bytes``, or else of an element in the same stick.

    Of several cores the first. No coordinates where the place depends on data; then, or if no
    core's share has the byte, the core is ``core``. ``core``: look at this core only (in LX).
    """
    for exact in (True, False):
        for position in execution.cores:
            if core is not None and execution.op.cores[position] != core:
                continue
            coordinate = _coordinate_of(execution, position, address_bytes, exact)
            if coordinate is not None:
                return execution.op.cores[position], coordinate
    return core, {}


def _coordinate_of(
    execution: Execution, position: int, address: int, exact: bool
) -> dict[str, int] | None:
    addresses = execution.addresses(execution.output, position)
    if exact:
        hits = np.flatnonzero(addresses == address)
    else:
        hits = np.flatnonzero(addresses // STICK_BYTES == address // STICK_BYTES)
    if not hits.size:
        return None
    op, output = execution.op, execution.op.outputs[0]
    coordinate = {
        dim: int(execution.global_coordinate(dim, position).ravel()[hits[0]])
        for dim in op.dims
        if output.holds(dim)
    }
    _undo_arrangement(execution, coordinate)
    return coordinate


def _undo_arrangement(execution: Execution, coordinate: dict[str, int]) -> None:
    """Replace the position in memory by the column stored there (operations reference §6)."""
    tag = execution.arrangement(execution.output)
    dim = execution.op.outputs[0].stick_dims[0]
    if tag == "STANDARD" or dim not in coordinate:
        return
    positions = np.asarray(arrangement_positions(tag))
    group, position = divmod(coordinate[dim], len(positions))
    coordinate[dim] = group * len(positions) + int(np.flatnonzero(positions == position)[0])


# --- running execute by execute -----------------------------------------------------------------

Parts = Sequence[ExecuteView]
"""One execution; several views where cores have slices of different sizes."""


class ExecuteObserver(Protocol):
    """Called around every execution. ``number``: of the execute statement, as reports count."""

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Look at memory before the execution."""

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Look at memory after the execution; an exception ends the run."""


def execution_parts(linked: LinkedProgram) -> list[Parts]:
    """The views of each execution of a program, in program order."""
    groups = groupby(execute_views(linked), key=lambda view: (view.static, view.instance))
    return [list(views) for _, views in groups]


def stepping_runner(
    observers: Sequence[ExecuteObserver],
    label: ExecuteLabels = UNLABELLED,
    progress: Progress | None = None,
) -> Runner:
    """A runner that calls ``observers`` around every execution. It measures no execute times."""

    def run(device: Device, linked: LinkedProgram) -> ExecutedLaunch:
        begin = time.perf_counter_ns()
        device.executor.warm(linked)  # observed executes run in compiled kernels
        for parts in execution_parts(linked):
            number = label.first_execute + parts[0].static
            for observer in observers:
                observer.before(device, parts, number)
            run_parts(device, parts)
            for observer in observers:
                observer.after(device, parts, number)
            if progress is not None:
                progress(parts[-1].last, len(linked.dispatch))
        return ExecutedLaunch(linked, begin, label=label)

    return run


def run_parts(device: Device, parts: Parts) -> None:
    """Run one execution."""
    for part in parts:
        device.executor.run_part(part.linked, part.first, part.last)


# --- the check against the reference -------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]

DEFAULT_VERIFY_POINTS = 1 << 23
"""Points of the iteration space up to which an execute is verified; the reference is slow."""


class Verification(msgspec.Struct, frozen=True):
    """Executes that agreed, and a warning per execute statement too large to be verified."""

    verified: int
    not_verified: int = 0
    findings: tuple[Finding, ...] = ()

    def __str__(self) -> str:
        text = f"{self.verified} of {self.verified + self.not_verified} executes agree"
        text += " with the reference implementation"
        return f"{text}, {self.not_verified} were too large" if self.not_verified else text


class ReferenceCheck(msgspec.Struct):
    """Runs every execute on the reference implementation too, and compares.

    ``limit_points``: executes with a larger iteration space are not verified. MismatchError SPY620
    after the first execute that differs.
    """

    device: Device
    limit_points: int = DEFAULT_VERIFY_POINTS
    verified: int = 0
    _skipped: dict[tuple[int, int], tuple[ExecuteView, int]] = msgspec.field(default_factory=dict)
    _memory: DeviceMemory = msgspec.field(default_factory=DeviceMemory)

    @property
    def verification(self) -> Verification:
        """Counts of all executions so far, and a warning per statement that was not verified."""
        findings = tuple(self._not_verified(*skipped) for skipped in self._skipped.values())
        count = sum(count for _, count in self._skipped.values())
        return Verification(self.verified, count, findings)

    def before(self, device: Device, parts: Parts, number: int) -> None:
        """Copy the operands into the memory of the reference implementation."""
        if self._is_verified(parts):
            for window in (window for part in parts for window in part.ranges):
                self._memory.write(window.address_bytes, _bytes(device.memory, window))

    def after(self, device: Device, parts: Parts, number: int) -> None:
        """Run the reference implementation, and compare all operands."""
        if not self._is_verified(parts):
            key = id(parts[0].linked), parts[0].static
            self._skipped[key] = parts[0], self._skipped.get(key, (parts[0], 0))[1] + 1
            return
        for part in parts:
            run_reference(part.op, self._memory, part.starts, device.numerics, part.arrangements)
        for part in parts:
            self._compare_output(part)
        for part in parts:
            self._compare_rest(part)
        self.verified += 1

    def _is_verified(self, parts: Parts) -> bool:
        return all(_points(part.op) <= self.limit_points for part in parts)

    def _compare_output(self, step: ExecuteView) -> None:
        for window in _windows(step, outputs=True):
            found, expected = (_bytes(m, window) for m in (self.device.memory, self._memory))
            if np.array_equal(found, expected):
                continue
            wrong = self._wrong_elements(step, window, found, expected)
            if wrong.size:
                raise self._mismatch(step, window, wrong, found, expected)
            # Within the allowance: the reference goes on with the engine's bits, so that the
            # comparison of everything else can be exact.
            self._memory.write(window.address_bytes, found)

    def _wrong_elements(
        self, step: ExecuteView, window: ByteRange, found: Bytes, expected: Bytes
    ) -> npt.NDArray[np.int64]:
        """Distance in ulp of every element beyond the allowance, 0 elsewhere; empty if none is."""
        stored = find_stored_format(step.op.tensors[window.operand].data_format)
        allowed = agreement_of(step.plan.spec.family)
        mode = self.device.numerics.mode
        distance = ulp_distance(found, expected, stored, mode)
        wrong = distance > allowed.ulps_of(stored)
        # Sums in another order differ by more than ulps where terms cancel: there the bound is
        # the rounding noise of the terms.
        if wrong.any() and allowed.sums and stored.is_float:
            noise = sum_noise(step.op, self._inputs(step), mode)
            sides = (decoded(side, stored.name, mode) for side in (found, expected))
            with np.errstate(invalid="ignore"):
                wrong &= ~(np.abs(np.subtract(*sides, dtype=np.float64)) <= noise)
        return np.where(wrong, distance, 0) if wrong.any() else np.zeros(0, np.int64)

    def _inputs(self, step: ExecuteView) -> list[list[Bytes]]:
        """The bytes that the cores may read, by input."""
        return [
            [_bytes(self._memory, w) for w in step.ranges if w.operand == k]
            for k in range(len(step.op.inputs))
        ]

    def _mismatch(
        self,
        step: ExecuteView,
        window: ByteRange,
        distance: npt.NDArray[np.int64],
        found: Bytes,
        expected: Bytes,
    ) -> MismatchError:
        tensor = step.op.tensors[window.operand]
        worst = int(np.argmax(distance))
        element_bytes = found.size // distance.size
        element = slice(worst * element_bytes, (worst + 1) * element_bytes)
        address = window.address_bytes + element.start
        execution = Execution(
            step.op, self._memory, step.starts, self.device.numerics, step.arrangements
        )
        core, coordinate = find_point(execution, address, window.core)
        shown = ", ".join(f"{dim} {index}" for dim, index in coordinate.items())
        ulps = int(distance[worst])
        far = "no number" if ulps >= NOT_COMPARABLE else f"{ulps} ulp away"
        stored = find_stored_format(tensor.data_format)
        allowed = agreement_of(step.plan.spec.family).ulps_of(stored)
        mode = self.device.numerics.mode
        return MismatchError(
            "SPY620",
            f"{step.op.name}: the engine differs from the reference implementation"
            f"{f' at {shown}' if shown else ''}",
            step.location(window.operand, core, address),
            expected=f"{_number(expected[element], tensor.data_format, mode)} within {allowed} ulp",
            found=f"{_number(found[element], tensor.data_format, mode)}, {far}; "
            f"{np.count_nonzero(distance)} elements differ",
        )

    def _compare_rest(self, step: ExecuteView) -> None:
        """Inputs must be as they were; the output's own bytes are equal by now."""
        for window in _windows(step, outputs=False):
            found, expected = (_bytes(m, window) for m in (self.device.memory, self._memory))
            different = np.flatnonzero(found != expected)
            if different.size:
                first = int(different[0])
                raise MismatchError(
                    "SPY620",
                    f"{step.op.name}: the engine changed an input",
                    step.location(window.operand, window.core, window.address_bytes + first),
                    expected=f"byte {expected[first]:#04x}",
                    found=f"byte {found[first]:#04x}; {different.size} bytes differ",
                )

    def _not_verified(self, step: ExecuteView, count: int) -> Finding:
        op = step.linked.plans[step.static][0].op
        times = "" if count == 1 else f" ({count} times)"
        return Finding(
            "SPY621",
            Severity.WARNING,
            f"{op.name} was not verified{times}",
            DeviceLocation(op.file, step.static, source=step.statement.location),
            expected=f"at most {self.limit_points} points",
            found=f"{_points(op)} points",
            hint=f"--verify-points {_points(op)} verifies it",
        )


def _points(op: Operation) -> int:
    """Points of the iteration space."""
    return prod(op.extents.values())


def _bytes(memory: DeviceMemory, window: ByteRange) -> Bytes:
    return memory.view(window.address_bytes, window.size_bytes)


def _windows(step: ExecuteView, outputs: bool) -> Iterator[ByteRange]:
    first = len(step.op.tensors) - len(step.op.outputs)
    return (w for w in step.ranges if (w.operand >= first) == outputs)


def _number(content: Bytes, data_format: str, mode: Mode) -> str:
    """A number and its code: ``0.5 (0x3c00)``."""
    code = int.from_bytes(content.tobytes(), "little")
    value: Any = decoded(content.copy(), data_format, mode).item()
    text = f"{value:.8g}" if isinstance(value, float) else str(value)
    return f"{text} ({code:#0{2 + 2 * content.size}x})"
