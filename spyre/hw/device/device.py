"""The simulated card: memory, allocations, host threads, number mode, and the programs it ran.

A Device keeps compiled plans and the contents of LX and HBM between launches, as the card does.
Several threads may copy to different memory, also during a launch, and may allocate and free
memory; everything else is called from one thread at a time.

A linked program is run by the compiled driver, or one dispatch at a time for timings. Execution is
sequential: every execute completes before the next starts (bundle reference §1).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from spyre import config
from spyre.errors import DeviceFault, LaunchError, SpyreError
from spyre.hw import plan_table as tb
from spyre.hw.access import core_boxes
from spyre.hw.device.threads import ThreadPool, shared_pool
from spyre.hw.device.transfer import execute_transfer, plan_transfer
from spyre.hw.linking import LinkedProgram
from spyre.hw.memory import (
    KEEP_BYTES,
    DeviceMemory,
    DeviceTensor,
    DirtyRanges,
    MemoryRange,
    RegionAllocator,
)
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.hw.plan_table import KERNEL_NAMES
from spyre.hw.plans import LinkedPart
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES, device_address
from spyre.layout import DataConversionInfo, Int64Array, SpyreTensorLayout
from spyre.mlir.operation import indexed_dims

if TYPE_CHECKING:
    from spyre.hw.counters import LaunchCounts
    from spyre.hw.linking import BatchGroup
    from spyre.hw.sanitizer import CheckChoice, Sanitizer


# --- running linked programs ---------------------------------------------------------------------

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
        self._scratch_pointer: int = -(-self._scratch.ctypes.data & -tb.SCRATCH_LINE)
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

    def run_batch(self, groups: Iterable[BatchGroup]) -> None:
        """Run the launches of ``groups`` in order, many per driver call.

        After a DeviceFault, as from `run`, no later launch runs. With a sanitizer there is one
        driver call per launch.
        """
        for group in groups:
            if self.sanitizer is None:
                for piece in group.pieces():
                    self._run_piece(piece)
            else:
                for launch in range(len(group)):
                    self.run(group.program(launch))

    def _run_piece(self, piece: BatchGroup) -> None:
        linked, rows = piece.linked, piece.rows
        faulty = self._call(linked, rows, 0, len(rows))
        if faulty >= 0:
            launch, dispatch = divmod(faulty, len(linked.host_dispatch))
            raise self._fault_of(piece.program(launch), dispatch)
        if self.counts is not None:
            self.counts.note(linked.view, len(piece))

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
        if self._fault[0] == tb.NO_MEMORY:
            raise MemoryError("a kernel has no memory on the host")
        address = device_address(int(self._fault[0]) - 1)
        if linked.tables[linked.dispatch[dispatch, 0], tb.KIND] == tb.REQUANTIZE_KIND:
            return overflow_fault(linked, dispatch, address)
        return index_fault(linked, dispatch, address, self.memory)


def _driver(sanitizer: Sanitizer | None) -> tuple[Callable[..., int], tuple[object, ...]]:
    """The compiled driver to call, and its last arguments."""
    if sanitizer is None:
        return _compiled_driver("driver.drive"), ()
    return _compiled_driver("checked_driver.drive_checked"), sanitizer.driver_arguments


@cache
def _compiled_driver(name: str) -> Callable[..., int]:
    """A driver, loaded when a program first runs."""
    from spyre.hw.kernels.machine_code import entry_of

    return entry_of(name).function


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


# --- the card ------------------------------------------------------------------------------------

T = TypeVar("T")


class Device:
    """One simulated card.

    ``numerics``: number mode, or its text form (default: SPYRE_NUMERICS). ``threads``: host threads
    (default: SPYRE_NUM_THREADS, else all usable CPUs). ``sanitize``: checks to make (True: all),
    see docs/sanitizer.md. Fresh memory reads as zero, with ``poison`` as 0xAA bytes.
    ``core_order``: "random" or "random:SEED" runs the cores of an execute one after another in
    shuffled order. ``regions``: the allocations. ``leftovers``: free ranges that are not cleared.
    ``resets``: number of resets so far.
    """

    def __init__(
        self,
        numerics: Numerics | str | None = None,
        threads: int | None = None,
        *,
        sanitize: CheckChoice = None,
        poison: bool = False,
        core_order: str | None = None,
    ) -> None:
        mode = numerics if numerics is not None else config.NUMERICS.read()
        self.numerics = mode if isinstance(mode, Numerics) else parse_numerics(mode)
        self.threads = threads or config.thread_count()
        self.memory = DeviceMemory()
        self.pool = shared_pool(self.threads)
        self.executor = Executor(self.memory, self.pool)
        self.poison = poison
        self.core_order = parse_core_order(core_order)
        self.sanitizer = _sanitizer(sanitize)
        self.executor.sanitizer = self.memory.observer = self.sanitizer
        self.regions = RegionAllocator()
        self.leftovers = DirtyRanges()
        self.resets = 0
        self._attached: dict[type, object] = {}
        self._poison_scratchpads()

    def attached(self, kind: type[T], make: Callable[[], T]) -> T:
        """The object of ``kind`` that a higher layer attaches to the card, made on first access.

        Card and object refer to each other and are collected together.
        """
        known = self._attached.get(kind)
        if known is None:
            known = self._attached.setdefault(kind, make())
        assert isinstance(known, kind)
        return known

    @property
    def allocated_bytes(self) -> tuple[int, ...]:
        """Bytes allocated in each region of HBM now."""
        with self.regions.lock:
            return self.regions.allocated_bytes

    def allocate(self, size_bytes: int, region: int | None = None) -> int:
        """Address of ``size_bytes`` fresh bytes of HBM; see RegionAllocator.allocate."""
        with self.regions.lock:
            address = self.regions.allocate(size_bytes, region)
            self.make_fresh(address, size_bytes)
        return address

    def make_fresh(self, address_bytes: int, size_bytes: int, uncleared: bool = False) -> None:
        """Fill newly allocated memory with zeros or poison; callers hold ``regions.lock``.

        ``uncleared``: a range of more than KEEP_BYTES may keep its old contents.
        """
        if self.leftovers.size_bytes:
            left = self.leftovers.take(address_bytes, size_bytes)
            if left and (not uncleared or size_bytes <= KEEP_BYTES):
                self._clear(left)
        if self.poison:
            self.memory.poison(address_bytes, size_bytes)

    def _clear(self, ranges: Iterable[MemoryRange]) -> None:
        for address_bytes, size_bytes in ranges:
            self.memory.clear(address_bytes, size_bytes)

    def clear_leftovers(self) -> None:
        """Clear all leftovers and return their pages to the host."""
        with self.regions.lock:
            self._clear(self.leftovers.take_all())

    def free(self, address_bytes: int) -> None:
        """Free an allocation; its contents are lost."""
        with self.regions.lock:
            self.release(address_bytes)

    def release(self, address_bytes: int, untouched: bool = False, uncleared: bool = False) -> int:
        """`free` for callers that hold ``regions.lock``; returns the bytes released.

        ``untouched``: the memory was never written, so it need not be cleared. ``uncleared``: a
        large range need not be cleared, unless memory is poisoned or observed.
        """
        size_bytes = self.regions.free(address_bytes, keep=uncleared)
        watched = self.poison or self.memory.observer is not None
        if uncleared and size_bytes > KEEP_BYTES and not watched:
            self._clear(self.leftovers.add(address_bytes, size_bytes))
        elif uncleared or not untouched or self.poison:
            self.memory.clear(address_bytes, size_bytes)
        return size_bytes

    def reset(self) -> None:
        """Forget all allocations and contents, LX included; compiled plans stay.

        Handles of a FlexAllocator of this device are void from then on.
        """
        with self.regions.lock:
            self.regions.reset()
            self.memory.clear_all()
            self.leftovers.take_all()
            self._poison_scratchpads()
            self.resets += 1

    def _poison_scratchpads(self) -> None:
        if self.poison:
            for core in range(CORES):
                self.memory.poison(LX_BASE + core * LX_BYTES, LX_BYTES)

    def bytes_of(self, tensor: DeviceTensor) -> npt.NDArray[np.uint8]:
        """The tensor's device bytes, as a view of device memory."""
        return self.memory.view(tensor.address_bytes, tensor.size_bytes)

    def upload(
        self,
        tensor: DeviceTensor,
        storage: npt.NDArray[Any],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> DataConversionInfo:
        """Copy a host tensor to the device, with format and layout conversion.

        ``storage``: 1-D, of torch dtype ``dtype``; ``strides``: default those of the layout;
        ``offset``: of the first element. Padding becomes zero. Returns the descriptor; errors as of
        `plan_transfer` and `execute_transfer`.
        """
        info = self._transfer(tensor, storage, dtype, strides, offset, True)
        if self.sanitizer is not None:
            self.sanitizer.written(tensor.address_bytes, tensor.size_bytes, tensor.name)
        return info

    def download(
        self,
        tensor: DeviceTensor,
        storage: npt.NDArray[Any],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> DataConversionInfo:
        """Copy a device tensor to a host tensor; parameters and errors as of `upload`."""
        return self._transfer(tensor, storage, dtype, strides, offset, False)

    def _transfer(
        self,
        tensor: DeviceTensor,
        storage: npt.NDArray[Any],
        dtype: str,
        strides: tuple[int, ...] | None,
        offset: int,
        to_device: bool,
    ) -> DataConversionInfo:
        memory, host_strides = self.bytes_of(tensor), strides or tensor.strides
        extents = (tensor.layout, tensor.sizes, tensor.strides, host_strides)
        plan = plan_transfer(*extents, dtype, self.numerics, to_device)
        return execute_transfer(plan, storage, offset, memory, self.pool)


def _sanitizer(choice: CheckChoice) -> Sanitizer | None:
    """A sanitizer with the checks of ``choice``; None, without loading any code, for no checks."""
    if choice is None or choice is False:
        return None
    from spyre.hw.sanitizer import Sanitizer, parse_checks

    checks = parse_checks(choice)
    return Sanitizer(checks) if checks else None


def parse_core_order(text: str | None) -> int | None:
    """Seed of "random" (0) or "random:SEED"; None for None. LaunchError SPY739 for other texts."""
    if text is None:
        return None
    if found := re.fullmatch(r"random(?::([0-9]{1,18}))?", text):
        return int(found[1] or 0)
    raise LaunchError(
        "SPY739", "unknown order of cores", expected="random or random:SEED", found=text
    )


# --- compilation of driver, copies and kernels in advance -------------------------------------

_COLUMNS = 1024
_ROWS = (1, 512)
"""Rows of tensors that one thread copies, and that several threads copy."""


def warm_transfers(device: Device) -> None:
    """Compile or load the copies between host and ``device``, and its thread pool."""
    from spyre.hw.kernels.machine_code import TRANSFER, entry_of

    _ = entry_of(TRANSFER).address  # compiles or loads it
    for rows in _ROWS:
        sizes, strides = (rows, _COLUMNS), (_COLUMNS, 1)
        layout = SpyreTensorLayout.from_host(sizes, "float16")
        storage = np.zeros(rows * _COLUMNS, np.float16)
        address = device.allocate(layout.device_bytes)
        tensor = DeviceTensor("warm", address, layout, "float16", sizes, strides)
        device.upload(tensor, storage, "float16")
        device.download(tensor, storage, "float16")
        device.free(address)


def warm_driver(device: Device) -> None:
    """Compile or load the driver and the code that moves programs, without any kernels."""
    from spyre.hw.kernels.parallel_compile import compile_driver

    device.pool.prepare()
    compile_driver()


def warm_program(
    device: Device, link: Callable[[], LinkedProgram], is_interpreted: bool = True
) -> None:
    """Compile the copies, the driver and the kernels of a program together.

    Nothing is linked if the copies are ready: missing kernels are then compiled when the program is
    linked to run. SpyreErrors of ``link`` are ignored here and raised by that linking.
    ``is_interpreted``: compile in the background if ``device`` can interpret the program meanwhile.
    """
    from spyre.hw.kernels.machine_code import TRANSFER, entry_of

    if entry_of(TRANSFER).is_ready:
        return
    from spyre.hw.kernels.parallel_compile import compile_together

    with suppress(SpyreError):
        linked = link()
        rows = linked.host_dispatch
        if not (is_interpreted and device.executor.is_interpreted(linked, rows, TRANSFER)):
            compile_together([TRANSFER, *(KERNEL_NAMES[kind] for kind in linked.code.kinds)])


def warm_kernels() -> tuple[str, ...]:
    """Compile or load every kernel, the copies and the drivers; return their names.

    If compiled kernels can be cached, one process per CPU compiles some of them; this process loads
    them afterwards, and compiles those that failed.
    """
    from spyre.hw.kernels.parallel_compile import JOBS, compile_job, compile_missing
    from spyre.hw.kernels.progress import compile_progress

    compile_progress().hint = ""
    compile_missing(JOBS)
    for name in JOBS:
        compile_job(name)
    compile_progress().wait()
    return JOBS
