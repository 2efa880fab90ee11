"""Job plans: the steps of a job, the launch contexts that run them, and plans that only copy.

The names are those of the pipeline RFC: a `Job` has a `JobPlan`, an ordered list of
`HostOperation`, `DMA` and `DeviceCompute` steps; an `ExecutionPlan` is a list of jobs. A plan is
immutable and shared by all its launches; a `LaunchContext` belongs to one launch. Runtime reference
§5 and §8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError
from spyre.hw.device import Device
from spyre.hw.memory import DeviceTensor
from spyre.layout import Int64Array
from spyre.runtime.arguments import HostTensor
from spyre.runtime.dma import DmaEngine
from spyre.runtime.flex.launch import LARGE_BYTES, LaunchPlan, SourceLines
from spyre.runtime.flex.scheduling import Engine, Stage, Stages, Work
from spyre.runtime.kernel import Runner
from spyre.runtime.memory import (
    DeviceStorage,
    FlexAllocator,
    ProgramMemory,
    SpyreTensor,
    VirtualAddress,
)

if TYPE_CHECKING:
    from spyre.runtime.tiling.execute import TileSteps
    from spyre.runtime.tiling.tile_checks import TilingOptions


class Card(Protocol):
    """The parts of a card that steps and launches use; `FlexDevice` is one."""

    device: Device
    index: int
    allocator: FlexAllocator
    dma: DmaEngine
    runner: Runner | None

    def allocate(self, size_bytes: int) -> DeviceStorage:
        """Fresh device memory, freed with its last reference."""

    def allocate_program(self, size_bytes: int) -> ProgramMemory:
        """Fresh program memory (segment 7)."""


class CardProgram(Protocol):
    """A program in the memory of a card, as the steps of a job plan use it."""

    @property
    def allocation_bytes(self) -> int:
        """Bytes of program memory."""

    @property
    def expected_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Host shapes of its arguments, in launch order."""

    def bind(
        self,
        plan: JobPlan,
        card: Card,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None,
        values: Mapping[str, int],
    ) -> LaunchContext:
        """A launch over ``tensors``, checked against the arguments."""

    def release(self, context: LaunchContext) -> None:
        """Take back the memory of a launch that has ended."""

    def compute(self, context: LaunchContext, first: int, last: int) -> None:
        """Run iterations ``first`` to ``last`` (excluded) of a launch."""

    def memory_ranges(self, context: LaunchContext, iteration: int) -> tuple[MemoryRange, ...]:
        """Device memory that one iteration of a launch uses."""


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """A named range of device memory."""

    name: str
    address: VirtualAddress

    def __str__(self) -> str:
        return f"{self.name} {self.address}"


@dataclass(frozen=True, slots=True)
class ControlBlock:
    """One operation of the card, or of the host on the card's behalf.

    ``kind``: "dma to device", "dma from device", "compute", or "host" (run by the CPU, not a
    control block of the card). ``places``: device memory it uses. ``size_bytes``: bytes it moves.
    ``origin``: source lines of a kernel launch, if known.
    """

    kind: str
    name: str
    places: tuple[MemoryRange, ...] = ()
    size_bytes: int = 0
    origin: SourceLines | None = None

    def __str__(self) -> str:
        size = f", {self.size_bytes} bytes" if self.size_bytes else ""
        places = f": {', '.join(map(str, self.places))}" if self.places else ""
        return f"{self.kind} {self.name}{size}{places}"


@dataclass(frozen=True, slots=True)
class RecordedBlock:
    """A DMA operation that ran outside the scheduler, such as one round of a collective.

    ``place_bytes``: bytes of each of the block's memory ranges. ``begin_ns``/``end_ns``: host
    clock. ``channel``: resource that runs one operation at a time, such as a group of cards.
    ``detail``: description for profiles; ``shown``: values that traces show.
    """

    block: ControlBlock
    place_bytes: tuple[int, ...]
    begin_ns: int
    end_ns: int
    channel: str
    detail: object
    shown: Mapping[str, object]


NO_VALUES: Mapping[str, int] = {}


class LaunchContext:
    """One launch of a job plan: a copy, or a kernel at given addresses.

    ``keep_alive``: owners of the memory it uses, held until it has run. ``launch_plan``: of a
    kernel launch; None for copies. ``bases``: start address (bytes) of each tensor of a kernel.
    ``runner``: runs the kernel in place of the compiled driver; ``result``: its return value, or
    the bytes that a copy read. ``origin``: source lines, if known. ``is_large``: worth a second
    thread. ``buffers``: host buffers by handle, int64 [iteration, word]. ``correction``: correction
    tensors in program memory, None if there are none. ``steps``, ``temporaries``: of a tiled
    launch with padded or accumulated tiles.
    """

    __slots__ = (
        "bases",
        "buffers",
        "card",
        "correction",
        "is_large",
        "iterations",
        "keep_alive",
        "launch_plan",
        "origin",
        "plan",
        "result",
        "runner",
        "steps",
        "temporaries",
    )

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
        self.plan = plan
        self.card = card
        self.keep_alive = keep_alive
        self.launch_plan = launch_plan
        self.bases = bases
        self.runner = runner
        self.origin = origin
        self.iterations = 1 if launch_plan is None else launch_plan.iterations
        self.is_large = is_large if launch_plan is None else launch_plan.is_large
        self.buffers: dict[str, npt.NDArray[np.int64]] = {}
        self.result: object = None
        self.correction: ProgramMemory | None = None
        self.steps: TileSteps | None = None
        self.temporaries: tuple[DeviceStorage, ...] = ()

    def use_steps(self, steps: TileSteps, temporaries: tuple[DeviceStorage, ...]) -> None:
        """Run ``steps``, one per iteration, on ``temporaries``."""
        self.steps = steps
        self.temporaries = temporaries
        self.iterations = len(steps)
        self.is_large = self.is_large or len(steps) > 1

    @property
    def is_bound(self) -> bool:
        """True if it needs neither a correction tensor nor several passes."""
        plan = self.launch_plan
        one_pass = self.steps is None and (plan is None or plan.offsets_bytes is None)
        return one_pass and self.correction is None

    def addresses(self, first: int, last: int) -> Int64Array:
        """Addresses (bytes) of iterations ``first`` to ``last`` (excluded), [iteration, address].

        For kernel launches only.
        """
        if self.steps is not None:
            return self.steps.addresses[first:last]
        assert self.launch_plan is not None
        return self.launch_plan.addresses(self.bases, first, last)

    def work(self) -> Work:
        """The entry that a stream submits for this launch."""
        plan = self.launch_plan
        chunk = 64 if plan is None else plan.chunk
        return Work(self.plan.stages, self.iterations, self, is_large=self.is_large, chunk=chunk)

    def again(self) -> LaunchContext:
        """A new launch of the same plan at the same addresses."""
        return LaunchContext(
            self.plan,
            self.card,
            self.keep_alive,
            self.launch_plan,
            self.bases,
            self.runner,
            self.origin,
            self.is_large,
        )


@dataclass(frozen=True)
class JobPlan:
    """The steps of a job, in order.

    ``program``: the program that its compute steps run, None for copies.
    """

    name: str
    steps: tuple[JobPlanStep, ...]
    program: CardProgram | None = None

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
    ) -> LaunchContext:
        """A launch over ``tensors``. LaunchError or TilingError if they do not fit."""
        if self.program is None:
            return LaunchContext(self, card, tuple(tensors), is_large=self.moves_much)
        return self.program.bind(self, card, tensors, options, values)

    @cached_property
    def moves_much(self) -> bool:
        """True if its copies are worth a second thread."""
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
        if not 0 <= index < len(self.steps):
            raise LaunchError(
                "SPY877",
                "Step index out of range",
                expected=f"0 to {len(self.steps) - 1}",
                found=str(index),
            )
        return self.steps[index].step_type

    def job_allocation_size(self) -> int:
        return 0 if self.program is None else self.program.allocation_bytes

    @property
    def expected_input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Host shapes that the kernel was compiled for, in launch order."""
        return () if self.program is None else self.program.expected_shapes

    def __str__(self) -> str:
        steps = ", ".join(step.step_type for step in self.steps)
        return f"JobPlan({self.name}: {steps})"

    __repr__ = __str__


@dataclass(frozen=True)
class HostOperation:
    """A computation on the CPU for every iteration, whose result the device reads.

    ``function(context, first, last)`` returns one int64 row of ``words`` values per iteration; the
    rows go to the launch's buffer ``handle``.
    """

    function: Callable[[LaunchContext, int, int], npt.NDArray[np.int64]]
    handle: str
    words: int
    label: str = "host operation"

    @property
    def step_type(self) -> str:
        return "HostCompute"

    @property
    def stage(self) -> Stage:
        """A preparation stage: other launches do not use its buffer."""
        return Stage(Engine.HOST, self._run, is_prep=True)

    def _run(self, context: LaunchContext, first: int, last: int) -> None:
        buffer = context.buffers.get(self.handle)
        if buffer is None:
            buffer = np.zeros((context.iterations, self.words), np.int64)
            context.buffers[self.handle] = buffer
        buffer[first:last] = self.function(context, first, last)

    def describe(self, context: LaunchContext, iteration: int) -> ControlBlock:
        """The entry of one iteration in the command stream."""
        return ControlBlock("host", f"{self.label} of {context.plan.name}", (), self.words * 8)


@dataclass(frozen=True)
class DMA:
    """A copy between host and device.

    ``copy(context, first, last)`` runs it; ``memory_ranges(context, iteration)`` returns its device
    memory. ``is_prep``: it writes only memory that other launches do not use.
    """

    copy: CopyFunction
    memory_ranges: Callable[[LaunchContext, int], tuple[MemoryRange, ...]]
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

    def describe(self, context: LaunchContext, iteration: int) -> ControlBlock:
        kind = "dma to device" if self.to_device else "dma from device"
        ranges = self.memory_ranges(context, iteration)
        return ControlBlock(kind, self.label or context.plan.name, ranges, self.size_bytes)


@dataclass(frozen=True)
class DeviceCompute:
    """Run the program in program memory once per iteration."""

    program: CardProgram

    @property
    def step_type(self) -> str:
        return "Compute"

    @property
    def stage(self) -> Stage:
        return Stage(Engine.COMPUTE, self.program.compute)

    def describe(self, context: LaunchContext, iteration: int) -> ControlBlock:
        ranges = self.program.memory_ranges(context, iteration)
        return ControlBlock("compute", context.plan.name, ranges, 0, context.origin)


JobPlanStep = HostOperation | DMA | DeviceCompute
"""A step has a type (runtime reference §5), a scheduler stage, and a command-stream entry."""
CopyFunction = Callable[[LaunchContext, int, int], None]


@dataclass(eq=False)
class Job:
    """A plan with the binary it runs, as in the pipeline RFC.

    ``binary_path``: the compiled binary, None for copies. ``program_correction_metadata``: the hcm
    object of its host operation.
    """

    job_plan: JobPlan
    binary_path: Path | None = None
    program_correction_metadata: dict[str, object] = field(default_factory=dict)


@dataclass(eq=False)
class ExecutionPlan:
    """The jobs of one compiled function, in order."""

    jobs: list[Job] = field(default_factory=list)

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

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.card.dma.to_device(host, tensor)

    return _plan(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=True)


def to_host_plan(tensor: DeviceTensor, host: HostTensor) -> JobPlan:
    """Device tensor → the storage of ``host``."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.card.dma.to_host(tensor, host)

    return _plan(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=False)


def bytes_to_device(content: npt.NDArray[np.uint8], address_bytes: int, name: str) -> JobPlan:
    """Raw bytes → device memory: program binaries, device images."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.card.dma.write_bytes(address_bytes, content, name)

    return _plan(copy, address_bytes, name, content.size, to_device=True)


def bytes_to_host(address_bytes: int, size_bytes: int, name: str) -> JobPlan:
    """Raw bytes of device memory → the launch's ``result``."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.result = context.card.dma.read_bytes(address_bytes, size_bytes, name)

    return _plan(copy, address_bytes, name, size_bytes, to_device=False)


def device_copy_plan(source: DeviceTensor, target: DeviceTensor) -> JobPlan:
    """Copy the bytes of a device tensor to one of equal size on the same card, through the host."""
    # Only DMA between host and card copies, so the bytes pass through the host between two steps.
    in_flight: list[npt.NDArray[np.uint8]] = []

    def down(context: LaunchContext, first: int, last: int) -> None:
        dma = context.card.dma
        in_flight.append(dma.read_bytes(source.address_bytes, source.size_bytes, source.name))

    def up(context: LaunchContext, first: int, last: int) -> None:
        context.card.dma.write_bytes(target.address_bytes, in_flight.pop(), target.name)

    steps = [
        _step(copy, tensor.address_bytes, tensor.name, source.size_bytes, to_device)
        for copy, tensor, to_device in ((down, source, False), (up, target, True))
    ]
    return JobPlan(target.name, tuple(steps))


def _plan(
    copy: CopyFunction, address_bytes: int, name: str, size_bytes: int, to_device: bool
) -> JobPlan:
    return JobPlan(name, (_step(copy, address_bytes, name, size_bytes, to_device),))


def _step(
    copy: CopyFunction, address_bytes: int, name: str, size_bytes: int, to_device: bool
) -> DMA:
    def memory_ranges(context: LaunchContext, iteration: int) -> tuple[MemoryRange, ...]:
        return (MemoryRange(name, context.card.allocator.virtual_address(address_bytes)),)

    return DMA(copy, memory_ranges, size_bytes, to_device, False, name)
