"""Running a linked program: the compiled driver, or one dispatch at a time for timings.

Execution is sequential: every execute completes before the next starts (bundle reference §1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceFault
from spyre.hw import plan_table as tb
from spyre.hw.access import core_boxes
from spyre.hw.device.threads import ThreadPool
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import DeviceMemory
from spyre.hw.plans import LinkedPart
from spyre.hw.spec import device_address
from spyre.layout import Int64Array
from spyre.mlir.operation import indexed_dims

if TYPE_CHECKING:
    from spyre.hw.counters import LaunchCounts
    from spyre.hw.linking import BatchGroup, LinkedBatch
    from spyre.hw.sanitizer import Sanitizer

Progress = Callable[[int, int], None]
"""Called with (dispatches done, dispatches in all)."""


class Executor:
    """Runs linked programs on one memory; used from one thread at a time.

    Other threads may meanwhile link the programs that run next.

    ``threads``: host threads a dispatch may use, at most those of ``pool``. ``sanitizer``: checks
    every launch, if set. ``counts``: counts launches, if set. ``interpreted``: number of dispatches
    interpreted so far, because their kernels were being compiled.
    """

    def __init__(self, memory: DeviceMemory, pool: ThreadPool) -> None:
        self.memory = memory
        self.pool = pool
        self.sanitizer: Sanitizer | None = None
        self.counts: LaunchCounts | None = None
        self.threads = pool.threads
        self.interpreted = 0
        self._estimated: tuple[Int64Array | None, float] = None, 0.0
        self._scratch = np.zeros(tb.SCRATCH_BYTES, np.uint8)
        self._scratch_pointer: int = self._scratch.ctypes.data
        self._fault = np.zeros(1, np.int64)

    def warm(self, linked: LinkedProgram) -> None:
        """Compile or load every kernel the program needs, without running any of them."""
        _ = linked.code.entries  # compiles or loads them
        self.prepare(linked)

    def prepare(self, linked: LinkedProgram) -> None:
        """Like `warm`, but in the background if the program can be interpreted meanwhile."""
        if self.sanitizer is not None:
            self.sanitizer.prepare(linked)
        self.run_part(linked, 0, 0)

    def run(self, linked: LinkedProgram) -> None:
        """Run everything in the compiled driver; raises DeviceFault for a bad index."""
        if self.sanitizer is not None:
            self.sanitizer.begin(linked)
        self.run_part(linked, 0, len(linked.host_dispatch))
        if self.counts is not None:
            self.counts.note(linked.view)

    def run_part(self, linked: LinkedProgram, first: int, last: int) -> None:
        """Run the dispatches ``first`` to ``last`` (excluded); raises DeviceFault as `run`."""
        faulty = self._call(linked, linked.host_dispatch, first, last)
        if faulty >= 0:
            raise self._fault_of(linked, faulty)

    def run_batch(self, batch: LinkedBatch, first: int = 0, last: int | None = None) -> None:
        """Run launches ``first`` to ``last`` (excluded; None: to the end), many per driver call.

        A DeviceFault, as from `run`, has the number of the faulty launch in ``batch_launch``; later
        launches did not run. With a sanitizer there is one driver call per launch.
        """
        end = len(batch) if last is None else last
        if self.sanitizer is not None:
            for launch in range(first, end):
                with _numbered(launch):
                    self.run(batch.program(launch))
            return
        for number, piece in batch.pieces(first, end):
            self._run_piece(number, piece)

    def _run_piece(self, number: int, piece: BatchGroup) -> None:
        linked, rows = piece.linked, piece.rows
        faulty = self._call(linked, rows, 0, len(rows))
        if faulty < 0:
            if self.counts is not None:
                self.counts.note(linked.view, len(piece))
            return
        launch, dispatch = divmod(faulty, len(linked.host_dispatch))
        with _numbered(number + launch):
            raise self._fault_of(piece.program(launch), dispatch)

    def run_timed(
        self, linked: LinkedProgram, progress: Progress | None = None
    ) -> npt.NDArray[np.int64]:
        """Run dispatch by dispatch; returns host nanoseconds per dispatch."""
        count = len(linked.host_dispatch)
        elapsed = np.zeros(count, np.int64)
        if self.sanitizer is not None:
            self.sanitizer.begin(linked)
        for e in range(count):
            start = time.perf_counter_ns()
            self.run_part(linked, e, e + 1)
            elapsed[e] = time.perf_counter_ns() - start
            if progress is not None:
                progress(e + 1, count)
        if self.counts is not None:
            self.counts.note(linked.view)
        return elapsed

    def _call(self, linked: LinkedProgram, rows: Int64Array, first: int, last: int) -> int:
        """Run dispatches ``first`` to ``last`` of ``rows``; the index of a faulty one, or -1."""
        entries = linked.code.__dict__.get("entries")
        if entries is None:
            if self.is_interpreted(linked, rows):
                return self._interpret(linked, rows, first, last)
            entries = linked.code.entries
        # Workers avoid this thread's CPU, which may have changed since the last launch.
        drive, further = _driver(self.sanitizer)
        self.pool.prepare()
        return drive(
            rows,
            linked.tables,
            entries,
            self.memory.pointer,
            self.pool.block,
            self._scratch_pointer,
            self.threads,
            first,
            last,
            self._fault,
            *further,
        )

    def is_interpreted(self, linked: LinkedProgram, rows: Int64Array, *further: str) -> bool:
        """True if ``rows`` of a program whose kernels are not loaded are to be interpreted.

        The kernels, and those named in ``further``, are then compiled in the background.
        """
        if self.sanitizer is not None:  # its checks are in the compiled driver
            return False
        from spyre.hw.interpreter.background import background_compiler, interpreted_seconds

        if self._estimated[0] is not rows:
            self._estimated = rows, interpreted_seconds(linked.tables, rows[:, 0])
        names = [tb.KERNEL_NAMES[kind] for kind in linked.code.kinds]
        return background_compiler.should_interpret((*names, *further), self._estimated[1])

    def _interpret(self, linked: LinkedProgram, rows: Int64Array, first: int, last: int) -> int:
        from spyre.hw.interpreter import background

        self.interpreted += last - first
        memory, scratch = self.memory.pointer, self._scratch_pointer
        return background.drive(rows, linked.tables, memory, scratch, first, last, self._fault)

    def _fault_of(self, linked: LinkedProgram, dispatch: int) -> DeviceFault:
        address = device_address(int(self._fault[0]) - 1)
        if linked.tables[linked.dispatch[dispatch, 0], tb.KIND] == tb.REQUANTIZE_KIND:
            return overflow_fault(linked, dispatch, address)
        return index_fault(linked, dispatch, address, self.memory)


@contextmanager
def _numbered(launch: int) -> Iterator[None]:
    """Set ``batch_launch`` of a DeviceFault raised in this context to ``launch``."""
    try:
        yield
    except DeviceFault as fault:
        fault.batch_launch = launch
        raise


def _driver(sanitizer: Sanitizer | None) -> tuple[Callable[..., int], tuple[object, ...]]:
    """The compiled driver to call, and its last arguments."""
    if sanitizer is None:
        return _plain_driver(), ()
    from spyre.hw.kernels.checked_driver import drive_checked

    return drive_checked, sanitizer.driver_arguments


@cache
def _plain_driver() -> Callable[..., int]:
    """The driver, imported when a program first runs, since it loads numba."""
    from spyre.hw.kernels.driver import drive

    return drive


_WORD_BYTES = 4


def index_fault(
    linked: LinkedProgram, dispatch: int, address: int, memory: DeviceMemory
) -> DeviceFault:
    """SPY412: the index at device ``address`` that a dispatch read is out of range."""
    table, static, instance = (int(v) for v in linked.dispatch[dispatch, :3])
    runs = [run for run in linked.runs[static] if instance in run.instances]
    op = runs[0].plan.op
    places = [(run, len(op.inputs) + k) for run in runs for k in range(len(op.index_tensors))]
    found = [(find_index(run, instance, address, k), k) for run, k in places]
    matches = [(*match, k) for match, k in found if match is not None]
    core, coordinate, operand = matches[0] if matches else (None, {}, len(op.inputs))
    tensor = op.tensors[operand]
    index = int(memory.read(address, _WORD_BYTES).view("<i4")[0])
    size = int(linked.tables[table, tb.MASK_END])
    if op.index_steps:
        size = op.index_steps[operand - len(op.inputs)][1]
    dims = ", ".join(next(filter(None, (indexed_dims(op, tensor) for tensor in op.tensors)), ()))
    where = ", ".join(f"{dim} {n}" for dim, n in coordinate.items()) or "an unknown coordinate"
    return DeviceFault(
        "SPY412",
        f"{op.name}: index {index} is out of bounds for dimension {dims} with size {size}, "
        f"at {where}",
        linked.location(static, instance, tensor.name, address, core),
        expected=f"0 to {size - 1}",
        found=str(index),
    )


def overflow_fault(linked: LinkedProgram, dispatch: int, address: int) -> DeviceFault:
    """SPY901: a result of a dispatch, for device ``address``, does not fit int32."""
    static, instance = (int(v) for v in linked.dispatch[dispatch, 1:3])
    (op, *_) = [run.plan.op for run in linked.runs[static] if instance in run.instances]
    return DeviceFault(
        "SPY901",
        f"{op.name}: an int64 result does not fit the card, which holds int64 as int32",
        linked.location(static, instance, op.outputs[0].name, address),
        expected="-2147483648 to 2147483647",
        found="a larger or smaller number",
        hint="keep such numbers on the CPU, or compute with floats",
    )


def find_index(
    run: LinkedPart, instance: int, address: int, operand: int
) -> tuple[int, dict[str, int]] | None:
    """(core, coordinate in the whole index tensor ``operand``) of the word at ``address``.

    The first core that reads it; None if no core of the run does.
    """
    op = run.plan.op
    tensor, stick_dim = op.tensors[operand], run.plan.accesses[operand].stick_dim
    row = run.instances.tolist().index(instance)
    starts = run.starts(operand)[row].tolist()
    for position, (start, box) in enumerate(zip(starts, core_boxes(op, tensor), strict=True)):
        if box is None:
            continue
        (steps,), (rest,) = box.walk.steps_of(np.array([address - start], np.int64))
        local = dict(zip(box.dims, box.walk.at(steps.tolist())[1:], strict=True))
        if stick_dim in local:
            local[stick_dim] += int(rest) // _WORD_BYTES
        is_read = local.get(stick_dim, 0) < op.core_extent(stick_dim)
        if 0 <= rest < box.unit_bytes and is_read:
            slices = op.core_slices[position]
            shares = {dim: slices.get(dim, 0) * op.core_extent(dim) for dim in local}
            return op.cores[position], {d: local[d] + shares[d] for d in op.dims if d in local}
    return None
