"""Device dims of tensors, and the operands that walk them.

Each device dim of a tensor walks a host dim, and so do the dims of operands in the tensor. They
decide which dims of different arguments are the same, and how operands are retargeted to larger
tensors.

A stride of -1 leaves the host dim of a device dim open. Layouts created from a dim order have that
dim at a known position (runtime reference §1.1): the first order that fits fills those gaps, the
default order before others. It is a guess; :mod:`.tile_plan` compares it with the bound tensor's
layout, in which the relevant dims are longer than 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import permutations

import msgspec
import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.hw.linking import Walk
from spyre.hw.memory import DeviceTensor
from spyre.hw.spec import REGIONS
from spyre.layout import AccessMap, Axis, Int64Array, SpyreTensorLayout, exact_geometry
from spyre.mlir.operation import Operation, Tensor, footprint, indexed_dims, unsplit_input_extent
from spyre.runtime.arguments import trace_operands
from spyre.runtime.program import POOL, LoweredBundle, owner_of

_MAX_RANK = 6
FIRST_SCRATCH = POOL - 1
"""Memory k of device_mem_allocate is owner ``FIRST_SCRATCH - k``."""


class DeviceDims(msgspec.Struct, frozen=True, dict=True):
    """Device dims of a tensor, outermost first, the stick last.

    ``host_dims``: the host dim each walks, -1 where unknown or none. ``multipliers``: host
    coordinates per step. ``strides_bytes``: of the dims above the stick.
    """

    host_dims: tuple[int, ...]
    multipliers: tuple[int, ...]
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]

    @property
    def stick_host_dim(self) -> int:
        """Host dim along the stick, or -1: one value per stick."""
        return self.host_dims[-1]

    @cached_property
    def sticks(self) -> AccessMap:
        """The sticks in bytes (space 0) and coordinates of whichever host dim a step walks (1)."""
        pairs = zip(self.strides_bytes, self.multipliers[:-1], strict=True)
        return AccessMap((0, 0), tuple(map(Axis, self.extents[:-1], pairs)))

    def walked_by(self, host_dim: int) -> list[int]:
        """Device dims above the stick that walk ``host_dim``, by falling multiplier."""
        dims = [k for k, walked in enumerate(self.host_dims[:-1]) if walked == host_dim]
        return sorted(dims, key=lambda k: -self.multipliers[k])

    def offsets_bytes(self, host_dim: int, coordinates: Int64Array) -> Int64Array:
        """Byte offset of the sticks at ``coordinates`` along ``host_dim``."""
        axes = tuple(self.sticks.axes[k] for k in self.walked_by(host_dim))
        # Nothing is clipped along the outermost dim: that a tile fits is checked elsewhere.
        steps, _ = AccessMap((0, 0), axes).steps_of(np.asarray(coordinates), 1, beyond=True)
        return steps @ np.array([axis.pitches[0] for axis in axes], np.int64)

    def coordinates(self, host_dim: int, offsets_bytes: Int64Array) -> Int64Array:
        """Element of ``host_dim`` at byte offsets: the inverse of `offsets_bytes`."""
        steps, in_stick = self.sticks.steps_of(offsets_bytes, beyond=True)
        total = np.zeros(offsets_bytes.shape, np.int64)
        for k in self.walked_by(host_dim):
            total += steps[..., k] * self.multipliers[k]
        if host_dim == self.stick_host_dim:
            total += in_stick * self.extents[-1] // STICK_BYTES
        return total


@lru_cache(maxsize=1024)
def device_dims(
    layout: SpyreTensorLayout, shape: tuple[int, ...], strides: tuple[int, ...]
) -> DeviceDims:
    """Device dims of a tensor of host ``shape``/``strides`` (elements) in ``layout``.

    LaunchError SPY322 and SPY810 when the layout does not fit, as in `exact_geometry`.
    """
    geometry = exact_geometry(layout, shape, strides)
    host_dims, multipliers = list(geometry.host_dims), list(geometry.multipliers)
    order = next(
        (o for o in _orders(layout, shape) if _fits(o, host_dims, layout, shape)), host_dims
    )
    # Dims known from the geometry are kept; the order only fills the gaps.
    for k, host_dim in enumerate(order):
        if host_dims[k] >= 0 or host_dim < 0:
            continue
        host_dims[k] = host_dim
        counts_sticks = k < len(host_dims) - 1 and host_dim == order[-1]
        multipliers[k] = layout.elements_per_stick if counts_sticks else 1
    bits = layout.data_format.bits
    steps = tuple(stride * bits // 8 for stride in layout.device_strides[:-1])
    return DeviceDims(tuple(host_dims), tuple(multipliers), layout.device_size, steps)


def dims_of(tensor: DeviceTensor) -> DeviceDims:
    """Device dims of a tensor bound at launch."""
    return device_dims(tensor.layout, tensor.sizes, tensor.strides)


def _orders(layout: SpyreTensorLayout, shape: tuple[int, ...]) -> Iterator[Sequence[int]]:
    """Host dim of every device dim in layouts of this many dims, the default order first."""
    rank = len(shape)
    if len(layout.device_size) not in (rank + 1, rank + 2) or rank > _MAX_RANK:
        return
    sparse = (-1,) if len(layout.device_size) == rank + 2 else ()
    for permuted in permutations(range(rank)):
        order = (*permuted, *sparse)
        if order:
            yield (*order[1:], order[0], order[-1])


def _fits(
    order: Sequence[int], known: Sequence[int], layout: SpyreTensorLayout, shape: tuple[int, ...]
) -> bool:
    """True if a layout of ``order`` could walk the host dims ``known`` (-1: not known)."""
    last = len(known) - 1
    for k, (guess, host_dim) in enumerate(zip(order, known, strict=True)):
        short = guess < 0 or shape[guess] <= 1 or (k < last and layout.device_size[k] <= 1)
        if guess != host_dim and not (host_dim < 0 and short):
            return False
    return True


# --- operands ---------------------------------------------------------------------------------


def operand_uses(
    bundle: LoweredBundle, has_pool: bool, values: Mapping[str, int] | None = None
) -> tuple[Walk[int], ...]:
    """All operands of all execute statements, in textual order, by argument index, POOL or scratch.

    ``has_pool``: segment 0 of a bundle with baked addresses is the pool. ``values``: of runtime
    sizes and index parameters. LaunchErrors as of `trace_operands`.
    """
    program = bundle.program
    names = (owner_of(parameter.name) for parameter in program.parameters)
    indices = {index for index in names if index is not None} or range(POOL, REGIONS)
    memories = {index: index for index in indices}
    scratch = [FIRST_SCRATCH - k for k in range(len(program.allocations))]
    traced = trace_operands(bundle, memories, values or {}, scratch, has_pool)
    return tuple(walk for execute in traced for walk in execute.walks)


WalkedDim = tuple[tuple[int, ...], str]
"""Host dims that a dim of an operand walks (several: it runs through all of them), and why it is no
plain walk of them, "" if it is.
"""


def walked_dims(use: Walk[int], device: DeviceDims) -> dict[str, WalkedDim]:
    """All dims of the operand that its argument has; ``device``: of that argument."""
    op, tensor = use.op, use.tensor
    pitches = footprint(op, tensor).pitch_bytes
    dims = [
        d
        for d in dict.fromkeys(tensor.dims)
        if tensor.holds(d) and d not in indexed_dims(op, tensor)
    ]
    walked: dict[str, WalkedDim] = {}
    for dim in dims:
        steps = whole_steps(op, tensor, dim)
        if steps > 1:
            walked[dim] = _by_pitch(pitches[dim], steps, device)
        elif dim in tensor.stick_dims and device.stick_host_dim >= 0:
            walked[dim] = (device.stick_host_dim,), ""
    places = _by_place(use, device, [d for d in dims if d not in walked], walked)
    walked |= {dim: ((host,), "") for dim, host in places.items()}
    return {dim: walked[dim] for dim in dims if dim in walked}


def whole_steps(op: Operation, tensor: Tensor, dim: str) -> int:
    """Sticks of a stick dim, or elements, that all cores visit of one tensor along ``dim``.

    Under a window: of the stored input, all of it.
    """
    extent = op.tensor_extent(tensor, dim) if tensor.is_local else op.extents[dim]
    if (window := op.window_of(tensor, dim)) is not None:
        extent = unsplit_input_extent(tensor, dim, window)
    return -(-extent // tensor.sticks.get(dim, 1))


def _by_pitch(pitch_bytes: int, steps: int, device: DeviceDims) -> WalkedDim:
    """The device dims whose coordinates change over ``steps``."""
    way = np.array([pitch_bytes, (steps - 1) * pitch_bytes], np.int64)
    ends, _ = device.sticks.steps_of(way, beyond=True)
    changed = np.flatnonzero((ends != 0).any(axis=0))
    lowest = int(changed.max()) if changed.size else len(device.strides_bytes) - 1
    several = int(changed.min()) != lowest if changed.size else False
    hosts = tuple(dict.fromkeys(device.host_dims[int(k)] for k in changed))
    if -1 in hosts or not changed.size:
        return tuple(h for h in hosts if h >= 0), "walks memory of no host dim"
    if pitch_bytes != device.strides_bytes[lowest]:
        return hosts, "skips elements along it"
    return hosts, "runs through several dims" if several and len(hosts) > 1 else ""


def _by_place(
    use: Walk[int], device: DeviceDims, single: list[str], known: Mapping[str, WalkedDim]
) -> dict[str, int]:
    """Host dims of dims of one step: those of the device dims left over, in order of memory."""
    taken = {host for hosts, _ in known.values() for host in hosts}
    above = range(len(device.extents) - 2, -1, -1)
    left = [
        device.host_dims[k]
        for k in above
        if device.host_dims[k] >= 0
        and device.host_dims[k] not in taken
        and device.host_dims[k] != device.stick_host_dim
    ]
    if len(left) == len(single):
        return dict(zip(single, left, strict=True))
    if len(use.tensor.dims) != len(device.extents) - 1:
        return {}
    places = {dim: device.host_dims[k] for dim, k in zip(use.tensor.dims, above, strict=True)}
    return {dim: places[dim] for dim in single if places[dim] in left}
