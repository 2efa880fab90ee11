"""A compiled kernel in program memory, and how its launches are bound, corrected and computed.

Program correction (pipeline RFC; runtime reference §5): the host writes the values of the
kernel's symbols, addresses among them, into a correction tensor; DMA copies it to program memory;
the compute step reads it there and runs the kernel with what it found. Every launch has a
correction tensor of its own, so that one launch may be prepared while another computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.spec import STICK_BYTES
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.flex.control_block import Place
from spyre.runtime.flex.correction import Correction, correction_of
from spyre.runtime.flex.job import (
    DMA,
    LARGE_BYTES,
    DeviceCompute,
    HostOperation,
    JobPlan,
    LaunchContext,
)
from spyre.runtime.flex.program_memory import ProgramMemory
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.kernel import Kernel, Launch, LaunchShape, PoolBuffer
from spyre.runtime.memory.storage import DeviceStorage

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice

CORRECTION = "correction"
"""Handle of the correction tensor."""
MAX_FREE = 64
"""Correction tensors a kernel keeps for later launches."""


@dataclass(slots=True)
class BoundKernel:
    """One launch as the compute engine is given it.

    ``shape``: what does not change between launches; ``addresses``: where its memory begins, bytes;
    ``names``: of that memory.
    """

    shape: LaunchShape
    addresses: tuple[int, ...]
    names: tuple[str, ...]


Runner = Callable[[Kernel, BoundKernel], Any]
"""Runs one launch of a kernel on the compute engine; its result is kept in the outcome."""


@dataclass(slots=True)
class KernelState:
    """What a kernel keeps for one launch.

    ``bound``: as the host bound it. ``memory``: the correction tensor in program memory, None for
    a kernel without symbols. ``runner``: another way to run it.
    """

    bound: BoundKernel
    memory: ProgramMemory | None = None
    runner: Runner | None = None


@dataclass(frozen=True, slots=True)
class _Form:
    """What is known of launches over tensors of one signature."""

    shape: LaunchShape
    names: tuple[str, ...]
    is_large: bool


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
    _forms: dict[tuple[object, ...], _Form] = field(default_factory=dict)

    @cached_property
    def correction(self) -> Correction:
        """What the correction tensor holds."""
        return correction_of(self.kernel.bundle.program.parameters)

    @property
    def allocation_bytes(self) -> int:
        """Bytes of program memory it holds."""
        return self.image.size_bytes

    @property
    def expected_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Host shapes of its arguments, in launch order."""
        return tuple(a.shape for a in self.arguments.arguments)

    @cached_property
    def plan(self) -> JobPlan:
        """The job plan: correction where there are symbols, and the compute step."""
        compute = DeviceCompute(self)
        if not self.correction.names:
            return JobPlan(self.name, (compute,), self)
        size_bytes = self.correction.size_bytes
        correct = HostOperation(_correction_rows, CORRECTION, size_bytes // 8, CORRECTION)
        label = f"{CORRECTION} of {self.name}"
        copy = DMA(_copy_correction, _correction_places, size_bytes, True, True, label)
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
        resolved = [tensor.resolved for tensor in tensors]
        signature = tuple([tensor.signature for tensor in tensors])
        form = self._forms.get(signature)
        if form is None:
            form = self._forms[signature] = self._form(device, tensors)
        addresses = tuple([tensor.address_bytes for tensor in resolved])
        if self.pool is not None:
            addresses = (*addresses, self.pool.address_bytes)
        bound = BoundKernel(form.shape, addresses, form.names)
        return self._context(plan, device, bound, tensors, None, form.is_large)

    def bind_launch(
        self, device: FlexDevice, launch: Launch, runner: Runner | None = None
    ) -> LaunchContext:
        """A launch of tensors that were checked and placed; ``runner``: another way to run it."""
        bound = BoundKernel(self.kernel.shape_of(launch), launch.addresses, launch.names)
        return self._context(self.plan, device, bound, (), runner, True)

    def _context(
        self,
        plan: JobPlan,
        device: FlexDevice,
        bound: BoundKernel,
        tensors: Sequence[SpyreTensor],
        runner: Runner | None,
        is_large: bool,
    ) -> LaunchContext:
        memory = self._take_memory(device) if self.correction.names else None
        state = KernelState(bound, memory, runner)
        return LaunchContext(plan, device, tensors, 1, state, is_large)

    def _form(self, device: FlexDevice, tensors: Sequence[SpyreTensor]) -> _Form:
        self._check(device, tensors)
        arguments = zip(self.arguments.arguments, tensors, strict=True)
        launch = Launch({a.arg_index: tensor.resolved for a, tensor in arguments}, self.pool)
        size_bytes = sum(tensor.size_bytes for tensor in tensors)
        return _Form(self.kernel.shape_of(launch), launch.names, size_bytes > LARGE_BYTES)

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

    def _take_memory(self, device: FlexDevice) -> ProgramMemory:
        try:
            return self._free.pop()
        except IndexError:
            return device.allocate_program(self.correction.size_bytes)

    def release(self, context: LaunchContext) -> None:
        """A launch has ended: its correction tensor serves another one."""
        memory = _state(context).memory
        if memory is not None and len(self._free) < MAX_FREE:
            self._free.append(memory)

    # --- running ---------------------------------------------------------------------------------

    def compute(self, context: LaunchContext, first: int, last: int) -> None:
        """Run iterations ``first`` .. ``last`` with the symbols that program memory holds."""
        state, device = _state(context), context.device
        self._check_image(device)
        bound = state.bound
        if state.memory is not None:
            bound = self._corrected(device, bound, state.memory)
        runner = state.runner or device.runner
        if runner is not None:
            context.outcome.detail = runner(self.kernel, bound)
            return
        linked = self.kernel.link_at(bound.shape, bound.addresses, bound.names)
        device.device.executor.run(linked)

    def _corrected(
        self, device: FlexDevice, bound: BoundKernel, memory: ProgramMemory
    ) -> BoundKernel:
        found = device.device.memory.view(memory.address_bytes, self.correction.size_bytes)
        values = found.view(np.int64).tolist()
        return BoundKernel(bound.shape, self.correction.addresses(bound, values), bound.names)

    def _check_image(self, device: FlexDevice) -> None:
        found = device.device.memory.view(self.image.address_bytes, STICK_BYTES)
        if found.tobytes() != self.header:
            raise DeviceFault(
                "SPY881",
                f"program memory does not hold {self.name} any more",
                expected=f"the header of its binary at {self.image.virtual_address}",
                found=found[:16].tobytes().hex(),
            )

    def places(self, context: LaunchContext, iteration: int) -> tuple[Place, ...]:
        """Device memory one compute control block names: program, correction, arguments, pool."""
        state = _state(context)
        resolve = context.device.allocator.virtual_address
        places = [Place("program", self.image.virtual_address)]
        if state.memory is not None:
            places.append(Place(CORRECTION, state.memory.virtual_address))
        bound = state.bound
        names = zip(bound.names, bound.addresses, strict=True)
        return (*places, *(Place(name, resolve(address)) for name, address in names))


def _state(context: LaunchContext) -> KernelState:
    state = context.state
    assert isinstance(state, KernelState)
    return state


def _correction_rows(context: LaunchContext, first: int, last: int) -> npt.NDArray[np.int64]:
    """Symbol values of iterations ``first`` .. ``last``, one row each."""
    program = context.plan.program
    assert program is not None
    row = program.correction.row(_state(context).bound)
    return np.broadcast_to(row, (last - first, row.size))


def _copy_correction(context: LaunchContext, first: int, last: int) -> None:
    memory = _state(context).memory
    assert memory is not None
    rows = context.buffers[CORRECTION][first:last]
    address = memory.address_bytes + first * rows.shape[1] * 8
    context.device.dma.write_bytes(address, rows.reshape(-1).view(np.uint8), CORRECTION)


def _correction_places(context: LaunchContext, iteration: int) -> tuple[Place, ...]:
    memory = _state(context).memory
    assert memory is not None
    return (Place(CORRECTION, memory.virtual_address),)
