"""A compiled kernel in program memory, and how its launches are bound, corrected and computed.

Program correction (pipeline RFC; runtime reference §5): the host writes the values of the
kernel's symbols, addresses among them, into a correction tensor; DMA copies it to program memory;
the compute step reads it there and runs the kernel with what it found. Every launch has correction
tensors of its own, one per iteration, so that one may be prepared while another computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.spec import STICK_BYTES
from spyre.layout.access_map import Int64Array
from spyre.runtime.arguments.read import given_launch_spec
from spyre.runtime.arguments.specs import KernelArguments
from spyre.runtime.flex.correction import (
    Correction,
    CorrectionMemory,
    correction_of,
    correction_places,
    correction_steps,
)
from spyre.runtime.flex.job import (
    Card,
    DeviceCompute,
    JobPlan,
    LaunchContext,
    MemoryRange,
    bytes_to_device,
)
from spyre.runtime.flex.launch_plan import LaunchPlan, LaunchPlans, LaunchState, state_of
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.kernel.launch import Launch, LaunchShape, PoolBuffer
from spyre.runtime.kernel.runners import BoundKernel, Runner
from spyre.runtime.memory.storage import DeviceStorage, ProgramMemory, SpyreTensor
from spyre.runtime.program.launch_spec import LaunchSpec
from spyre.runtime.tiling.options import TilingOptions

if TYPE_CHECKING:
    from spyre.runtime.flex.device import FlexDevice
    from spyre.runtime.tiling.execute import TilingKernel

Shapes = tuple[tuple[int | str, ...], ...]
"""Per argument its extents: numbers, and names of runtime sizes."""


def named_shapes(spec: LaunchSpec | None) -> Shapes:
    """The shapes of a launch spec, nothing where no size has a name."""
    shapes = () if spec is None else tuple(argument.shape for argument in spec.args)
    return shapes if any(isinstance(n, str) for shape in shapes for n in shape) else ()


def sizes_of_tensors(
    shapes: Shapes, tensors: Sequence[SpyreTensor], given: Mapping[str, int]
) -> dict[str, int]:
    """``given`` values, and those of the sizes that ``shapes`` name.

    LaunchError SPY873 where two of them differ. Tensors of another rank are left to the launch,
    which refuses them.
    """
    values = dict(given)
    source = dict.fromkeys(given, "the values of the launch")
    for shape, tensor in zip(shapes, tensors, strict=False):
        if len(shape) != len(tensor.shape):
            continue
        for name, extent in zip(shape, tensor.shape, strict=True):
            if not isinstance(name, str):
                continue
            if values.setdefault(name, extent) != extent:
                raise LaunchError(
                    "SPY873",
                    f"runtime size {name} has two values",
                    expected=f"{values[name]}, from {source[name]}",
                    found=f"{extent}, from {tensor.name}",
                )
            source.setdefault(name, tensor.name)
    return values


NO_VALUES: Mapping[str, int] = {}
MAX_FORMS = 1024
"""Signatures of tensors a kernel remembers; the oldest goes first."""


@dataclass(eq=False)
class LoadedKernel:
    """A kernel on a card. Launches may be bound from any thread; computing is the engine's.

    ``image``: its bytes in program memory, which begin with ``header``. ``arguments_of``: what it
    takes, for given values of its runtime sizes and index parameters. ``pool``: memory of its
    intermediates, kept between launches.
    """

    name: str
    kernel: Kernel
    arguments_of: Callable[[Mapping[str, int]], KernelArguments]
    image: ProgramMemory
    header: bytes
    pool: PoolBuffer | None = None
    pool_memory: DeviceStorage | None = None
    _forms: dict[tuple[object, ...], tuple[LaunchPlan, TilingKernel]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def correction(self) -> Correction:
        """What the correction tensor holds."""
        return correction_of(self.kernel.bundle.program.parameters)

    @cached_property
    def _corrections(self) -> CorrectionMemory:
        return CorrectionMemory(self.correction)

    @cached_property
    def _named_shapes(self) -> Shapes:
        return named_shapes(given_launch_spec(self.kernel.bundle))

    @cached_property
    def forms(self) -> LaunchPlans:
        """How launches run, by what they are given."""
        return LaunchPlans(self.kernel)

    @property
    def allocation_bytes(self) -> int:
        """Bytes of program memory it holds."""
        return self.image.size_bytes

    @property
    def expected_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Host shapes of its arguments, in launch order; LaunchError SPY366 for a runtime size."""
        return tuple(a.shape for a in self.arguments_of(NO_VALUES).arguments)

    @cached_property
    def plan(self) -> JobPlan:
        """The job plan: correction where there are symbols, and the compute step."""
        compute = DeviceCompute(self)
        if not self.correction.names:
            return JobPlan(self.name, (compute,), self)
        return JobPlan(self.name, (*correction_steps(self.name, self.correction), compute), self)

    @cached_property
    def bound_plan(self) -> JobPlan:
        """The job plan of launches whose symbols the host has bound: the compute step alone."""
        return JobPlan(self.name, (DeviceCompute(self),), self)

    # --- binding ---------------------------------------------------------------------------------

    def bind(
        self,
        plan: JobPlan,
        device: Card,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None = None,
        values: Mapping[str, int] = NO_VALUES,
    ) -> LaunchContext:
        """A launch over ``tensors``, one per argument in launch order, checked against them.

        Runtime sizes that the launch spec names are those of the tensors (SPY873 when they differ);
        ``values``: others, and index parameters, by name.
        """
        if self._named_shapes:
            values = sizes_of_tensors(self._named_shapes, tensors, values)
        key = (
            options,
            tuple(values.items()) if values else (),
            *[tensor.signature for tensor in tensors],
        )
        found = self._forms.get(key)
        if found is None:
            found = self._find_form(key, device, tensors, options, values)
        form, tiling = found
        bases = tuple([tensor.resolved.address_bytes for tensor in tensors])
        if self.pool is not None:
            bases = (*bases, self.pool.address_bytes)
        state = LaunchState(form, bases)
        if form.plan is not None:
            self._bind_tiles(device, state, tensors, tiling, values)
        return self._context(plan, device, state, tensors)

    def bind_launch(
        self, device: Card, launch: Launch, runner: Runner | None = None
    ) -> LaunchContext:
        """A launch of tensors that were checked and placed; ``runner``: another way to run it."""
        state = LaunchState(self.forms.bound(launch), launch.addresses, None, runner)
        return self._context(self.plan, device, state, ())

    def bind_addresses(
        self,
        device: Card,
        form: LaunchPlan,
        addresses: Sequence[int],
        held: Sequence[SpyreTensor],
    ) -> LaunchContext:
        """One pass of a known form at ``addresses``; ``held`` lives until it has ended.

        It needs no correction: what the compute step runs is bound here, symbol by symbol.
        """
        state = LaunchState(form, tuple(addresses))
        return LaunchContext(self.bound_plan, device, held, 1, state, form.is_large, form.chunk)

    def _context(
        self,
        plan: JobPlan,
        device: Card,
        state: LaunchState,
        tensors: Sequence[SpyreTensor],
    ) -> LaunchContext:
        iterations = state.form.iterations if state.steps is None else len(state.steps)
        if self.correction.names:
            state.memory = self._corrections.take(device, iterations)
        is_large = state.form.is_large or iterations > 1
        chunk = state.form.chunk
        return LaunchContext(plan, device, tensors, iterations, state, is_large, chunk)

    def _find_form(
        self,
        key: tuple[object, ...],
        device: Card,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None,
        values: Mapping[str, int],
    ) -> tuple[LaunchPlan, TilingKernel]:
        arguments = self.arguments_of(values)
        self._check(device, arguments, tensors)
        launch = self._launch(arguments, tensors, values)
        with self._lock:
            found = self.forms.find(launch, arguments, options or TilingOptions())
            self._forms[key] = found
            if len(self._forms) > MAX_FORMS:
                del self._forms[next(iter(self._forms))]
        return found

    def _launch(
        self,
        arguments: KernelArguments,
        tensors: Sequence[SpyreTensor],
        values: Mapping[str, int],
    ) -> Launch:
        pairs = zip(arguments.arguments, tensors, strict=True)
        names = {parameter.name for parameter in self.kernel.bundle.program.parameters}
        given = {name: value for name, value in values.items() if name in names}
        return Launch({a.arg_index: tensor.resolved for a, tensor in pairs}, self.pool, given)

    def _bind_tiles(
        self,
        device: Card,
        state: LaunchState,
        tensors: Sequence[SpyreTensor],
        tiling: TilingKernel,
        values: Mapping[str, int],
    ) -> None:
        """What a tiled launch needs beside its form: a look at its addresses, temporaries."""
        from spyre.runtime.tiling.execute import StepLaunch, TiledLaunch, temporaries_of

        plan = state.form.plan
        assert plan is not None
        launch = self._launch(self.arguments_of(values), tensors, values)
        with self._lock:
            tiled = TiledLaunch(tiling, launch, plan)
        if not plan.needs_steps:
            return
        held: list[DeviceStorage] = []

        def allocate(size_bytes: int) -> int:
            held.append(device.allocate(size_bytes))
            return device.allocator.device_address(held[-1].index)

        temporaries = temporaries_of(plan, tiled.steps(), allocate)
        state.steps = StepLaunch(tiled, temporaries)
        state.held = tuple(held)

    def _check(
        self, device: Card, arguments: KernelArguments, tensors: Sequence[SpyreTensor]
    ) -> None:
        expected = arguments.arguments
        if len(tensors) != len(expected):
            raise LaunchError(
                "SPY878",
                f"{self.name} takes {len(expected)} tensors",
                expected=", ".join(str(a.host_spec) for a in expected),
                found=f"{len(tensors)} tensors",
            )
        for k, tensor in enumerate(tensors):
            if tensor.storage.allocator is not device.allocator:
                raise LaunchError(
                    "SPY879",
                    f"argument {k} must be on Spyre device {device.index}",
                    found=repr(tensor),
                )

    def release(self, context: LaunchContext) -> None:
        """A launch has ended: its correction tensor serves another one."""
        memory = state_of(context).memory
        if memory is not None:
            self._corrections.give_back(memory)

    # --- running ---------------------------------------------------------------------------------

    def compute(self, context: LaunchContext, first: int, last: int) -> None:
        """Run iterations ``first`` .. ``last`` with the symbols that program memory holds."""
        state = state_of(context)
        self._check_image(context.device)
        if first == last:
            return
        if state.is_bound:
            self._run_one(context, state, state.form.kernel, state.form.shape, state.bases)
            return
        addresses, shape = state.addresses(first, last), state.form.shape
        if state.memory is not None:
            rows = self._corrections.read(context.device, state.memory, first, last)
            addresses = self.correction.addresses(shape, addresses, rows)
            shape = self.correction.shape(shape, rows[0])
        run = partial(self._run_one, context, state)
        if state.steps is not None:
            state.steps.run(first, addresses, run)
        elif last - first == 1:
            run(state.form.kernel, shape, tuple(addresses[0].tolist()))
        else:
            self._run_tiles(context, state, shape, addresses)

    def _run_one(
        self,
        context: LaunchContext,
        state: LaunchState,
        kernel: Kernel,
        shape: LaunchShape,
        addresses: tuple[int, ...],
    ) -> None:
        names = state.form.names
        runner = state.runner or context.device.runner
        if runner is not None:
            context.outcome.detail = runner(kernel, BoundKernel(shape, addresses, names))
            return
        context.device.device.executor.run(kernel.link_at(shape, addresses, names))

    def _run_tiles(
        self,
        context: LaunchContext,
        state: LaunchState,
        shape: LaunchShape,
        addresses: Int64Array,
    ) -> None:
        kernel = state.form.kernel
        if state.runner is not None or context.device.runner is not None:
            for row in addresses.tolist():
                self._run_one(context, state, kernel, shape, tuple(row))
            return
        batch = kernel.link_batch_at(shape, addresses)
        context.device.device.executor.run_batch(batch)

    def _check_image(self, device: Card) -> None:
        found = device.device.memory.view(self.image.address_bytes, STICK_BYTES)
        if found.tobytes() != self.header:
            raise DeviceFault(
                "SPY881",
                f"program memory does not hold {self.name} any more",
                expected=f"the header of its binary at {self.image.address_bytes:#x}",
                found=found[:16].tobytes().hex(),
            )

    def places(self, context: LaunchContext, iteration: int) -> tuple[MemoryRange, ...]:
        """Device memory one compute control block names: program, correction, arguments, pool."""
        state = state_of(context)
        resolve = context.device.allocator.virtual_address
        places = [MemoryRange("program", resolve(self.image.address_bytes))]
        if state.memory is not None:
            places += correction_places(context, iteration, self.correction.size_bytes)
        addresses = state.addresses(iteration, iteration + 1)[0].tolist()
        pairs = zip(state.form.names, addresses, strict=True)
        return (*places, *(MemoryRange(name, resolve(address)) for name, address in pairs))


ArgumentsOf = Callable[[Mapping[str, int]], KernelArguments]
"""What a kernel takes, for given values of its runtime sizes and index parameters."""


def load_kernel(
    device: FlexDevice,
    kernel: Kernel,
    arguments_of: ArgumentsOf,
    binary: bytes,
    name: str,
    pool_bytes: int = 0,
) -> tuple[JobPlan, JobPlan]:
    """The plan of ``kernel``, and the one that copies ``binary`` to program memory before.

    ``binary`` begins with a header stick that identifies it. The kernel's pool, where it has one,
    is allocated here and kept between launches.
    """
    memory = device.allocate_program(len(binary))
    pool = storage = None
    if pool_bytes:
        storage = device.allocate(pool_bytes)
        pool = PoolBuffer(device.allocator.device_address(storage.index), pool_bytes)
    header = binary[:STICK_BYTES]
    program = LoadedKernel(name, kernel, arguments_of, memory, header, pool, storage)
    content = np.frombuffer(binary, np.uint8)
    return program.plan, bytes_to_device(content, memory.address_bytes, f"binary of {name}")
