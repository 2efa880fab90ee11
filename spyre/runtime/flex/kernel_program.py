"""A compiled kernel in program memory, and how its launches are bound, corrected and computed.

Program correction (pipeline RFC; runtime reference §5): the host writes the values of the
kernel's symbols, addresses among them, into a correction tensor; DMA copies it to program memory;
the compute step reads it there and runs the kernel with what it found. Every launch has a
correction tensor of its own, so that one launch may be prepared while another computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.device import DeviceTensor
from spyre.hw.spec import STICK_BYTES
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.flex.control_block import Place
from spyre.runtime.flex.job import DMA, DeviceCompute, HostOperation, JobPlan, LaunchContext
from spyre.runtime.flex.program_memory import ProgramMemory
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.kernel import Kernel, Launch, PoolBuffer
from spyre.runtime.memory.address import VirtualAddress
from spyre.runtime.memory.storage import DeviceStorage

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice

Runner = Callable[[Kernel, Launch], Any]
"""Runs one launch of a kernel on the compute engine; its result is kept in the outcome."""

CORRECTION = "correction"
"""Handle of the correction tensor."""


@dataclass
class KernelState:
    """What a kernel keeps for one launch.

    ``launch``: tensors, pool and values. ``correction``: the launch's correction tensor in program
    memory, None for a kernel without symbols. ``runner``: another way to run it.
    """

    launch: Launch
    correction: ProgramMemory | None = None
    runner: Runner | None = None


@dataclass(eq=False)
class KernelProgram:
    """A kernel on a card. Launches may be bound from any thread; computing is the engine's.

    ``image``: its bytes in program memory, which begin with ``header``. ``arguments``: what it was
    compiled for. ``pool``: memory of its intermediates, kept between launches.
    """

    name: str
    kernel: Kernel
    arguments: KernelArguments
    image: ProgramMemory
    header: bytes
    pool: PoolBuffer | None = None
    pool_memory: DeviceStorage | None = None
    _free: list[ProgramMemory] = field(default_factory=list)
    _accepted: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of its symbols, in the order of the correction tensor."""
        return tuple(p.name for p in self.kernel.bundle.program.parameters)

    @property
    def correction_bytes(self) -> int:
        """Bytes of the correction tensor of one iteration: whole sticks, 8 bytes per symbol."""
        return -(-8 * len(self.symbols) // STICK_BYTES) * STICK_BYTES

    @property
    def allocation_bytes(self) -> int:
        """Bytes of program memory it holds."""
        return self.image.size_bytes

    @property
    def expected_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Host shapes of its arguments, in launch order."""
        return tuple(a.shape for a in self.arguments.arguments)

    def plan(self) -> JobPlan:
        """The job plan: correction where there are symbols, and the compute step."""
        compute = DeviceCompute(self)
        if not self.symbols:
            return JobPlan(self.name, (compute,), self)
        words = self.correction_bytes // 8
        correct = HostOperation(_correction_rows, CORRECTION, words, "correction")
        label = f"correction of {self.name}"
        copy = DMA(_copy_correction, _correction_places, self.correction_bytes, True, True, label)
        return JobPlan(self.name, (correct, copy, compute), self)

    # --- binding ---------------------------------------------------------------------------------

    def bind(
        self,
        plan: JobPlan,
        device: FlexDevice,
        tensors: Sequence[SpyreTensor],
        allow_tiled_launch: bool | None = None,
    ) -> LaunchContext:
        """A launch over ``tensors``, one per argument in launch order, checked against them."""
        signature = tuple([tensor.signature for tensor in tensors])
        if signature not in self._accepted:
            self._check(device, tensors)
            self._accepted.add(signature)
        resolved = {
            argument.arg_index: tensor.resolved
            for argument, tensor in zip(self.arguments.arguments, tensors, strict=True)
        }
        return self.context(plan, device, Launch(resolved, self.pool), tensors)

    def context(
        self,
        plan: JobPlan,
        device: FlexDevice,
        launch: Launch,
        tensors: Sequence[SpyreTensor] = (),
        runner: Runner | None = None,
    ) -> LaunchContext:
        """A launch of tensors that were checked and placed."""
        correction = self._take_correction(device) if self.symbols else None
        state = KernelState(launch, correction, runner)
        return LaunchContext(plan, device, tensors, 1, state)

    def _check(self, device: FlexDevice, tensors: Sequence[SpyreTensor]) -> None:
        expected = self.arguments.arguments
        if len(tensors) != len(expected):
            raise LaunchError(
                "SPY878",
                f"{self.name} takes {len(expected)} tensors",
                expected=", ".join(str(a.host_spec) for a in expected),
                found=f"{len(tensors)} tensors",
            )
        for k, (argument, tensor) in enumerate(zip(expected, tensors, strict=True)):
            if tensor.storage.allocator is not device.allocator:
                raise LaunchError(
                    "SPY879",
                    f"argument {k} must be on Spyre device {device.index}",
                    found=repr(tensor),
                )
            if (tensor.shape, tensor.dtype) != (argument.shape, argument.dtype_name):
                raise LaunchError(
                    "SPY880",
                    f"argument {k} does not have the shape {self.name} was compiled for",
                    expected=str(argument.host_spec),
                    found=f"{list(tensor.shape)} of {tensor.dtype}",
                )

    def _take_correction(self, device: FlexDevice) -> ProgramMemory:
        try:
            return self._free.pop()
        except IndexError:
            return device.allocate_program(self.correction_bytes)

    def release(self, context: LaunchContext) -> None:
        """A launch has ended: its correction tensor serves another one."""
        state: KernelState = context.state  # type: ignore[assignment]
        if state.correction is not None:
            self._free.append(state.correction)

    # --- running ---------------------------------------------------------------------------------

    def compute(self, context: LaunchContext, first: int, last: int) -> None:
        """Run iterations ``first`` .. ``last`` with the symbols that program memory holds."""
        state: KernelState = context.state  # type: ignore[assignment]
        device = context.device
        self._check_image(device)
        launch = state.launch
        if state.correction is not None:
            launch = self._corrected(device, launch, state.correction)
        runner = state.runner or device.runner or run_plainly
        context.outcome.detail = runner(self.kernel, launch)

    def _corrected(self, device: FlexDevice, launch: Launch, correction: ProgramMemory) -> Launch:
        found = device.device.memory.view(correction.address_bytes, self.correction_bytes)
        values = found.view(np.int64)[: len(self.symbols)].tolist()
        return Launch(launch.arguments, launch.pool, dict(zip(self.symbols, values, strict=True)))

    def _check_image(self, device: FlexDevice) -> None:
        found = device.device.memory.view(self.image.address_bytes, len(self.header))
        if found.tobytes() != self.header:
            raise DeviceFault(
                "SPY881",
                f"program memory does not hold {self.name} any more",
                expected=f"the header of its binary at {self.image.virtual_address}",
                found=found[:16].tobytes().hex(),
            )

    def places(self, context: LaunchContext, iteration: int) -> tuple[Place, ...]:
        """Device memory one compute control block names: program, correction, arguments, pool."""
        state: KernelState = context.state  # type: ignore[assignment]
        places = [Place("program", self.image.virtual_address)]
        if state.correction is not None:
            places.append(Place(CORRECTION, state.correction.virtual_address))
        tensors: Mapping[int, DeviceTensor] = state.launch.arguments
        places += [Place(t.name, virtual_address(t.address_bytes)) for t in tensors.values()]
        if state.launch.pool is not None:
            places.append(Place("pool", virtual_address(state.launch.pool.address_bytes)))
        return tuple(places)


def run_plainly(kernel: Kernel, launch: Launch) -> None:
    """The whole kernel in one call of the compiled driver."""
    kernel.launch(launch)


def virtual_address(address_bytes: int) -> VirtualAddress:
    """Region and offset of a device address."""
    region, offset = divmod(address_bytes, 1 << 34)
    return VirtualAddress(region, offset)


def _correction_rows(context: LaunchContext, first: int, last: int) -> npt.NDArray[np.int64]:
    """Symbol values of iterations ``first`` .. ``last``, one row each."""
    state: KernelState = context.state  # type: ignore[assignment]
    program = context.plan.program
    assert program is not None
    values = program.kernel.parameter_values(state.launch)
    row = np.zeros(program.correction_bytes // 8, np.int64)
    row[: len(program.symbols)] = [values[name] for name in program.symbols]
    return np.broadcast_to(row, (last - first, row.size))


def _copy_correction(context: LaunchContext, first: int, last: int) -> None:
    state: KernelState = context.state  # type: ignore[assignment]
    assert state.correction is not None
    rows = context.buffers[CORRECTION][first:last]
    size = rows.shape[1] * 8
    address = state.correction.address_bytes + first * size
    context.device.device.memory.write(address, rows.reshape(-1).view(np.uint8), CORRECTION)


def _correction_places(context: LaunchContext, iteration: int) -> tuple[Place, ...]:
    state: KernelState = context.state  # type: ignore[assignment]
    assert state.correction is not None
    return (Place(CORRECTION, state.correction.virtual_address),)
