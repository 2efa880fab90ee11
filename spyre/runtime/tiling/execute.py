"""Running a tile plan on a device, one step after another.

:class:`TiledLaunch` prepares a launch and raises its errors before anything runs; `TileSteps` are
its steps with their temporaries, which the flex layer runs on a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spyre.errors import LaunchError
from spyre.hw.device import Device
from spyre.hw.linking import TileMap
from spyre.hw.memory import DeviceTensor
from spyre.layout import Int64Array, SpyreTensorLayout
from spyre.lru_cache import LruCache
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature
from spyre.runtime.program import require_bundle
from spyre.runtime.tiling.device_dims import ActualTensor
from spyre.runtime.tiling.kernel_dims import expected_tensors
from spyre.runtime.tiling.operand_uses import operand_uses
from spyre.runtime.tiling.retarget import retarget
from spyre.runtime.tiling.tile_checks import TilingOptions
from spyre.runtime.tiling.tile_plan import TiledTensor, TilePlan, plan_tiles
from spyre.runtime.tiling.tile_steps import (
    Accumulate,
    Compute,
    CopyBox,
    CopyIn,
    CopyOut,
    TileBuffer,
    TileStep,
    copy_boxes,
    tile_steps,
    valid_shape,
)

if TYPE_CHECKING:
    from spyre.hw.sanitizer import Sanitizer
    from spyre.mlir.builder import BuiltBundle


def accumulator(device: Device, operation: str, layout: SpyreTensorLayout) -> Kernel:
    """argument 0 ← argument 0 ``operation`` argument 1, both dense in ``layout``.

    Kept with the device; call it from the device's thread.
    """
    kernels = device.attached(_Accumulators, _Accumulators)
    key = operation, layout.device_dtype, layout.num_sticks
    if key not in kernels:
        kernels[key] = Kernel(_bundle(*key), device)
    return kernels[key]


class _Accumulators(dict[tuple[str, str, int], Kernel]):
    """By operation, format and sticks."""


@lru_cache(maxsize=256)
def _bundle(operation: str, data_format: str, num_sticks: int) -> BuiltBundle:
    """A bundle over ``num_sticks`` rows of one stick; the writers are imported when needed."""
    from spyre.mlir.builder import BundleBuilder, HostOperand, pointwise

    builder = BundleBuilder()
    total, result = (builder.argument(num_sticks * 128) for _ in range(2))
    target = HostOperand(total.at(), data_format=data_format)
    lanes = SpyreTensorLayout((num_sticks, 1), (1, -1), data_format).elements_per_stick
    source = HostOperand(result.at(), data_format=data_format)
    builder.add(pointwise(operation, (num_sticks, lanes), [target, source], target))
    return replace(builder.build(), directory=Path(f"accumulate_{operation}"))


Temporaries = Mapping[tuple[int, TileBuffer], DeviceTensor]
"""Tile-sized tensors by (number of the tensor in the plan, use)."""

MAX_PLANS = 64
"""Plans, and sets of retargeted operations, a kernel keeps."""


class TilingKernel:
    """A kernel with the analysis of its operands that tiling needs.

    ``values``: of runtime sizes and index parameters, which must be equal in all launches. For one
    thread at a time, like the kernel's device; any thread may read its plans. UnsupportedError
    SPY889 for a program that is not a bundle.
    """

    def __init__(
        self,
        kernel: Kernel,
        arguments: KernelArguments,
        values: Mapping[str, int] | None = None,
    ) -> None:
        self.kernel = kernel
        bundle = require_bundle(kernel.bundle, "a launch over tensors of other shapes or layouts")
        self.uses = operand_uses(bundle, arguments.pool_bytes > 0, values)
        self.expected = expected_tensors(arguments, self.uses)
        self._plans: LruCache[object, TilePlan] = LruCache(MAX_PLANS)
        self._kernels: LruCache[object, Kernel] = LruCache(MAX_PLANS)

    def plan(self, launch: Launch, options: TilingOptions | None = None) -> TilePlan:
        """The tiles of ``launch``. LaunchError SPY363 for a missing argument, else as
        `plan_tiles`.
        """
        options = options if options is not None else TilingOptions()
        tensors = [self._bound(launch, expected.arg_index) for expected in self.expected]
        actual = [ActualTensor.of(tensor) for tensor in tensors]
        key = (options, *(replace(tensor, name="") for tensor in actual))
        return self._plans.get_or_make(key, lambda: plan_tiles(self.expected, actual, options))

    def retargeted(self, maps: Mapping[int, TileMap]) -> Kernel:
        """The kernel for tiles: arguments seen through ``maps``, by index. LaunchError SPY861."""
        if not maps:
            return self.kernel

        def make() -> Kernel:
            operations = retarget(self.kernel.bundle.operations, self.uses, maps)
            return self.kernel.retargeted(operations, maps)

        return self._kernels.get_or_make(tuple(sorted(maps.items())), make)

    def _bound(self, launch: Launch, arg_index: int) -> DeviceTensor:
        if arg_index in launch.arguments:
            return launch.arguments[arg_index]
        raise LaunchError(
            "SPY363",
            f"the kernel needs argument {arg_index}, and it was not given",
            expected=f"arguments {[e.arg_index for e in self.expected]}",
            found=f"arguments {sorted(launch.arguments)}",
        )


@dataclass(frozen=True)
class TiledLaunch:
    """A launch ready to run tile by tile. The constructor raises all errors of the launch.

    For one thread at a time, like the kernel's device.
    """

    kernel: TilingKernel
    launch: Launch
    plan: TilePlan

    def __post_init__(self) -> None:
        _check_overlap(self.launch, self.plan)
        if not self.plan.needs_steps:
            _ = self.whole_tiles
            return
        # Everything that can fail is done here, before anything is enqueued.
        steps = list(self.steps())
        for compute in _one_per_kernel(steps):
            self.kernel_of(compute)
        for step in steps:
            if isinstance(step, CopyIn | CopyOut):
                self.boxes_of(step)

    @property
    def whole_tiles(self) -> Kernel:
        """The kernel retargeted to whole tiles."""
        return self.kernel_of(Compute(0))

    @property
    def first_tile(self) -> Launch:
        """The launch of `whole_tiles` for the first tile."""
        return self.launch_of(Compute(0))

    def steps(self) -> Iterator[TileStep]:
        """Its steps, in order."""
        if self.plan.needs_steps:
            return tile_steps(self.plan)
        return (Compute(iteration) for iteration in range(self.plan.iterations))

    @cached_property
    def addresses_bytes(self) -> Int64Array:
        """Device address of every tile's corner, [iteration, tensor of the plan]."""
        bases = [self._tensor(k).address_bytes for k in range(len(self.plan.tensors))]
        addresses: Int64Array = self.plan.offsets_bytes + np.array(bases, np.int64)
        return addresses

    def kernel_of(self, step: Compute) -> Kernel:
        """The kernel retargeted to the tensors that ``step`` binds."""
        inside = {k for k, _ in step.temporaries}
        return self.kernel.retargeted(
            {
                tensor.expected.arg_index: tensor.map.merged
                for k, tensor in enumerate(self.plan.tensors)
                if k not in inside and _is_mapped(tensor)
            }
        )

    def launch_of(self, step: Compute, temporaries: Temporaries | None = None) -> Launch:
        """The inputs of `kernel_of` for ``step``: corners of tiles, and temporaries."""
        inside = dict(step.temporaries)
        corners = self.addresses_bytes[step.iteration].tolist()
        arguments = dict(self.launch.arguments)
        for k, tensor in enumerate(self.plan.tensors):
            index = tensor.expected.arg_index
            if k in inside:
                arguments[index] = (temporaries or {})[k, inside[k]]
            else:
                arguments[index] = replace(arguments[index], address_bytes=corners[k])
        return replace(self.launch, arguments=arguments)

    def run_copy(self, step: Accumulate | CopyIn | CopyOut, temporaries: Temporaries) -> None:
        """Run a copy or an accumulation."""
        match step:
            case Accumulate():
                total = temporaries[step.tensor, TileBuffer.TILE]
                result = temporaries[step.tensor, TileBuffer.RESULT]
                adder = accumulator(self.kernel.kernel.device, step.operation, total.layout)
                adder.launch(Launch({0: total, 1: result}))
            case CopyIn() | CopyOut():
                self._copy(step, temporaries[step.tensor, TileBuffer.TILE])

    def _copy(self, step: CopyIn | CopyOut, temporary: DeviceTensor) -> None:
        device, larger = self.kernel.kernel.device, self._tensor(step.tensor)
        offset = int(self.plan.offsets_bytes[step.iteration, step.tensor])
        tile, tensor = device.bytes_of(temporary), device.bytes_of(larger)[offset:]
        if isinstance(step, CopyIn):
            tile[:] = 0  # neutral in sums; other results of the padding are not copied out
        for box in self.boxes_of(step):
            inside, outside = box.views(tile, tensor)
            if isinstance(step, CopyIn):
                inside[:] = outside
            else:
                outside[:] = inside
        if device.sanitizer is not None:
            self._observe(step, temporary, device.sanitizer)

    def _observe(
        self, step: CopyIn | CopyOut, temporary: DeviceTensor, sanitizer: Sanitizer
    ) -> None:
        """Report the memory that a copy wrote to the sanitizer."""
        if isinstance(step, CopyIn):
            sanitizer.written(temporary.address_bytes, temporary.size_bytes, temporary.name)
            return
        corner = int(self.addresses_bytes[step.iteration, step.tensor])
        for box in self.boxes_of(step):
            sanitizer.written_sticks(corner + box.sticks.offsets(1), temporary.name)

    def boxes_of(self, step: CopyIn | CopyOut) -> tuple[CopyBox, ...]:
        """The boxes that a copy moves, relative to the corners of the temporary and of the tile."""
        valid = valid_shape(self.plan, step.tensor, step.iteration)
        return copy_boxes(self.plan.tensors[step.tensor], valid)

    def _tensor(self, k: int) -> DeviceTensor:
        return self.launch.arguments[self.plan.tensors[k].expected.arg_index]


def _one_per_kernel(steps: Sequence[TileStep]) -> list[Compute]:
    """The first computation with every set of temporaries."""
    first: dict[object, Compute] = {}
    for step in steps:
        if isinstance(step, Compute):
            first.setdefault(step.temporaries, step)
    return list(first.values())


def _is_mapped(tensor: TiledTensor) -> bool:
    """True if the tensor differs from the one the kernel was compiled for."""
    return tensor.is_tiled or not tensor.map.is_identity


def temporaries_of(
    plan: TilePlan, steps: Iterable[TileStep], allocate: Callable[[int], int]
) -> Temporaries:
    """The temporaries of ``steps``, at the addresses that ``allocate(bytes)`` returns."""
    wanted = {use for step in steps if isinstance(step, Compute) for use in step.temporaries}
    temporaries: dict[tuple[int, TileBuffer], DeviceTensor] = {}
    for k, buffer in sorted(wanted):
        expected = plan.tensors[k].expected
        temporaries[k, buffer] = DeviceTensor(
            f"{buffer} of {expected.name}",
            allocate(expected.layout.device_bytes),
            expected.layout,
            expected.dtype_name,
            expected.shape,
            expected.strides,
        )
    return temporaries


def _check_overlap(launch: Launch, plan: TilePlan) -> None:
    """Check that outputs share memory with other tensors only tile for tile."""
    if not plan.is_tiled:
        return
    for one, other in combinations(range(len(plan.tensors)), 2):
        first, second = plan.tensors[one], plan.tensors[other]
        a = launch.arguments[first.expected.arg_index]
        b = launch.arguments[second.expected.arg_index]
        disjoint = (
            a.address_bytes + a.size_bytes <= b.address_bytes
            or b.address_bytes + b.size_bytes <= a.address_bytes
        )
        same = a.address_bytes == b.address_bytes and first.map == second.map
        same = same and bool((plan.offsets_bytes[:, one] == plan.offsets_bytes[:, other]).all())
        if not disjoint and not same and (first.is_written or second.is_written):
            raise LaunchError(
                "SPY862",
                f"{a.name} and {b.name} share memory, but not their tiles",
                expected="no shared memory, or every tile shared with the same tile of an input",
                found=f"{a.size_bytes} bytes at {a.address_bytes:#x}, {b.size_bytes} bytes at "
                f"{b.address_bytes:#x}",
            )


RunKernel = Callable[[Kernel, LaunchSignature, tuple[int, ...]], None]
"""Runs one pass of a kernel at addresses (bytes)."""


class TileSteps:
    """The steps of a tiled launch with their temporaries; they run in order.

    ``addresses``: int64 [step, address], addresses (bytes) that each step binds.
    """

    def __init__(self, tiled: TiledLaunch, temporaries: Temporaries) -> None:
        self._tiled = tiled
        self._temporaries = temporaries
        self._steps: Sequence[TileStep] = tuple(tiled.steps())
        self.addresses = np.array([self._addresses(step) for step in self._steps], np.int64)

    def __len__(self) -> int:
        return len(self._steps)

    def _addresses(self, step: TileStep) -> tuple[int, ...]:
        """Addresses that a step binds; for copies, those of the launch."""
        if isinstance(step, Compute):
            return self._tiled.launch_of(step, self._temporaries).addresses
        return self._tiled.launch.addresses

    def run(self, first: int, addresses: Int64Array, run_kernel: RunKernel) -> None:
        """Run the steps from ``first`` on, one per row of ``addresses`` [step, address]."""
        for number, row in enumerate(addresses.tolist(), first):
            step = self._steps[number]
            if isinstance(step, Compute):
                kernel = self._tiled.kernel_of(step)
                signature = kernel.signature_of(self._tiled.launch_of(step, self._temporaries))
                run_kernel(kernel, signature, tuple(row))
            else:
                self._tiled.run_copy(step, self._temporaries)
