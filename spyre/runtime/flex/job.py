"""Jobs: the steps of a launch, what one launch of them carries, and jobs that only copy.

Names of the pipeline RFC: a `Job` has a `JobPlan`, an ordered list of `HostOperation`, `DMA` and
`DeviceCompute`; an `ExecutionPlan` is a list of jobs. A plan is immutable and shared by all its
launches; a `LaunchContext` belongs to one launch. Runtime reference §5 and §8.

What launches of a kernel over tensors of one signature have in common is found once, as a
`LaunchPlan`: the kernel as it is, or retargeted to tiles of larger tensors with the offset of every
tile. A `KernelLaunch` is one launch of it, at its addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spyre.errors import LaunchError
from spyre.hw.memory import DeviceTensor
from spyre.layout import Int64Array
from spyre.runtime.arguments import HostTensor
from spyre.runtime.flex.origin import LaunchOrigin
from spyre.runtime.flex.scheduling import Engine, Stage, Stages
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature, Runner, TilingOptions
from spyre.runtime.memory import DeviceStorage, ProgramMemory, SpyreTensor, VirtualAddress

if TYPE_CHECKING:
    from spyre.runtime.flex.device import FlexDevice
    from spyre.runtime.flex.loaded_kernel import LoadedKernel
    from spyre.runtime.tiling import TiledLaunch, TilePlan, TileSteps


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """A named range of device memory a block uses."""

    name: str
    address: VirtualAddress

    def __str__(self) -> str:
        return f"{self.name} {self.address}"


@dataclass(frozen=True, slots=True)
class ControlBlock:
    """One operation on the card, or on the host for it.

    ``kind``: "dma to device", "dma from device", "compute", or "host" (run by the CPU, no control
    block of the card). ``places``: device memory it names. ``size_bytes``: bytes it moves.
    ``origin``: of a launch, where it is known.
    """

    kind: str
    name: str
    places: tuple[MemoryRange, ...] = ()
    size_bytes: int = 0
    origin: LaunchOrigin | None = None

    def __str__(self) -> str:
        size = f", {self.size_bytes} bytes" if self.size_bytes else ""
        places = f": {', '.join(map(str, self.places))}" if self.places else ""
        return f"{self.kind} {self.name}{size}{places}"


@dataclass(frozen=True, slots=True)
class NotedBlock:
    """What the card's DMA engine did for somebody else than a launch, such as a collective.

    ``place_bytes``: of each place of the block. ``begin_ns``/``end_ns``: host clock. ``channel``:
    what does one at a time, such as a group of cards. ``detail``: what it was; ``shown``: what
    traces show of it.
    """

    block: ControlBlock
    place_bytes: tuple[int, ...]
    begin_ns: int
    end_ns: int
    channel: str
    detail: object
    shown: Mapping[str, object]


NO_VALUES: Mapping[str, int] = {}
LARGE_BYTES = 1 << 21
"""Tensor bytes from which a job is worth a second thread."""


@dataclass
class LaunchOutcome:
    """What a launch leaves behind, once it has run. ``detail``: of the way it was run."""

    detail: object = None


class LaunchContext:
    """One launch of a plan: its buffers and results.

    ``keep_alive``: tensors whose memory it uses. ``iterations``: tiles; ``chunk``: how many run in
    one go. ``is_large``: worth a second thread. ``buffers``: host buffers by handle, int64 rows
    [iteration, word], made by the host operations that fill them.
    """

    __slots__ = (
        "buffers",
        "chunk",
        "device",
        "is_large",
        "iterations",
        "keep_alive",
        "outcome",
        "plan",
    )

    def __init__(
        self,
        plan: JobPlan,
        device: FlexDevice,
        keep_alive: Sequence[object] = (),
        iterations: int = 1,
        is_large: bool = False,
        chunk: int = 64,
    ) -> None:
        self.plan = plan
        self.device = device
        self.keep_alive = keep_alive
        self.iterations = iterations
        self.is_large = is_large
        self.chunk = chunk
        self.buffers: dict[str, npt.NDArray[np.int64]] = {}
        self.outcome = LaunchOutcome()


@dataclass(frozen=True)
class JobPlan:
    """The steps of a job, in order.

    ``program``: the kernel its compute steps run, None for plain copies.
    """

    name: str
    steps: tuple[JobPlanStep, ...]
    program: LoadedKernel | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise LaunchError("SPY876", f"job plan {self.name} has no steps")

    @cached_property
    def stages(self) -> Stages:
        """What the scheduler runs for a launch."""
        return Stages(step.stage for step in self.steps)

    def bind(
        self,
        device: FlexDevice,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None = None,
        values: Mapping[str, int] = NO_VALUES,
    ) -> LaunchContext:
        """A launch over ``tensors``. LaunchError or TilingError when they do not fit."""
        if self.program is None:
            return LaunchContext(self, device, tuple(tensors), is_large=self.moves_much)
        return self.program.bind(self, device, tensors, options, values)

    @cached_property
    def moves_much(self) -> bool:
        """Whether its copies are worth a second thread."""
        sizes = (step.size_bytes for step in self.steps if isinstance(step, DMA))
        return sum(sizes) > LARGE_BYTES

    def num_steps(self) -> int:
        return len(self.steps)

    def get_step_type(self, index: int) -> str:
        """Type of a step. LaunchError SPY877 when there is none of that index."""
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
        """Host shapes the kernel was compiled for, in launch order."""
        return () if self.program is None else self.program.expected_shapes

    def __str__(self) -> str:
        steps = ", ".join(step.step_type for step in self.steps)
        return f"JobPlan({self.name}: {steps})"

    __repr__ = __str__


@dataclass(frozen=True)
class HostOperation:
    """Something the CPU computes for every iteration, before the device needs it.

    ``function(context, first, last)`` returns int64 rows, one per iteration; they go to the buffer
    ``handle``, which is ``words`` wide.
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
        """Preparation: its buffer is the launch's own."""
        return Stage(Engine.HOST, self._run, is_prep=True)

    def _run(self, context: LaunchContext, first: int, last: int) -> None:
        buffer = context.buffers.get(self.handle)
        if buffer is None:
            buffer = np.zeros((context.iterations, self.words), np.int64)
            context.buffers[self.handle] = buffer
        buffer[first:last] = self.function(context, first, last)

    def describe(self, context: LaunchContext, iteration: int) -> ControlBlock:
        """One host operation; it is no control block of the card."""
        return ControlBlock("host", f"{self.label} of {context.plan.name}", (), self.words * 8)


@dataclass(frozen=True)
class DMA:
    """A copy between host and device.

    ``copy(context, first, last)`` does it; ``places(context, iteration)`` says where on the device.
    ``is_prep``: it fills a buffer of its launch's own.
    """

    copy: Callable[[LaunchContext, int, int], None]
    places: Callable[[LaunchContext, int], tuple[MemoryRange, ...]]
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
        return ControlBlock(
            kind, self.label or context.plan.name, self.places(context, iteration), self.size_bytes
        )


@dataclass(frozen=True)
class DeviceCompute:
    """A run of the program in program memory, iteration by iteration."""

    program: LoadedKernel

    @property
    def step_type(self) -> str:
        return "Compute"

    @property
    def stage(self) -> Stage:
        return Stage(Engine.COMPUTE, self.program.compute)

    def describe(self, context: LaunchContext, iteration: int) -> ControlBlock:
        places = self.program.places(context, iteration)
        return ControlBlock("compute", context.plan.name, places, 0, kernel_launch(context).origin)


JobPlanStep = HostOperation | DMA | DeviceCompute
"""A step says its type (runtime reference §5), the stage the scheduler runs for it, and what one
iteration of it is in the command stream."""


@dataclass(eq=False)
class Job:
    """A plan with the binary it runs, as the pipeline RFC has it.

    ``binary_path``: of the compiled binary, None for plain copies. ``program_correction_metadata``:
    the hcm object of its host operation.
    """

    job_plan: JobPlan
    binary_path: Path | None = None
    program_correction_metadata: dict[str, object] = field(default_factory=dict)


@dataclass(eq=False)
class ExecutionPlan:
    """An ordered list of jobs: what one compiled function runs."""

    jobs: list[Job] = field(default_factory=list)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)


CopyFunction = Callable[[LaunchContext, int, int], None]


def to_device_plan(host: HostTensor, tensor: DeviceTensor) -> JobPlan:
    """Host tensor → device tensor, with conversion of format and layout.

    The host tensor must not change before the copy has run. Whoever launches it keeps the device
    memory, by giving its `SpyreTensor` to the launch.
    """

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.to_device(host, tensor)

    return _plan(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=True)


def to_host_plan(tensor: DeviceTensor, host: HostTensor) -> JobPlan:
    """Device tensor → the storage of ``host``."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.to_host(tensor, host)

    return _plan(copy, tensor.address_bytes, tensor.name, tensor.size_bytes, to_device=False)


def bytes_to_device(content: npt.NDArray[np.uint8], address_bytes: int, name: str) -> JobPlan:
    """Raw bytes → device memory: program binaries, device images."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.write_bytes(address_bytes, content, name)

    return _plan(copy, address_bytes, name, content.size, to_device=True)


def bytes_to_host(address_bytes: int, size_bytes: int, name: str) -> JobPlan:
    """Raw bytes of device memory → a buffer of the launch's outcome, ``detail``."""

    def copy(context: LaunchContext, first: int, last: int) -> None:
        dma = context.device.dma
        context.outcome.detail = dma.read_bytes(address_bytes, size_bytes, name)

    return _plan(copy, address_bytes, name, size_bytes, to_device=False)


def device_copy_plan(source: DeviceTensor, target: DeviceTensor) -> JobPlan:
    """The bytes of a device tensor → one of the same size on the same card, through the host."""
    # DMA between host and card is the only engine that copies. The bytes wait here from one step of
    # the job to the next.
    in_flight: list[npt.NDArray[np.uint8]] = []

    def down(context: LaunchContext, first: int, last: int) -> None:
        dma = context.device.dma
        in_flight.append(dma.read_bytes(source.address_bytes, source.size_bytes, source.name))

    def up(context: LaunchContext, first: int, last: int) -> None:
        context.device.dma.write_bytes(target.address_bytes, in_flight.pop(), target.name)

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
    def places(context: LaunchContext, iteration: int) -> tuple[MemoryRange, ...]:
        return (MemoryRange(name, context.device.allocator.virtual_address(address_bytes)),)

    return DMA(copy, places, size_bytes, to_device, False, name)


# --- launches of kernels ----------------------------------------------------------------------


CHUNK_BYTES = 1 << 26
"""Tensor bytes that tiles run over in one go: some milliseconds."""


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """How a kernel runs over tensors of one signature. Immutable; any thread may use it.

    ``kernel``: what runs, once per iteration. ``offsets_bytes``: int64 [iteration, address], of
    each tile's corner from the start of its tensor; None for one pass. ``tiles``: the tile plan,
    None for one pass of the kernel as it is. ``names``: of the memory at each address.
    """

    kernel: Kernel
    signature: LaunchSignature
    names: tuple[str, ...]
    size_bytes: int
    offsets_bytes: Int64Array | None = None
    tiles: TilePlan | None = None

    @classmethod
    def one_pass(cls, kernel: Kernel, launch: Launch) -> LaunchPlan:
        """One pass of ``kernel`` over tensors that somebody else has checked."""
        return cls(kernel, kernel.signature_of(launch), launch.names, _size_bytes(launch))

    @classmethod
    def over_tiles(cls, tiled: TiledLaunch) -> LaunchPlan:
        """The kernel retargeted to tiles, and where every tile lies."""
        from spyre.runtime.tiling import Compute

        plan, launch = tiled.plan, tiled.launch
        first = Compute(0)
        kernel = tiled.kernel_of(first)
        signature = kernel.signature_of(tiled.launch_of(first))
        column_of = {tensor.expected.arg_index: k for k, tensor in enumerate(plan.tensors)}
        offsets_bytes = np.zeros((plan.iterations, len(signature.indices)), np.int64)
        for column, index in enumerate(signature.indices):
            if index in column_of:
                offsets_bytes[:, column] = plan.offsets_bytes[:, column_of[index]]
        return cls(kernel, signature, launch.names, _size_bytes(launch), offsets_bytes, plan)

    # Every launch asks for these three: an attribute costs less than a call.

    @cached_property
    def is_large(self) -> bool:
        """True if a launch is worth a second thread."""
        return self.size_bytes > LARGE_BYTES or self.iterations > 1

    @cached_property
    def chunk(self) -> int:
        return min(max(CHUNK_BYTES * self.iterations // max(self.size_bytes, 1), 1), 4096)

    @cached_property
    def iterations(self) -> int:
        return 1 if self.offsets_bytes is None else len(self.offsets_bytes)

    def addresses(self, bases: Sequence[int], first: int, last: int) -> Int64Array:
        """Where the memory of iterations ``first`` to ``last`` begins, [iteration, address]."""
        row = np.array(bases, np.int64)[None]
        if self.offsets_bytes is None:
            return row[first:last]
        addresses: Int64Array = row + self.offsets_bytes[first:last]
        return addresses


class KernelLaunch(LaunchContext):
    """One launch of a `LaunchPlan`, at ``bases``: where its memory begins, bytes.

    ``correction``: its correction tensors in program memory, None where nothing is corrected.
    ``runner``: another way to run it. ``steps``, ``temporaries``: of a tiled launch that does more
    than to run the kernel per tile. ``origin``: what it was made for, where that is known.
    """

    __slots__ = ("bases", "correction", "launch_plan", "origin", "runner", "steps", "temporaries")

    def __init__(
        self,
        plan: JobPlan,
        device: FlexDevice,
        launch_plan: LaunchPlan,
        bases: tuple[int, ...],
        keep_alive: Sequence[object] = (),
        runner: Runner | None = None,
        origin: LaunchOrigin | None = None,
    ) -> None:
        iterations, is_large = launch_plan.iterations, launch_plan.is_large
        super().__init__(plan, device, keep_alive, iterations, is_large, launch_plan.chunk)
        self.launch_plan = launch_plan
        self.bases = bases
        self.runner = runner
        self.origin = origin
        self.correction: ProgramMemory | None = None
        self.steps: TileSteps | None = None
        self.temporaries: tuple[DeviceStorage, ...] = ()

    def use_steps(self, steps: TileSteps, temporaries: tuple[DeviceStorage, ...]) -> None:
        """Let the launch run ``steps``, one per iteration, with their temporaries."""
        self.steps = steps
        self.temporaries = temporaries
        self.iterations = len(steps)
        self.is_large = self.is_large or len(steps) > 1

    @property
    def is_bound(self) -> bool:
        """True if it is one pass over its memory, and nothing has to be corrected."""
        one_pass = self.steps is None and self.launch_plan.offsets_bytes is None
        return one_pass and self.correction is None

    def addresses(self, first: int, last: int) -> Int64Array:
        """Where the memory of iterations ``first`` to ``last`` begins, [iteration, address]."""
        if self.steps is not None:
            return self.steps.addresses[first:last]
        return self.launch_plan.addresses(self.bases, first, last)


def kernel_launch(context: LaunchContext) -> KernelLaunch:
    """``context`` as what it is where a kernel's own steps run."""
    assert isinstance(context, KernelLaunch)
    return context


def _size_bytes(launch: Launch) -> int:
    return sum(tensor.size_bytes for tensor in launch.arguments.values())
