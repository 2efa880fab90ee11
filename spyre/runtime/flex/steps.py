"""Job plans: the steps of a job, the work of their launches, and plans that only copy.

The names are those of the pipeline RFC: a `Job` has a `JobPlan`, an ordered list of
`HostOperation`, `DMA` and `DeviceCompute` steps; an `ExecutionPlan` is a list of jobs. A plan is
immutable and shared by all its launches; a `JobWork` is one launch. A `LaunchPlan` is computed once
for all launches of a kernel over tensors of one signature: the kernel to run (retargeted to tiles
if the tensors are larger) and the offset of every tile. Runtime reference §5 and §8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError
from spyre.hw.device import Device
from spyre.hw.memory import DeviceTensor
from spyre.layout import Int64Array
from spyre.rules import LARGEST, require_type, whole_number
from spyre.runtime.arguments import HostTensor
from spyre.runtime.dma import DmaEngine
from spyre.runtime.flex.blocks import ControlBlock, MemoryRange, SourceLines
from spyre.runtime.flex.scheduling import Engine, Stage, Stages, Work
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature, Runner
from spyre.runtime.memory import DeviceStorage, FlexAllocator, ProgramMemory, SpyreTensor

if TYPE_CHECKING:
    from spyre.runtime.flex.loaded_kernel import LoadedKernel
    from spyre.runtime.flex.scheduler import Scheduler
    from spyre.runtime.tiling.execute import TileSteps
    from spyre.runtime.tiling.tile_plan import TilePlan, TilingOptions


class Card(Protocol):
    """The parts of a card that steps, launches and streams use; `FlexDevice` is one."""

    device: Device
    index: int
    allocator: FlexAllocator
    dma: DmaEngine
    scheduler: Scheduler
    runner: Runner | None
    is_blocking: bool

    def allocate(self, size_bytes: int) -> DeviceStorage:
        """Fresh device memory, freed with its last reference."""

    def allocate_program(self, size_bytes: int) -> ProgramMemory:
        """Fresh program memory (segment 7)."""

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Return once ``done()``, which only reads states."""


def require_card(card: Card, owner: object, what: str, found: object) -> None:
    """Raise LaunchError SPY879 unless ``owner``, of ``found``, is ``card`` or its allocator."""
    if owner is not card and owner is not card.allocator:
        message = f"{what} must be on Spyre device {card.index}"
        raise LaunchError("SPY879", message, expected=f"one of {card!r}", found=repr(found))


def require_tensors(card: Card, tensors: Sequence[SpyreTensor]) -> None:
    """Raise LaunchError unless all are tensors (SPY812), in the memory of ``card`` (SPY879)."""
    for k, tensor in enumerate(tensors):
        require_type(f"argument {k}", tensor, SpyreTensor)
        require_card(card, tensor.storage.allocator, f"argument {k}", tensor)


NO_VALUES: Mapping[str, int] = {}
LARGE_BYTES = 1 << 21
"""Tensor bytes from which a second thread pays for a job."""
CHUNK_BYTES = 1 << 26
"""Tensor bytes of the tiles that run in one unit: some milliseconds."""


class LaunchPlan(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Plan of a kernel's runs over tensors of one signature. Immutable; any thread may use it.

    ``kernel`` runs once per iteration. ``offsets_bytes``: int64 [iteration, address], the corner of
    each tile relative to its tensor; None for a single pass. ``tiles``: None for a single pass of
    the unchanged kernel. ``names``: name of the memory at each address, for messages.
    """

    kernel: Kernel
    signature: LaunchSignature
    names: tuple[str, ...]
    size_bytes: int
    offsets_bytes: Int64Array | None = None
    tiles: TilePlan | None = None

    @classmethod
    def of(cls, kernel: Kernel, launch: Launch) -> LaunchPlan:
        """A single pass of ``kernel`` over tensors that were already checked."""
        return cls(kernel, kernel.signature_of(launch), launch.names, launch.size_bytes)

    # Cached attributes, since every launch reads these three.

    @cached_property
    def is_large(self) -> bool:
        """True if a second thread pays for a launch."""
        return self.size_bytes > LARGE_BYTES or self.iterations > 1

    @cached_property
    def chunk(self) -> int:
        """Iterations that run in one unit at most."""
        return min(max(CHUNK_BYTES * self.iterations // max(self.size_bytes, 1), 1), 4096)

    @cached_property
    def iterations(self) -> int:
        return 1 if self.offsets_bytes is None else len(self.offsets_bytes)

    def addresses(self, bases: Sequence[int], first: int, last: int) -> Int64Array:
        """Addresses (bytes) of iterations ``first`` to ``last`` (excluded), [iteration, address].

        ``bases``: start address of each tensor, bytes.
        """
        row = np.array(bases, np.int64)[None]
        if self.offsets_bytes is None:
            return row[first:last]
        return row + self.offsets_bytes[first:last]


class JobWork(Work):
    """One launch of a job plan: a copy, or a kernel at given addresses.

    ``payload``: owners of the memory it uses. ``launch_plan``: of a kernel launch; None for copies.
    ``bases``: start address (bytes) of each tensor of a kernel. ``runner``: runs the kernel in
    place of the compiled driver; ``result``: its return value, or the bytes that a copy read.
    ``origin``: source lines, if known. ``buffers``: host buffers by handle, int64 [iteration,
    word]. ``correction``: correction tensors in program memory, None if there are none. ``steps``:
    of a tiled launch with padded or accumulated tiles.
    """

    # Every launch makes one, so it sets only attributes that differ from the defaults of the class.
    result: Any = None
    correction: ProgramMemory | None = None
    steps: TileSteps | None = None

    def __init__(
        self,
        plan: JobPlan,
        card: Card,
        keep_alive: Sequence[object] = (),
        launch_plan: LaunchPlan | None = None,
        bases: tuple[int, ...] = (),
        runner: Runner | None = None,
        origin: SourceLines | None = None,
        is_large: bool = False,
    ) -> None:
        self.stages = stages = plan.stages
        if launch_plan is not None:
            self.iterations, self.chunk = launch_plan.iterations, launch_plan.chunk
            is_large = launch_plan.is_large
        self.payload, self.is_large = keep_alive, is_large
        self.limit = self.iterations
        self.done, self.running = [0] * len(stages.all), [False] * len(stages.all)
        self.plan = plan
        self.card = card
        self.launch_plan = launch_plan
        self.bases = bases
        self.runner = runner
        self.origin = origin
        self.buffers: dict[str, npt.NDArray[np.int64]] = {}

    def use_steps(self, steps: TileSteps, temporaries: Sequence[DeviceStorage]) -> None:
        """Run ``steps``, one per iteration, on ``temporaries``."""
        self.steps = steps
        self.payload = (*self.payload, *temporaries)
        self.iterations = self.limit = len(steps)
        self.is_large = self.is_large or len(steps) > 1

    @property
    def is_single(self) -> bool:
        """True if it needs neither a correction tensor nor several iterations."""
        launch_plan = self.launch_plan
        one_pass = self.steps is None and (launch_plan is None or launch_plan.offsets_bytes is None)
        return one_pass and self.correction is None

    def addresses(self, first: int, last: int) -> Int64Array:
        """Addresses (bytes) of iterations ``first`` to ``last`` (excluded), [iteration, address].

        For kernel launches only.
        """
        if self.steps is not None:
            return self.steps.addresses[first:last]
        assert self.launch_plan is not None
        return self.launch_plan.addresses(self.bases, first, last)

    def release(self) -> None:
        self.payload = None
        if self.correction is not None:
            assert self.plan.program is not None
            self.plan.program.correction.give_back(self.correction)

    def again(self) -> JobWork:
        """A new launch of the same plan at the same addresses."""
        return JobWork(
            self.plan,
            self.card,
            self.payload,
            self.launch_plan,
            self.bases,
            self.runner,
            self.origin,
            self.is_large,
        )


class JobPlan(msgspec.Struct, frozen=True, dict=True):
    """The steps of a job in order. ``program``: of its compute steps, None for copies."""

    name: str
    steps: tuple[JobPlanStep, ...]
    program: LoadedKernel | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise LaunchError("SPY876", f"job plan {self.name} has no steps")

    @cached_property
    def stages(self) -> Stages:
        """The stages that the scheduler runs for each launch."""
        return Stages(step.stage for step in self.steps)

    def bind(
        self,
        card: Card,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None = None,
        values: Mapping[str, int] = NO_VALUES,
    ) -> JobWork:
        """A launch over ``tensors``. LaunchError or TilingError if they do not fit.

        SPY879 for tensors and programs of another card.
        """
        if self.program is None:
            require_tensors(card, tensors)
            return JobWork(self, card, tuple(tensors), is_large=self.moves_much)
        return self.program.bind(self, card, tensors, options, values)

    @cached_property
    def moves_much(self) -> bool:
        """True if a second thread pays for its copies."""
        sizes = (step.size_bytes for step in self.steps if isinstance(step, DMA))
        return sum(sizes) > LARGE_BYTES

    @cached_property
    def reads_back(self) -> bool:
        """True if it copies to the host."""
        return any(isinstance(step, DMA) and not step.to_device for step in self.steps)

    def num_steps(self) -> int:
        return len(self.steps)

    def get_step_type(self, index: int) -> str:
        """Type of step ``index``. LaunchError SPY877 if there is no such step."""
        index = whole_number("the index of a step", index, -LARGEST)
        if not 0 <= index < len(self.steps):
            message = "Step index out of range"
            expected = f"0 to {len(self.steps) - 1}"
            raise LaunchError("SPY877", message, expected=expected, found=str(index))
        return self.steps[index].step_type

    def job_allocation_size(self) -> int:
        return 0 if self.program is None else self.program.image.size_bytes

    @property
    def expected_input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Host shapes of a kernel, in launch order; LaunchError SPY366 for a runtime size."""
        if self.program is None:
            return ()
        return tuple(a.shape for a in self.program.arguments_of(NO_VALUES).arguments)

    def __str__(self) -> str:
        steps = ", ".join(step.step_type for step in self.steps)
        return f"JobPlan({self.name}: {steps})"

    __repr__ = __str__


class HostOperation(msgspec.Struct, frozen=True):
    """A computation on the CPU for every iteration, whose result the device reads.

    ``function(work, first, last)`` returns one int64 row of ``words`` values per iteration; the
    rows go to the launch's buffer ``handle``.
    """

    function: Callable[[JobWork, int, int], npt.NDArray[np.int64]]
    handle: str
    words: int
    label: str = "host operation"
    step_type: ClassVar[str] = "HostCompute"

    @property
    def stage(self) -> Stage:
        """A preparation stage: other launches do not use its buffer."""
        return Stage(Engine.HOST, self._run, is_prep=True)

    def _run(self, work: JobWork, first: int, last: int) -> None:
        buffer = work.buffers.get(self.handle)
        if buffer is None:
            buffer = np.zeros((work.iterations, self.words), np.int64)
            work.buffers[self.handle] = buffer
        buffer[first:last] = self.function(work, first, last)

    def describe(self, work: JobWork, iteration: int) -> ControlBlock:
        """The entry of one iteration in the command stream."""
        return ControlBlock("host", f"{self.label} of {work.plan.name}", (), self.words * 8)


class DMA(msgspec.Struct, frozen=True):
    """A copy between host and device.

    ``copy(work, first, last)`` runs it; ``memory_ranges(work, iteration)`` returns its device
    memory. ``is_prep``: it writes only memory that other launches do not use.
    """

    copy: CopyFunction
    memory_ranges: Callable[[JobWork, int], tuple[MemoryRange, ...]]
    size_bytes: int
    to_device: bool = True
    is_prep: bool = False
    label: str = ""

    @property
    def step_type(self) -> str:
        return "H2D" if self.to_device else "D2H"

    @property
    def stage(self) -> Stage:
        return Stage(Engine.DMA, self.copy, is_prep=self.is_prep)

    def describe(self, work: JobWork, iteration: int) -> ControlBlock:
        kind = "dma to device" if self.to_device else "dma from device"
        ranges = self.memory_ranges(work, iteration)
        return ControlBlock(kind, self.label or work.plan.name, ranges, self.size_bytes)


class DeviceCompute(msgspec.Struct, frozen=True):
    """Run the program in program memory once per iteration."""

    program: LoadedKernel
    step_type: ClassVar[str] = "Compute"

    @property
    def stage(self) -> Stage:
        return Stage(Engine.COMPUTE, self.program.compute)

    def describe(self, work: JobWork, iteration: int) -> ControlBlock:
        ranges = self.program.memory_ranges(work, iteration)
        return ControlBlock("compute", work.plan.name, ranges, 0, work.origin)


JobPlanStep = HostOperation | DMA | DeviceCompute
"""A step has a type (runtime reference §5), a scheduler stage, and a command-stream entry."""
CopyFunction = Callable[[JobWork, int, int], None]


class Job(msgspec.Struct, eq=False):
    """A plan with the binary it runs, as in the pipeline RFC.

    ``binary_path``: the compiled binary, None for copies. ``program_correction_metadata``: the hcm
    object of its host operation.
    """

    job_plan: JobPlan
    binary_path: Path | None = None
    program_correction_metadata: dict[str, object] = msgspec.field(default_factory=dict)


class ExecutionPlan(msgspec.Struct, eq=False):
    """The jobs of one compiled function, in order."""

    jobs: list[Job] = msgspec.field(default_factory=list)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


# --- copies -----------------------------------------------------------------------------------


def to_device_plan(host: HostTensor, tensor: DeviceTensor) -> JobPlan:
    """Host tensor → device tensor, with conversion of format and layout.

    The host tensor must not change before the copy has run. The launch must keep the device memory
    alive.
    """

    def copy(work: JobWork, first: int, last: int) -> None:
        work.card.dma.to_device(host, tensor)

    step = _step(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=True)
    return JobPlan(tensor.name, (step,))


def to_host_plan(tensor: DeviceTensor, host: HostTensor) -> JobPlan:
    """Device tensor → the storage of ``host``."""

    def copy(work: JobWork, first: int, last: int) -> None:
        work.card.dma.to_host(tensor, host)

    step = _step(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=False)
    return JobPlan(tensor.name, (step,))


def bytes_to_device(content: npt.NDArray[np.uint8], address_bytes: int, name: str) -> JobPlan:
    """Raw bytes → device memory: program binaries, device images."""

    def copy(work: JobWork, first: int, last: int) -> None:
        work.card.dma.write_bytes(address_bytes, content, name)

    return JobPlan(name, (_step(copy, address_bytes, name, content.size, to_device=True),))


def bytes_to_host(address_bytes: int, size_bytes: int, name: str) -> JobPlan:
    """Raw bytes of device memory → the launch's ``result``."""
    return JobPlan(name, (_read_step(address_bytes, size_bytes, name),))


def device_copy_plan(source: DeviceTensor, target: DeviceTensor) -> JobPlan:
    """Copy the bytes of a device tensor to one of equal size on the same card, through the host."""

    # Only DMA between host and card copies, so the bytes pass through the host between two steps.
    def up(work: JobWork, first: int, last: int) -> None:
        work.card.dma.write_bytes(target.address_bytes, work.result, target.name)
        work.result = None

    down = _read_step(source.address_bytes, source.size_bytes, source.name)
    step = _step(up, target.address_bytes, target.name, source.size_bytes, to_device=True)
    return JobPlan(target.name, (down, step))


def _read_step(address_bytes: int, size_bytes: int, name: str) -> DMA:
    def copy(work: JobWork, first: int, last: int) -> None:
        work.result = work.card.dma.read_bytes(address_bytes, size_bytes)

    return _step(copy, address_bytes, name, size_bytes, to_device=False)


def _step(
    copy: CopyFunction, address_bytes: int, name: str, size_bytes: int, to_device: bool
) -> DMA:
    def memory_ranges(work: JobWork, iteration: int) -> tuple[MemoryRange, ...]:
        return (MemoryRange(name, work.card.allocator.virtual_address(address_bytes)),)

    return DMA(copy, memory_ranges, size_bytes, to_device, False, name)
