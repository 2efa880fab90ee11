"""A kernel's operations with the pitches of the tensors bound at launch.

A kernel compiled for a tile walks memory with the tile's pitches. An operand in an argument with an
address map gets the stored extents that give it the larger tensor's pitches; extents, cores, loops
and all operands in the pool and in scratchpads stay. Start addresses are mapped by the linker
(:mod:`spyre.hw.linking.binding`). Applies to symbolic and baked bundles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from spyre.dtypes import STICK_BYTES
from spyre.errors import JsonLocation, LaunchError
from spyre.hw.access import core_boxes
from spyre.hw.linking import TileMap, Walk
from spyre.mlir.operation import (
    RESTICKIFY,
    Component,
    Indirection,
    Operation,
    Tensor,
    footprint,
)
from spyre.runtime.tiling.device_dims import whole_steps

_OperandLayout = tuple[dict[str, int], int]
"""Layout of an operand in a larger tensor: elements per dim, and the pitch (bytes) of the innermost
dim.
"""


def retarget(
    operations: Mapping[str, Operation],
    uses: Sequence[Walk[int]],
    maps: Mapping[int, TileMap],
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

    return replace(
        op,
        inputs=tuple(map(changed, op.inputs)),
        index_tensors=tuple(map(changed, op.index_tensors)),
        outputs=tuple(map(changed, op.outputs)),
    )
