"""Running a tile plan on a device, one step after another.

`TileSteps` prepares a launch and raises its errors before anything runs; the flex layer runs its
steps on a stream. A partial tile is copied to a temporary, as strided boxes of device bytes: whole
sticks, and the first bytes of the last stick along a partial stick dim.

A kernel compiled for a tile walks memory with the tile's pitches. An operand in an argument with an
address map gets the stored extents that give it the larger tensor's pitches; extents, cores, loops
and all operands in the pool and in scratchpads stay. Start addresses are mapped by the linker
(:mod:`spyre.hw.linking.binding`). Applies to symbolic and baked bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import STICK_BYTES
from spyre.errors import JsonLocation, LaunchError
from spyre.hw.access import core_boxes
from spyre.hw.device import Device
from spyre.hw.linking import TileMap, Walk
from spyre.hw.memory import DeviceTensor
from spyre.layout import AccessMap, Axis, Int64Array, SpyreTensorLayout
from spyre.lru_cache import LruCache
from spyre.mlir.operation import RESTICKIFY, Component, Indirection, Operation, Tensor, footprint
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.kernel import Kernel, Launch, LaunchSignature
from spyre.runtime.program import require_bundle
from spyre.runtime.tiling.device_dims import operand_uses, whole_steps
from spyre.runtime.tiling.kernel_dims import expected_tensors
from spyre.runtime.tiling.tile_plan import TiledTensor, TilePlan, TilingOptions, plan_tiles

if TYPE_CHECKING:
    from spyre.mlir.builder import BuiltBundle


# --- operations with the pitches of the tensors bound at launch ----------------------------------

_OperandLayout = tuple[dict[str, int], int]
"""Layout of an operand in a larger tensor: elements per dim, and the pitch (bytes) of the innermost
dim.
"""


def retarget(
    operations: Mapping[str, Operation], uses: Sequence[Walk[int]], maps: Mapping[int, TileMap]
) -> dict[str, Operation]:
    """``operations`` (by SDSC file) with the pitches of ``maps`` (by argument index).

    LaunchError SPY861 if an operand cannot take the pitches: it does not walk its argument's
    device dims, is looked up through an index, or one SDSC serves arguments of different layouts.
    """
    # Merged dims are less strict: an operand may run through dims that are joined in both memories.
    moved = {index: map_.merged for index, map_ in maps.items() if not map_.is_identity}
    wanted: dict[tuple[str, int], _OperandLayout | None] = {}
    for use in uses:
        if maps and use.owner is None and use.tensor.component is Component.HBM:
            raise _refuse(use, "its cores or iterations access several arguments")
        layout = None if use.owner not in moved else _operand_layout(use, moved[use.owner])
        key = use.execute.sdsc_filename, use.operand
        if wanted.setdefault(key, layout) != layout:
            raise _refuse(use, "one SDSC serves arguments of different layouts")
    changed = dict(operations)
    for (filename, operand), layout in wanted.items():
        if layout is not None:
            changed[filename] = _with_layout(changed[filename], operand, layout)
    return changed


def _refuse(use: Walk[int], message: str) -> LaunchError:
    argument = "" if use.owner is None else f" of argument {use.owner}"
    return LaunchError(
        "SPY861",
        f"{use.op.name}: {use.tensor.name}{argument} cannot be moved to a larger tensor: {message}",
        JsonLocation(use.op.file, use.tensor.json_path),
        expected="an operand that walks device dims of its argument",
        found=f"dims {list(use.tensor.dims)}",
    )


def _operand_layout(use: Walk[int], map_: TileMap) -> _OperandLayout:
    """Stored extents that give ``use`` the pitches of ``map_``."""
    if use.tensor.indirection is Indirection.VALUE:
        raise _refuse(use, "an index chooses its elements")
    if use.op.name == RESTICKIFY:
        _check_whole(use)
    _check_no_carry(use, map_)
    return _layout_for(use, _mapped_pitches(use, map_))


def _check_whole(use: Walk[int]) -> None:
    """Check that a restickify reads whole tensors: it drops elements beyond the end of its
    tensors, and the end is unknown within a larger tensor.
    """
    stored = footprint(use.op, use.tensor).stored
    short = [d for d in use.tensor.dims if use.tensor.holds(d) and stored[d] < use.op.extents[d]]
    if short:
        raise _refuse(use, f"{use.op.name} stops at the end of {short[0]}")


def _check_no_carry(use: Walk[int], map_: TileMap) -> None:
    """Check that the operand of every core stays within the steps of each device dim."""
    reach = np.zeros((len(use.op.cores), len(map_.extents)), np.int64)
    for core, box in enumerate(core_boxes(use.op, use.tensor)):
        if box is None:
            continue
        for axis in box.walk.axes:
            step = map_.coordinates(np.array(axis.pitches[0], np.int64))
            reach[core] += step * (axis.extent - 1)
        for dim, first in zip(box.dims, box.walk.first[1:], strict=True):
            if first < 0:
                raise _refuse(use, f"{dim} begins before a core's work slice")
    ends = map_.coordinates(use.offsets) + reach
    limits = np.array(map_.extents, np.int64)
    if (ends[..., 1:] >= limits[1:]).any():
        raise _refuse(use, "it runs through several device dims")


def _mapped_pitches(use: Walk[int], map_: TileMap) -> dict[str, int]:
    """New pitch (bytes) of every dim with several steps."""
    pitches = footprint(use.op, use.tensor).pitch_bytes
    moving = [
        dim
        for dim in use.tensor.dims
        if use.tensor.holds(dim) and whole_steps(use.op, use.tensor, dim) > 1
    ]
    return {dim: int(map_.apply(np.array(pitches[dim], np.int64))) for dim in moving}


def _layout_for(use: Walk[int], pitches: Mapping[str, int]) -> _OperandLayout:
    """Extents whose products are ``pitches``; dims of one step take any pitch.

    The pitch of the next dim determines the stored extent of a dim; the outermost keeps its own.
    """
    tensor, sticks = use.tensor, use.tensor.sticks
    dims = [dim for dim in tensor.dims if tensor.holds(dim)]
    first = pitch = pitches.get(dims[0], STICK_BYTES) if dims else STICK_BYTES
    stored: dict[str, int] = {}
    for k, dim in enumerate(dims):
        size, visited = sticks.get(dim, 1), whole_steps(use.op, tensor, dim)
        following = [pitches[d] for d in dims[k + 1 :] if d in pitches]
        steps = -(-footprint(use.op, tensor).stored[dim] // size) if dim in pitches else 1
        if following:
            steps, remainder = divmod(following[0], pitch)
            if remainder or steps < visited:
                raise _refuse(use, f"{dim} does not fit below {following[0]} bytes per step")
        stored[dim] = steps * size
        pitch *= steps
    return stored, first


def _with_layout(op: Operation, operand: int, layout: _OperandLayout) -> Operation:
    """``op`` with operand number ``operand`` in a larger tensor."""
    index, (stored, first_pitch) = op.tensors[operand].index, layout

    def changed(tensor: Tensor) -> Tensor:
        if tensor.index != index:
            return tensor
        sizes = {**tensor.device_dim_sizes, **stored}
        return replace(tensor, device_dim_sizes=sizes, first_pitch_bytes=first_pitch)

    return op.with_tensors(changed)


# --- kernels of a plan ---------------------------------------------------------------------------

MAX_PLANS = 64
"""Plans, and sets of retargeted operations, a kernel keeps."""


class Tiler:
    """A kernel with the analysis of its operands that tiling needs.

    ``values``: of runtime sizes and index parameters, which must be equal in all launches. For one
    thread at a time, like the kernel's device; any thread may read its plans. UnsupportedError
    SPY889 for a program that is not a bundle.
    """

    def __init__(
        self, kernel: Kernel, arguments: KernelArguments, values: Mapping[str, int] | None = None
    ) -> None:
        self.kernel = kernel
        bundle = require_bundle(kernel.bundle, "a launch over tensors of other shapes or layouts")
        self.uses = operand_uses(bundle, arguments.pool_bytes > 0, values)
        self.expected = expected_tensors(arguments, self.uses)
        self._plans: LruCache[object, TilePlan] = LruCache(MAX_PLANS)
        self._kernels: LruCache[object, Kernel] = LruCache(MAX_PLANS)

    def plan(self, launch: Launch, options: TilingOptions | None = None) -> TilePlan:
        """Tiles of ``launch``. LaunchError SPY363 for a missing argument, else as `plan_tiles`."""
        options = options if options is not None else TilingOptions()
        tensors = [self._bound(launch, expected.arg_index) for expected in self.expected]
        key = (options, *(replace(tensor, name="", address_bytes=0) for tensor in tensors))
        return self._plans.get_or_make(key, lambda: plan_tiles(self.expected, tensors, options))

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
        message = f"the kernel needs argument {arg_index}, and it was not given"
        expected = f"arguments {[e.arg_index for e in self.expected]}"
        found = f"arguments {sorted(launch.arguments)}"
        raise LaunchError("SPY363", message, expected=expected, found=found)


# --- steps ------------------------------------------------------------------------------------


TileBuffer = Literal["tile", "result"]
"""A temporary of one tensor, of the size of a tile. ``tile``: replaces a tile of the tensor; of an
accumulated output, it holds the sum so far. ``result``: the summand of one iteration.
"""


class Copy(msgspec.Struct, frozen=True):
    """The valid part of a tile ← its temporary, or, if ``is_input``, temporary ← zeros, then the
    valid part of the tile. ``tensor``: number in the plan.
    """

    iteration: int
    tensor: int
    is_input: bool


class Compute(msgspec.Struct, frozen=True):
    """Run the kernel; ``temporaries``: (tensor, buffer) where a temporary replaces a tile."""

    iteration: int
    temporaries: tuple[tuple[int, TileBuffer], ...] = ()


class Accumulate(msgspec.Struct, frozen=True):
    """``tile`` ← ``tile`` and ``result``, combined element by element, rounded to the format."""

    iteration: int
    tensor: int


TileStep = Copy | Compute | Accumulate
WHOLE_TILE = Compute(0)
"""The first tile, on no temporaries."""


def tile_steps(plan: TilePlan) -> Iterator[TileStep]:
    """The steps of all iterations, in order."""
    return chain.from_iterable(_iteration_steps(plan, k) for k in range(plan.iterations))


def _iteration_steps(plan: TilePlan, iteration: int) -> Iterator[TileStep]:
    padded = _padded(plan, iteration)
    is_sum = any(dim.is_reduction for dim in plan.dims)
    sums = {k for k, t in enumerate(plan.tensors) if is_sum and t.expected.is_output}
    first, last = _first_and_last(plan, iteration)
    for tensor in sorted(padded):
        if plan.tensors[tensor].expected.is_input:
            yield Copy(iteration, tensor, is_input=True)
    buffers: dict[int, TileBuffer] = dict.fromkeys(sorted(padded | sums), "tile")
    if not first:
        buffers |= dict.fromkeys(sums, "result")
    yield Compute(iteration, tuple(buffers.items()))
    for tensor in sorted(sums):
        if not first:
            yield Accumulate(iteration, tensor)
    for tensor in sorted(padded | sums):
        if plan.tensors[tensor].expected.is_output and (last or tensor not in sums):
            yield Copy(iteration, tensor, is_input=False)


def _padded(plan: TilePlan, iteration: int) -> set[int]:
    """Tensors whose tile is not whole in ``iteration``."""
    partial = {int(dim) for dim in np.flatnonzero(plan.partial[iteration])}
    return {
        k for k, tensor in enumerate(plan.tensors) if any(dim in partial for dim, _ in tensor.walks)
    }


def _first_and_last(plan: TilePlan, iteration: int) -> tuple[bool, bool]:
    """Whether the iteration begins, and whether it ends, the tiles that are reduced together."""
    reduced = [k for k, dim in enumerate(plan.dims) if dim.is_reduction]
    row = plan.indices[iteration, reduced]
    ends = np.array([plan.counts[k] - 1 for k in reduced], np.int64)
    return not row.any(), bool((row == ends).all())


RunKernel = Callable[[Kernel, LaunchSignature, tuple[int, ...]], None]
"""Runs one pass of a kernel at addresses (bytes)."""


class TileSteps:
    """The steps of a launch over larger tensors. The constructor raises all errors of the launch.

    For one thread at a time, like the kernel's device. ``addresses``: int64 [step, address], the
    addresses (bytes) that each step binds; set by `allocate`, before the first `run`.
    """

    addresses: Int64Array

    def __init__(self, tiler: Tiler, launch: Launch, plan: TilePlan) -> None:
        self.tiler, self.launch, self.plan = tiler, launch, plan
        self._temporaries: dict[tuple[int, TileBuffer], DeviceTensor] = {}
        _check_overlap(launch, plan)
        if not plan.needs_steps:
            self.kernel_of()
            return
        # Everything that can fail is done here, before anything is enqueued.
        for compute in {s.temporaries: s for s in self.steps if isinstance(s, Compute)}.values():
            self.kernel_of(compute)
        for step in self.steps:
            if isinstance(step, Copy):
                self._boxes_of(step)

    @cached_property
    def steps(self) -> tuple[TileStep, ...]:
        return tuple(tile_steps(self.plan))

    def __len__(self) -> int:
        return len(self.steps)

    def allocate(self, allocate: Callable[[int], int]) -> None:
        """Place the temporaries at the addresses that ``allocate(bytes)`` returns."""
        wanted = {use for s in self.steps if isinstance(s, Compute) for use in s.temporaries}
        for k, buffer in sorted(wanted):
            expected = self.plan.tensors[k].expected
            self._temporaries[k, buffer] = DeviceTensor(
                f"{buffer} of {expected.name}",
                allocate(expected.layout.device_bytes),
                expected.layout,
                expected.dtype_name,
                expected.shape,
                expected.strides,
            )
        # A copy binds the addresses of the launch.
        bound = [self.launch_of(s) if isinstance(s, Compute) else self.launch for s in self.steps]
        self.addresses = np.array([launch.addresses for launch in bound], np.int64)

    @cached_property
    def corners_bytes(self) -> Int64Array:
        """Device address of every tile's corner, [iteration, tensor of the plan]."""
        bases = [self._tensor(k).address_bytes for k in range(len(self.plan.tensors))]
        return self.plan.offsets_bytes + np.array(bases, np.int64)

    def kernel_of(self, step: Compute = WHOLE_TILE) -> Kernel:
        """The kernel retargeted to the tensors that ``step`` binds."""
        inside = {k for k, _ in step.temporaries}
        return self.tiler.retargeted(
            {
                tensor.expected.arg_index: tensor.map.merged
                for k, tensor in enumerate(self.plan.tensors)
                if k not in inside and (tensor.is_tiled or not tensor.map.is_identity)
            }
        )

    def launch_of(self, step: Compute = WHOLE_TILE) -> Launch:
        """The inputs of `kernel_of` for ``step``: corners of tiles, and temporaries."""
        inside = dict(step.temporaries)
        corners = self.corners_bytes[step.iteration].tolist()
        arguments = dict(self.launch.arguments)
        for k, tensor in enumerate(self.plan.tensors):
            index = tensor.expected.arg_index
            if k in inside:
                arguments[index] = self._temporaries[k, inside[k]]
            else:
                arguments[index] = replace(arguments[index], address_bytes=corners[k])
        return replace(self.launch, arguments=arguments)

    def run(self, first: int, addresses: Int64Array, run_kernel: RunKernel) -> None:
        """Run the steps from ``first`` on, one per row of ``addresses`` [step, address]."""
        for number, row in enumerate(addresses.tolist(), first):
            match self.steps[number]:
                case Compute() as step:
                    kernel = self.kernel_of(step)
                    run_kernel(kernel, kernel.signature_of(self.launch_of(step)), tuple(row))
                case Accumulate() as step:
                    total = self._temporaries[step.tensor, "tile"]
                    result = self._temporaries[step.tensor, "result"]
                    device, operation = self.tiler.kernel.device, self.plan.accumulation
                    adder = _accumulator(device, operation, total.layout)
                    adder.launch(Launch({0: total, 1: result}))
                case Copy() as step:
                    self._copy(step)

    def _copy(self, step: Copy) -> None:
        device, temporary = self.tiler.kernel.device, self._temporaries[step.tensor, "tile"]
        corner = int(self.corners_bytes[step.iteration, step.tensor])
        offset = int(self.plan.offsets_bytes[step.iteration, step.tensor])
        tile = device.bytes_of(temporary)
        tensor = device.bytes_of(self._tensor(step.tensor))[offset:]
        boxes, sanitizer = self._boxes_of(step), device.sanitizer
        if step.is_input:
            tile[:] = 0  # neutral in sums; other results of the padding are not copied out
            for box in boxes:
                box.view(tile, 0)[:] = box.view(tensor, 1)
            if sanitizer is not None:
                sanitizer.written(temporary.address_bytes, temporary.size_bytes, temporary.name)
            return
        for box in boxes:
            box.view(tensor, 1)[:] = box.view(tile, 0)
            if sanitizer is not None:
                sanitizer.written_sticks(corner + box.sticks.offsets(1), temporary.name)

    def _boxes_of(self, step: Copy) -> tuple[CopyBox, ...]:
        """The boxes that a copy moves, relative to the corners of the temporary and of the tile."""
        valid = _valid_shape(self.plan, step.tensor, step.iteration)
        return _copy_boxes(self.plan.tensors[step.tensor], valid)

    def _tensor(self, k: int) -> DeviceTensor:
        return self.launch.arguments[self.plan.tensors[k].expected.arg_index]


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
        if not disjoint and not same and (first.expected.is_output or second.expected.is_output):
            raise LaunchError(
                "SPY862",
                f"{a.name} and {b.name} share memory, but not their tiles",
                expected="no shared memory, or every tile shared with the same tile of an input",
                found=f"{a.size_bytes} bytes at {a.address_bytes:#x}, {b.size_bytes} bytes at "
                f"{b.address_bytes:#x}",
            )


# --- copies of partial tiles ------------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]


class CopyBox(msgspec.Struct, frozen=True):
    """``nbytes`` from the start of every stick of a walk.

    ``sticks``: byte offsets from the corner of the temporary (space 0) and of the tile in the
    larger tensor (space 1).
    """

    sticks: AccessMap
    nbytes: int

    def view(self, memory: Bytes, space: int) -> Bytes:
        """The box in the memory of a space, which begins at the corner."""
        axes = self.sticks.axes
        assert self.sticks.highest(space) + self.nbytes <= memory.size, "a copy leaves its memory"
        return np.lib.stride_tricks.as_strided(
            memory[self.sticks.first[space] :],
            (*[axis.extent for axis in axes], self.nbytes),
            (*[axis.pitches[space] for axis in axes], 1),
        )


def _valid_shape(plan: TilePlan, number: int, iteration: int) -> tuple[int, ...]:
    """Host extents of the existing part of the iteration's tile of tensor ``number``."""
    tensor = plan.tensors[number]
    shape = list(tensor.expected.shape)
    for dim, host_dim in tensor.walks:
        if plan.partial[iteration, dim]:
            shape[host_dim] = plan.dims[dim].valid_last
    return tuple(shape)


def _copy_boxes(tensor: TiledTensor, valid: tuple[int, ...]) -> tuple[CopyBox, ...]:
    """The boxes to copy of a tile of which ``valid`` host extents exist."""
    device = tensor.expected.device_dims
    steps = list(tensor.map.extents)
    partial_stick: tuple[int, int] | None = None
    for host_dim, (size, tile) in enumerate(zip(valid, tensor.expected.shape, strict=True)):
        if size == tile:
            continue
        _check_simple(tensor, host_dim)
        for k in device.walked_by(host_dim):
            steps[k] = -(-size // device.multipliers[k])
            lanes = size % device.multipliers[k]
            if host_dim == device.stick_host_dim and lanes:
                partial_stick = k, lanes
    boxes = _boxes(tensor, steps, partial_stick)
    return tuple(box for box in boxes if box.sticks.count)


def _check_simple(tensor: TiledTensor, host_dim: int) -> None:
    device, layout = tensor.expected.device_dims, tensor.expected.layout
    arranged = layout.element_arrangement != "STANDARD" and host_dim == device.stick_host_dim
    if len(device.walked_by(host_dim)) > 1 or arranged:
        raise LaunchError(
            "SPY855",
            f"the layout of {tensor.actual.name} cannot express part of a tile: dim {host_dim} "
            "is split over several device dims",
            expected="one device dim above the stick, and a standard element arrangement",
            found=str(layout),
        )


def _boxes(
    tensor: TiledTensor, steps: list[int], partial_stick: tuple[int, int] | None
) -> list[CopyBox]:
    """One box of whole sticks, and one of partial sticks if ``partial_stick`` is (dim, lanes)."""
    if partial_stick is None:
        return [CopyBox(_sticks(tensor, steps), STICK_BYTES)]
    k, lanes = partial_stick
    last = steps[k] - 1
    front, end = list(steps), list(steps)
    front[k], end[k] = last, 1
    bits = tensor.expected.layout.data_format.bits
    return [
        CopyBox(_sticks(tensor, front), STICK_BYTES),
        CopyBox(_sticks(tensor, end, k, last), lanes * bits // 8),
    ]


def _sticks(tensor: TiledTensor, steps: list[int], along: int = 0, first: int = 0) -> AccessMap:
    """``steps`` of every device dim, from step ``first`` of dim ``along`` on, in both memories."""
    strides = zip(tensor.map.tile_strides_bytes, tensor.map.strides_bytes, strict=True)
    axes = tuple(map(Axis, steps, strides))
    start = tuple(first * pitch for pitch in axes[along].pitches) if axes else (0, 0)
    return AccessMap(start, axes)


# --- accumulation -----------------------------------------------------------------------------


class _Accumulators(dict[tuple[str, str, int], Kernel]):
    """By operation, format and sticks."""


def _accumulator(device: Device, operation: str, layout: SpyreTensorLayout) -> Kernel:
    """argument 0 ← argument 0 ``operation`` argument 1, both dense in ``layout``.

    Kept with the device; call it from the device's thread.
    """
    kernels = device.attached(_Accumulators, _Accumulators)
    key = operation, layout.device_dtype, layout.num_sticks
    if key not in kernels:
        kernels[key] = Kernel(_bundle(*key), device)
    return kernels[key]


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
