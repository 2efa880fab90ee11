"""A compiled kernel in program memory, and how its launches are bound, corrected and computed.

Program correction (pipeline RFC; runtime reference §5): the host writes the values of the
kernel's symbols, addresses among them, into a correction tensor; DMA copies it to program memory;
the compute step reads it there and runs the kernel with what it found. Every launch has correction
tensors of its own, one per iteration, so that one may be prepared while another computes. Launches
of our own programs, which nobody looks at, come bound: they need no correction.
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
from spyre.interrupts import interrupts
from spyre.layout import Int64Array
from spyre.lru_cache import LruCache
from spyre.runtime.arguments import KernelArguments, given_launch_spec
from spyre.runtime.flex.correction import (
    Correction,
    CorrectionMemory,
    correction_of,
    correction_places,
    correction_steps,
)
from spyre.runtime.flex.job import (
    NO_VALUES,
    DeviceCompute,
    JobPlan,
    KernelLaunch,
    LaunchContext,
    LaunchPlan,
    MemoryRange,
    bytes_to_device,
    kernel_launch,
)
from spyre.runtime.flex.origin import LaunchOrigin
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature, PoolBuffer, Runner, TilingOptions
from spyre.runtime.memory import DeviceStorage, ProgramMemory, SpyreTensor
from spyre.runtime.program import LaunchSpec

if TYPE_CHECKING:
    from spyre.runtime.flex.device import FlexDevice
    from spyre.runtime.tiling import TilingKernel

Shapes = tuple[tuple[int | str, ...], ...]
"""Per argument its extents: numbers, and names of runtime sizes."""
ArgumentsOf = Callable[[Mapping[str, int]], KernelArguments]
"""What a kernel takes, for given values of its runtime sizes and index parameters."""
MAX_PLANS = 1024
"""Signatures of tensors a kernel remembers a launch plan for."""


@dataclass(eq=False)
class LoadedKernel:
    """A kernel on a card. Launches may be bound from any thread; computing is the engine's.

    ``image``: its bytes in program memory, which begin with ``header``. ``arguments_of``: what it
    takes, for given values of its runtime sizes and index parameters. ``pool``: memory of its
    intermediates, kept between launches.
    """

    name: str
    kernel: Kernel
    arguments_of: ArgumentsOf
    image: ProgramMemory
    header: bytes
    pool: PoolBuffer | None = None
    pool_memory: DeviceStorage | None = None
    _plans: LruCache[tuple[object, ...], tuple[LaunchPlan, TilingKernel]] = field(
        default_factory=lambda: LruCache(MAX_PLANS)
    )
    _tilings: dict[tuple[tuple[str, int], ...], TilingKernel] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def correction(self) -> Correction:
        return correction_of(self.kernel.bundle.program.parameters)

    @cached_property
    def _corrections(self) -> CorrectionMemory:
        return CorrectionMemory(self.correction)

    @cached_property
    def _named_shapes(self) -> Shapes:
        return named_shapes(given_launch_spec(self.kernel.bundle))

    @property
    def allocation_bytes(self) -> int:
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
        device: FlexDevice,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions | None = None,
        values: Mapping[str, int] = NO_VALUES,
    ) -> KernelLaunch:
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
        known = self._plans.get(key)
        if known is None:
            known = self._find_plan(device, tensors, options or TilingOptions(), values)
            self._plans.put(key, known)
        launch_plan, tiling = known
        bases = tuple([tensor.resolved.address_bytes for tensor in tensors])
        if self.pool is not None:
            bases = (*bases, self.pool.address_bytes)
        launch = KernelLaunch(plan, device, launch_plan, bases, tensors)
        if launch_plan.tiles is not None:
            self._bind_tiles(launch, tensors, tiling, values)
        return self._corrected(launch)

    def bind_at(
        self,
        device: FlexDevice,
        launch_plan: LaunchPlan,
        addresses: tuple[int, ...],
        keep_alive: Sequence[object] = (),
        runner: Runner | None = None,
        is_corrected: bool = False,
        origin: LaunchOrigin | None = None,
    ) -> KernelLaunch:
        """One pass at ``addresses``, of tensors that somebody else has checked.

        ``keep_alive`` lives until it has ended. ``runner``: another way to run it. It needs no
        correction, since what the compute step runs is bound here, symbol by symbol;
        ``is_corrected``: it has one all the same, for a command stream that shows it. ``origin``:
        what it was made for.
        """
        plan = self.plan if is_corrected else self.bound_plan
        launch = KernelLaunch(plan, device, launch_plan, addresses, keep_alive, runner, origin)
        return self._corrected(launch) if is_corrected else launch

    def _corrected(self, launch: KernelLaunch) -> KernelLaunch:
        if self.correction.names:
            launch.correction = self._corrections.take(launch.device, launch.iterations)
        return launch

    def _find_plan(
        self,
        device: FlexDevice,
        tensors: Sequence[SpyreTensor],
        options: TilingOptions,
        values: Mapping[str, int],
    ) -> tuple[LaunchPlan, TilingKernel]:
        """The plan of a launch; TilingError and LaunchError SPY850-SPY862 when there is none."""
        from spyre.runtime.tiling import TiledLaunch

        arguments = self.arguments_of(values)
        self._check(device, arguments, tensors)
        launch = self._launch(arguments, tensors, values)
        with self._lock:  # tiling kernels are made for one thread
            tiling = self._tiling_of(arguments, launch.values)
            if tiling.matches(launch):
                return LaunchPlan.one_pass(self.kernel, launch), tiling
            tiles = tiling.plan(launch, options)
            if not tiles.is_tiled and all(tensor.map.is_identity for tensor in tiles.tensors):
                return LaunchPlan.one_pass(self.kernel, launch), tiling
            return LaunchPlan.over_tiles(TiledLaunch(tiling, launch, tiles)), tiling

    def _tiling_of(self, arguments: KernelArguments, values: Mapping[str, int]) -> TilingKernel:
        from spyre.runtime.tiling import TilingKernel

        key = tuple(sorted(values.items()))
        if key not in self._tilings:
            self._tilings[key] = TilingKernel(self.kernel, arguments, values)
        return self._tilings[key]

    def _launch(
        self,
        arguments: KernelArguments,
        tensors: Sequence[SpyreTensor],
        values: Mapping[str, int],
    ) -> Launch:
        pairs = zip(arguments.arguments, tensors, strict=True)
        names = {parameter.name for parameter in self.kernel.bundle.program.parameters}
        parameter_values = {name: value for name, value in values.items() if name in names}
        memory = {a.arg_index: tensor.resolved for a, tensor in pairs}
        return Launch(memory, self.pool, parameter_values)

    def _bind_tiles(
        self,
        kernel_launch: KernelLaunch,
        tensors: Sequence[SpyreTensor],
        tiling: TilingKernel,
        values: Mapping[str, int],
    ) -> None:
        """What a tiled launch needs beside its plan: a look at its addresses, temporaries."""
        from spyre.runtime.tiling import TiledLaunch, TileSteps, temporaries_of

        tiles, device = kernel_launch.launch_plan.tiles, kernel_launch.device
        assert tiles is not None
        launch = self._launch(self.arguments_of(values), tensors, values)
        with self._lock:
            tiled = TiledLaunch(tiling, launch, tiles)
        if not tiles.needs_steps:
            return
        storages: list[DeviceStorage] = []

        def allocate(size_bytes: int) -> int:
            storages.append(device.allocate(size_bytes))
            return device.allocator.device_address(storages[-1].index)

        temporaries = temporaries_of(tiles, tiled.steps(), allocate)
        kernel_launch.use_steps(TileSteps(tiled, temporaries), tuple(storages))

    def _check(
        self, device: FlexDevice, arguments: KernelArguments, tensors: Sequence[SpyreTensor]
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
        memory = kernel_launch(context).correction
        if memory is not None:
            self._corrections.give_back(memory)

    # --- running ---------------------------------------------------------------------------------

    def compute(self, context: LaunchContext, first: int, last: int) -> None:
        """Run iterations ``first`` .. ``last`` with the symbols that program memory holds."""
        launch = kernel_launch(context)
        self._check_image(context.device)
        if first == last:
            return
        plan = launch.launch_plan
        if launch.is_bound:
            self._run_one(launch, plan.kernel, plan.signature, launch.bases)
            return
        addresses, signature = launch.addresses(first, last), plan.signature
        if launch.correction is not None:
            # What counts is what DMA has written, not what the host bound.
            rows = self._corrections.read(launch.device, launch.correction, first, last)
            addresses = self.correction.addresses(signature, addresses, rows)
            signature = self.correction.signature(signature, rows[0])
        if launch.steps is not None:
            launch.steps.run(first, addresses, partial(self._run_one, launch))
        elif last - first == 1:
            self._run_one(launch, plan.kernel, signature, tuple(addresses[0].tolist()))
        else:
            self._run_tiles(launch, signature, addresses)

    def _run_one(
        self,
        launch: KernelLaunch,
        kernel: Kernel,
        signature: LaunchSignature,
        addresses: tuple[int, ...],
    ) -> None:
        device = launch.device.device
        linked = kernel.link_at(signature, addresses, launch.launch_plan.names)
        runner = launch.runner or launch.device.runner
        if runner is None:
            device.executor.run(linked)
        else:
            with interrupts.allowed():  # it may take long, as a verification does
                launch.outcome.detail = runner(device, linked)

    def _run_tiles(
        self, launch: KernelLaunch, signature: LaunchSignature, addresses: Int64Array
    ) -> None:
        kernel = launch.launch_plan.kernel
        if launch.runner is not None or launch.device.runner is not None:
            for row in addresses.tolist():
                self._run_one(launch, kernel, signature, tuple(row))
            return
        batch = kernel.link_batch_at(signature, addresses)
        launch.device.device.executor.run_batch(batch)

    def _check_image(self, device: FlexDevice) -> None:
        content = device.device.memory.view(self.image.address_bytes, STICK_BYTES)
        if content.tobytes() != self.header:
            raise DeviceFault(
                "SPY881",
                f"program memory does not hold {self.name} any more",
                expected=f"the header of its binary at {self.image.address_bytes:#x}",
                found=content[:16].tobytes().hex(),
            )

    def places(self, context: LaunchContext, iteration: int) -> tuple[MemoryRange, ...]:
        """Device memory one compute control block names: program, correction, arguments, pool."""
        launch = kernel_launch(context)
        resolve = context.device.allocator.virtual_address
        places = [MemoryRange("program", resolve(self.image.address_bytes))]
        if launch.correction is not None:
            places += correction_places(context, iteration, self.correction.size_bytes)
        addresses = launch.addresses(iteration, iteration + 1)[0].tolist()
        pairs = zip(launch.launch_plan.names, addresses, strict=True)
        return (*places, *(MemoryRange(name, resolve(address)) for name, address in pairs))


# --- runtime sizes ----------------------------------------------------------------------------


def named_shapes(spec: LaunchSpec | None) -> Shapes:
    """The shapes of a launch spec, nothing where no size has a name."""
    shapes = () if spec is None else tuple(argument.shape for argument in spec.args)
    return shapes if any(isinstance(n, str) for shape in shapes for n in shape) else ()


def sizes_of_tensors(
    shapes: Shapes, tensors: Sequence[SpyreTensor], given_values: Mapping[str, int]
) -> dict[str, int]:
    """``given_values`` values, and those of the sizes that ``shapes`` name.

    LaunchError SPY873 where two of them differ. Tensors of another rank are left to the launch,
    which refuses them.
    """
    values = dict(given_values)
    source = dict.fromkeys(given_values, "the values of the launch")
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


# --- loading ----------------------------------------------------------------------------------


def load_kernel(
    device: FlexDevice,
    kernel: Kernel,
    arguments_of: ArgumentsOf,
    binary: bytes,
    name: str,
    pool_bytes: int = 0,
) -> tuple[LoadedKernel, JobPlan]:
    """``kernel`` as the card runs it, and the job that copies ``binary`` to program memory before.

    ``binary`` begins with a header stick that identifies it. The kernel's pool, where it has one,
    is allocated here and kept between launches.
    """
    memory = device.allocate_program(len(binary))
    pool = storage = None
    if pool_bytes:
        storage = device.allocate(pool_bytes)
        pool = PoolBuffer(device.allocator.device_address(storage.index), pool_bytes)
    header = binary[:STICK_BYTES]
    loaded = LoadedKernel(name, kernel, arguments_of, memory, header, pool, storage)
    content = np.frombuffer(binary, np.uint8)
    return loaded, bytes_to_device(content, memory.address_bytes, f"binary of {name}")
