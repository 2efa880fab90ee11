"""Checks of every operand of every execution before anything runs: alignment, LX, allocations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spyre.errors import BundleError, DeviceFault, DeviceLocation, JsonLocation
from spyre.hw.access import Box, core_boxes, global_coordinate
from spyre.hw.linking.binding import Allocation, AllocationTable
from spyre.hw.ops import Category, Family
from spyre.hw.plans import CorePlan
from spyre.hw.spec import CORES, LX_BASE, LX_BYTES, STICK_BYTES
from spyre.layout import Int64Array
from spyre.mlir.operation import Component, Operation, footprint, literal_addresses, unbound_symbols
from spyre.mlir.program import Execute, LinkableProgram


def check_bound(op: Operation, execute: Execute) -> None:
    """BundleError SPY275, as of the checker, for programs that were not checked."""
    for fault in unbound_symbols(op, execute.sdsc_filename, execute.symbol_ids):
        raise fault.error(BundleError, execute.location)


def check_literals(op: Operation, execute: Execute, program: LinkableProgram) -> None:
    """BundleError SPY298, as of the checker, for programs that were not checked."""
    if any(p.kind == "input_arg" and not p.is_size for p in program.parameters):
        for fault in literal_addresses(op, execute.sdsc_filename):
            raise fault.error(BundleError, JsonLocation(op.file, fault.place.json_path))


Locate = Callable[[int, int, int | None, int], DeviceLocation]
"""The location of an address in messages: of a member of the instances, operand, core, address."""


def operand_location(
    op: Operation,
    execute: Execute,
    loops: Int64Array,
    instances: Int64Array,
    member: int,
    operand: int,
    core: int | None,
    address: int,
) -> DeviceLocation:
    """The location of an address of ``operand`` in a member of ``instances``.

    ``loops``: loop indices, [instance, depth]. A `Locate` once the first four are bound.
    """
    return DeviceLocation(
        op.file,
        execute.index,
        core,
        op.tensors[operand].name,
        address,
        tuple(loops[instances[member]].tolist()),
        execute.location,
    )


def check_alignment(op: Operation, locate: Locate, starts: Int64Array) -> None:
    """DeviceFault SPY413 unless ``starts`` [member, operand, core] are multiples of an element."""
    words = np.array([max(tensor.word_length_bytes, 1) for tensor in op.tensors], np.int64)
    bad = starts % words[:, None] != 0
    if not bad.any():
        return
    member, operand, core = (int(i) for i in np.argwhere(bad)[0])
    address = int(starts[member, operand, core])
    raise DeviceFault(
        "SPY413",
        f"{op.name}: the address of an element is not a multiple of its size",
        locate(member, operand, op.cores[core], address),
        expected=f"a multiple of {words[operand]} bytes",
        found=f"{address:#x}",
    )


def check_lx(locate: Locate, op: Operation, starts: Int64Array) -> None:
    """DeviceFault SPY410 if a tensor leaves its core's scratchpad; a view may be in another's.

    ``starts``: [member, operand, core] of ``op``, with its tensors' own work slices.
    """
    cores = np.array(op.cores, np.int64) * LX_BYTES
    for k, tensor in enumerate(op.tensors):
        if tensor.component is not Component.LX:
            continue
        span, offsets = footprint(op, tensor).span_bytes, starts[:, k] - LX_BASE
        is_elsewhere = (offsets < 0) | (offsets >= CORES * LX_BYTES)
        offsets = offsets % LX_BYTES if tensor.pitches else offsets - cores
        outside = is_elsewhere | (offsets < 0) | (offsets + span > LX_BYTES)
        if outside.any():
            member, i = (int(n) for n in np.argwhere(outside)[0])
            offset = int(offsets[member, i])
            raise DeviceFault(
                "SPY410",
                f"{op.name} leaves the scratchpad of its core",
                locate(member, k, op.cores[i], offset),
                expected=f"bytes 0 to {LX_BYTES}",
                found=f"bytes {offset} to {offset + span}",
            )


def allows_overread(plan: CorePlan) -> bool:
    """True if the plan's kernel takes the ends of arguments (`plan_table.END`) and stops there.

    torch-spyre's conversions to and from fp8 read pairs of sticks; the second stick may be behind
    the end of the argument. The card allows it, and the results of those lanes are not used.
    """
    is_integer = plan.spec.category is Category.INTEGER
    return plan.spec.family is Family.REQUANTIZE and not is_integer


def check_hbm(
    plan: CorePlan,
    locate: Locate,
    starts: Int64Array,
    allocations: Sequence[Allocation],
    memory: AllocationTable,
) -> Int64Array:
    """Index of the allocation that contains each operand, [member, operand, core]; -1 for LX.

    ``starts``: [member, operand, core]; ``memory``: of ``allocations``. The cores' allocations
    differ only if each core has a separate tensor. Operations that allow an overread may pass the
    end of the allocation. DeviceFault SPY411 for an operand in no allocation.
    """
    bounded = allows_overread(plan)
    owners = np.full(starts.shape, -1, np.int64)
    for k, tensor in enumerate(plan.op.tensors):
        if tensor.component is not Component.HBM:
            continue
        if tensor.per_core_in_hbm:
            low = starts[:, k, :]
            high = low + plan.accesses[k].span_bytes
        else:
            low = starts[:, k, :1] + plan.low_bytes[k]
            high = starts[:, k, :1] + plan.high_bytes[k]
        cut = bounded and not tensor.per_core_in_hbm
        holders = memory.holders(low, low + STICK_BYTES if cut else high)
        if (holders < 0).any():
            member, core = (int(i) for i in np.argwhere(holders < 0)[0])
            extent = int(low[member, core]), int(high[member, core])
            _raise_out_of_bounds(plan.op, locate, member, k, starts[member, k], extent, allocations)
        owners[:, k] = holders
    return owners


def _raise_out_of_bounds(
    op: Operation,
    locate: Locate,
    member: int,
    operand: int,
    starts: Int64Array,
    extent: tuple[int, int],
    allocations: Sequence[Allocation],
) -> None:
    """``starts``: of every core; ``extent``: range that all cores access, end excluded; bytes.

    For tensors of single cores in HBM, ``extent`` is the range of one core.
    """
    low, high = extent
    alone = op.tensors[operand].per_core_in_hbm
    near = [a for a in allocations if a.address_bytes <= low < a.end_bytes]
    expected = "one of: " + ", ".join(
        f"{a.name} {a.address_bytes:#x}..{a.end_bytes:#x}" for a in (near or allocations)[:8]
    )
    memory = allocations if alone else near or allocations
    position, address, coordinate = _first_core_outside(op, operand, starts, memory)
    cores = "of one core" if alone else "over all cores"
    raise DeviceFault(
        "SPY411",
        f"{op.name} touches memory outside of its arguments",
        locate(member, operand, op.cores[position], address),
        expected=expected if allocations else "no device memory at all",
        found=f"bytes {low:#x}..{high:#x} ({high - low} bytes) {cores}{coordinate}",
    )


def _first_core_outside(
    op: Operation, operand: int, starts: Int64Array, allocations: Sequence[Allocation]
) -> tuple[int, int, str]:
    """Position of the first core that leaves ``allocations``, address and coordinates of the stick.

    The first core's start if each core by itself stays inside.
    """
    tensor = op.tensors[operand]
    for position, box in enumerate(core_boxes(op, tensor)):
        start = int(starts[position])
        offset = None if box is None else first_outside(box, start, allocations)
        if box is not None and offset is not None:
            coordinate = global_coordinate(op, tensor, box, position, offset)
            where = ", ".join(f"{dim} {value}" for dim, value in coordinate)
            return position, start + offset, f"; first outside at {where}"
    return 0, int(starts[0]), ""


def first_outside(box: Box, start: int, allocations: Sequence[Allocation]) -> int | None:
    """Offset in bytes of the first stick of a core's box that is not wholly in an allocation.

    None if all are. ``start``: address of the core's start.
    """
    offsets = box.walk.offsets()
    sticks = start + offsets
    inside = np.zeros(sticks.shape, np.bool_)
    for a in allocations:
        inside |= (sticks >= a.address_bytes) & (sticks + box.unit_bytes <= a.end_bytes)
    return None if inside.all() else int(offsets[np.argmin(inside)])
