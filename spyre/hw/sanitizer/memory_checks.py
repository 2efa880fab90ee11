"""Bounds against the argument an address names, and tiles that contradict its layout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from spyre.errors import Severity
from spyre.hw.binding import Allocation
from spyre.hw.boxes import Box, global_coordinate, is_indirect
from spyre.hw.nest import Int64Array
from spyre.hw.sanitizer.checks import Check
from spyre.hw.sanitizer.findings import SanitizerFinding, count_of
from spyre.hw.sanitizer.owners import Owners, find_owners
from spyre.hw.sanitizer.site import Site
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.footprint import footprint, stick_elements
from spyre.mlir.operation import Component, Operation, Tensor

BoolArray = npt.NDArray[np.bool_]
POOL_NAME = "pool"
_CHUNK = 1 << 22
"""Stick addresses compared at once."""


def check_memory(site: Site) -> Iterator[SanitizerFinding]:
    """Findings of one execute statement."""
    for operand, tensor in enumerate(site.op.tensors):
        if tensor.component is not Component.HBM:
            continue
        owners = find_owners(site, operand)
        yield from _check_bounds(site, operand, owners)
        yield from _check_layout(site, operand, owners)


def _check_bounds(site: Site, operand: int, owners: Owners) -> Iterator[SanitizerFinding]:
    starts = site.starts[:, operand, :]
    boxes = site.boxes[operand]
    firsts = np.array([box.first_bytes if box else 0 for box in boxes], np.int64)
    ends = np.array([box.end_bytes if box else 0 for box in boxes], np.int64)
    outside = (starts + firsts < owners.lows) | (starts + ends > owners.highs)
    outside &= np.array([box is not None for box in boxes])
    if not outside.any():
        return
    instance, position = (int(i) for i in np.argwhere(outside)[0])
    owner, box = owners.allocations[position], boxes[position]
    assert owner is not None
    assert box is not None
    start = int(starts[instance, position])
    offset = first_outside(box, start, owner)
    sticks = _count_outside(starts, boxes, owners, outside)
    is_pool = owner.name == POOL_NAME
    name = f"the {POOL_NAME}" if is_pool else owner.name
    tensor = site.op.tensors[operand]
    yield site.finding(
        Check.MEMORY,
        "SPY703" if is_pool else "SPY701",
        Severity.ERROR,
        f"{site.op.name}: {tensor.name} leaves {name}, which its address names",
        operand,
        instance=instance,
        position=position,
        address=start + offset,
        coordinate=global_coordinate(site.op, tensor, box, position, offset),
        expected=f"addresses of {name}, {owner.address_bytes:#x} to {owner.end_bytes:#x}",
        found=f"{count_of(sticks, 'stick')} outside in "
        f"{count_of(int(outside.any(axis=1).sum()), 'execution')}"
        f"{_neighbour(site, start + offset)}",
        sticks=sticks,
        executions=int(outside.any(axis=1).sum()),
    )


def first_outside(box: Box, start: int, owner: Allocation) -> int:
    """Offset in bytes of the first stick of a core's box that is not wholly in ``owner``."""
    offsets = box.offsets()
    at = start + offsets
    outside = (at < owner.address_bytes) | (at + STICK_BYTES > owner.end_bytes)
    return int(offsets[np.argmax(outside)])


def _neighbour(site: Site, address: int) -> str:
    inside = [
        a.name for a in site.linked.binding.allocations if a.address_bytes <= address < a.end_bytes
    ]
    return f", in {inside[0]}" if inside else ""


def _count_outside(
    starts: Int64Array, boxes: tuple[Box | None, ...], owners: Owners, outside: BoolArray
) -> int:
    """Sticks outside over all instances and cores, boxes of equal shape together."""
    total = 0
    for box in {id(b): b for b in boxes if b is not None}.values():
        mine = np.array([b is box for b in boxes])
        instances, cores = np.nonzero(outside & mine)
        offsets = box.offsets()
        step = max(1, _CHUNK // len(offsets))
        for first in range(0, len(instances), step):
            rows, columns = instances[first : first + step], cores[first : first + step]
            at = starts[rows, columns][:, None] + offsets
            low, high = owners.lows[columns][:, None], owners.highs[columns][:, None]
            total += int(((at < low) | (at + STICK_BYTES > high)).sum())
    return total


def _check_layout(site: Site, operand: int, owners: Owners) -> Iterator[SanitizerFinding]:
    """A step of the tensor that is no step of the argument's layout."""
    owner = owners.allocations[0]
    tensor = site.op.tensors[operand]
    if owner is None or not owner.device_dims or is_indirect(tensor):
        return
    pitches = footprint(site.op, tensor).pitch_bytes
    wrong = [dim for dim in tensor.dims if _contradicts(site.op, tensor, dim, pitches[dim], owner)]
    if not wrong:
        return
    yield site.finding(
        Check.MEMORY,
        "SPY702",
        Severity.WARNING,
        f"{site.op.name}: the stored extents of {tensor.name} contradict the layout of "
        f"{owner.name}",
        operand,
        expected=_layout_steps(owner),
        found=", ".join(f"{dim} in steps of {pitches[dim]} bytes" for dim in wrong),
        hint="a tile of a larger tensor needs a gap that gives it the larger one's pitches",
    )


def _contradicts(op: Operation, tensor: Tensor, dim: str, pitch: int, owner: Allocation) -> bool:
    """True if the layout has no such step: the next stick is a device dim of its own, any other
    dim may also be the outer part of one.
    """
    stick = stick_elements(tensor).get(dim, 1)
    if not tensor.holds(dim) or op.extents[dim] <= stick:
        return False
    if dim in tensor.stick_dims:
        return all(pitch != stride for _, stride in owner.device_dims)
    return all(
        pitch % stride != 0 or pitch >= stride * max(extent, 2)
        for extent, stride in owner.device_dims
    )


def _layout_steps(owner: Allocation) -> str:
    steps = sorted({stride for extent, stride in owner.device_dims if extent > 1})
    return f"steps of {' or '.join(str(stride) for stride in steps)} bytes"
