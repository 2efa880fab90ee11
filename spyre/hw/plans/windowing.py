"""Planner of pooling and depthwise convolution, and the windows it shares with convolutions.

Rule (operations reference §7): stored coordinate = position · stride + place · dilation, less the
front padding where memory does not hold it; coordinates outside of the stored extent are padding.
Positions with equal places form a *region*; each region is a table, whose offsets are the sum of a
term per position and one per place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import numpy as np

from spyre.errors import JsonLocation, SdscError
from spyre.hw import plan_table as tb
from spyre.hw.plans.context import (
    PlanContext,
    RowWriter,
    check_covered,
    float_word,
    refuse_chunks,
    whole_steps,
)
from spyre.hw.plans.offset_tables import (
    MOST_STEPS,
    OffsetSpace,
    attach,
    combine,
    coordinate_offsets,
    spaces,
)
from spyre.hw.plans.vector_units import check_sticks
from spyre.layout import Int64Array
from spyre.mlir.operation import Padding, Window, implied_front, unsplit_input_extent

_WINDOWS = "$.dscs_[0].N_.paddingSizes_"
_SLICES = "$.numWkSlicesPerDim_"


class WindowRegion(msgspec.Struct, frozen=True):
    """Positions of one windowed dim whose windows read the same places of the input.

    ``positions``: indices in the dim's offset vector, ``places``: in that of the window dim;
    ``input_bits``: offset in the input per place.
    """

    positions: Int64Array
    places: Int64Array
    input_bits: Int64Array


def window_dims(context: PlanContext) -> tuple[str, ...]:
    """The window dims of all windowed dims, after checking that the windows can be simulated."""
    op = context.op
    if not op.windows:
        raise _structure(context, "a window for every spatial dim", "no windows")
    dims = tuple(window.window_dim for window in op.windows.values())
    for dim, window in op.windows.items():
        _check_window(context, dim, window, dims)
        source = context.inputs[0].tensor
        if source.padding.get(dim) is Padding.LOWERED:
            message = f"an input lowered along {dim!r} is not simulated"
            expected = "another kind of padding"
            raise context.refuse("SPY547", message, expected, Padding.LOWERED, source.json_path)
        _check_split(context, dim, window)
    return dims


def _structure(context: PlanContext, expected: str, found: str) -> SdscError:
    message = f"{context.op.name}: the windows do not fit the operation"
    location = JsonLocation(context.op.file, _WINDOWS)
    return SdscError("SPY292", message, location, expected=expected, found=found)


def _check_window(
    context: PlanContext, dim: str, window: Window, window_dims: tuple[str, ...]
) -> None:
    op, source, target = context.op, context.inputs[0].tensor, context.output.tensor
    name = window.window_dim
    if name not in op.dims or window_dims.count(name) > 1 or name in op.windows:
        raise _structure(context, f"a separate dim as the window of {dim!r}", repr(name))
    if not (source.holds(dim) and target.holds(dim)):
        raise _structure(context, f"{dim!r} in the first input and the output", _dims_of(context))
    if source.holds(name) or target.holds(name):
        raise _structure(
            context, f"window dim {name!r} in neither input nor output", _dims_of(context)
        )
    sizes = (window.total, window.stride, window.dilation, window.pad_front, window.pad_back)
    if min(sizes) < 0 or 0 in sizes[1:3] or max(sizes) > MOST_STEPS:
        raise _structure(context, f"positive steps, sizes of at most {MOST_STEPS}", str(window))
    reach = (op.extents[dim] - 1) * window.stride + (op.extents[name] - 1) * window.dilation + 1
    if reach > window.total or unsplit_input_extent(source, dim, window) < 1:
        raise _structure(context, f"windows within {window.total} elements", f"{reach} elements")


def _dims_of(context: PlanContext) -> str:
    """The dims along which the first input and the output vary."""
    tensors = context.inputs[0].tensor, context.output.tensor
    held = (" ".join(filter(tensor.holds, context.op.dims)) for tensor in tensors)
    return ", ".join(
        f"{t.name} over {dims or 'no dim'}" for t, dims in zip(tensors, held, strict=True)
    )


def _check_split(context: PlanContext, dim: str, window: Window) -> None:
    op, access = context.op, context.inputs[0]
    if op.slices.get(window.window_dim, 1) > 1:
        message = "a window split over cores is not simulated"
        expected = f"one work slice of {window.window_dim!r}"
        found = f"{op.slices[window.window_dim]}"
        raise context.refuse("SPY545", message, expected, found, _SLICES)
    if op.slices.get(dim, 1) == 1:
        return
    share = op.extents[dim] // op.slices[dim] * window.stride
    size = access.sticks.get(dim, 1)
    if share % size:
        message = f"cores divide {dim!r} inside of a stick"
        expected = f"a multiple of {size} input elements per core"
        raise context.refuse("SPY546", message, expected, f"{share} elements", _SLICES)
    if access.tensor.is_local and implied_front(access.tensor, dim, window):
        message = f"{dim!r} is divided over cores whose own inputs lack its padding"
        expected = "padding that is stored, or an input in HBM"
        found = f"front padding of {window.pad_front}, not stored"
        raise context.refuse("SPY546", message, expected, found, _SLICES)


def regions(context: PlanContext, space: OffsetSpace) -> Iterator[dict[str, WindowRegion]]:
    """One region per windowed dim, in all combinations."""
    per_dim = [list(_dim_regions(context, space, dim)) for dim in context.op.windows]
    for combination in itertools.product(*per_dim):
        yield dict(zip(context.op.windows, combination, strict=True))


def _dim_regions(context: PlanContext, space: OffsetSpace, dim: str) -> Iterator[WindowRegion]:
    op, access = context.op, context.inputs[0]
    window = op.windows[dim]
    row = len(context.accesses) + list(op.windows).index(dim)
    origin = space.line(dim)[row] + space.bases[row]
    front = implied_front(access.tensor, dim, window)
    places = np.arange(op.extents[window.window_dim], dtype=np.int64) * window.dilation - front
    coordinates = (origin * window.stride)[:, None] + places
    inside = (coordinates >= 0) & (coordinates < unsplit_input_extent(access.tensor, dim, window))
    size = access.sticks.get(dim, 1)
    phase = origin * window.stride % size
    keys = np.stack([inside.argmax(axis=1), inside.sum(axis=1), phase], axis=1)
    kinds, which = np.unique(keys, axis=0, return_inverse=True)
    for number, (first, count, shift) in enumerate(kinds.tolist()):
        inner_places = np.arange(first, first + count)
        bits = coordinate_offsets(op, access, dim, places[inner_places] + shift)
        yield WindowRegion(np.flatnonzero(which.reshape(-1) == number), inner_places, bits)


def region_line(space: OffsetSpace, dim: str, chosen: dict[str, WindowRegion]) -> Int64Array:
    """The line of a windowed dim, restricted to the positions of its region."""
    return space.line(dim)[:, chosen[dim].positions]


def place_line(
    context: PlanContext, space: OffsetSpace, dim: str, chosen: dict[str, WindowRegion]
) -> Int64Array:
    """The line of the window dim of ``dim``, restricted to the places of its region."""
    region = chosen[dim]
    line = space.line(context.op.windows[dim].window_dim)[:, region.places].copy()
    line[0] = region.input_bits
    return line


def plan_windowing(context: PlanContext) -> Iterator[Int64Array]:
    """Tables of a windowed operation."""
    places = window_dims(context)
    check_sticks(context)
    check_covered(context, context.inputs[0], context.output)
    _check_roles(context, places)
    if context.spec.kernel_op != "max":
        refuse_chunks(context)
    whole_steps(
        context,
        context.output.stick_dim,
        context.op.core_extent(context.output.stick_dim),
        context.output.lanes,
    )
    for space in spaces(context, places):
        for chosen in regions(context, space):
            yield _block(context, space, chosen)


def _check_roles(context: PlanContext, places: tuple[str, ...]) -> None:
    target = context.output.tensor
    in_output = {d for d in context.op.dims if target.holds(d)}
    weights = places if context.spec.kernel_op == "channel" else ()
    second = {d for a in context.inputs[1:] for d in context.op.dims if a.tensor.holds(d)}
    lost = [
        d for d in context.op.dims if context.op.extents[d] > 1 and d not in in_output | {*places}
    ]
    spatial = set(context.op.windows) if weights else set()
    wrong = second - in_output - {*weights} | second & spatial
    in_stick = context.output.stick_dim in {*places, *context.op.windows}
    if lost or wrong or in_stick or context.output.is_lane or context.inputs[0].is_lane:
        raise SdscError(
            "SPY292",
            f"{context.op.name}: the windows do not fit the operation",
            context.location,
            expected="an output over every dim but the window's, its stick dim in the first input "
            "and no windowed dim; factors over dims of the output, weights over the window too",
            found=f"output {target.dims}, window {places}, "
            f"inputs {[access.tensor.dims for access in context.inputs]}",
        )


def _block(context: PlanContext, space: OffsetSpace, chosen: dict[str, WindowRegion]) -> Int64Array:
    op, lanes = context.op, context.output.lanes
    width = space.bases.size
    lines = []
    for dim in op.dims:
        if dim in chosen:
            lines.append(region_line(space, dim, chosen))
        elif context.output.tensor.holds(dim):
            step = lanes if dim == context.output.stick_dim else 1
            lines.append(space.line(dim)[:, ::step])
    lines.sort(key=lambda line: -int(np.abs(line[len(context.inputs)]).max(initial=0)))
    steps = combine(context, lines, width)[: len(context.accesses)]
    places = combine(context, [place_line(context, space, dim, chosen) for dim in chosen], width)
    places = places[: len(context.inputs)]
    row = _head(context, space, steps.shape[1], places.shape[1])
    return attach(row.words, [steps, places])


def _head(context: PlanContext, space: OffsetSpace, kept: int, places: int) -> RowWriter:
    row = RowWriter(tb.WINDOWING_KIND)
    for k, access in enumerate(context.accesses):
        lane = 0 if access.is_lane else tb.WHOLE_STICK
        row.operand(k, k, int(space.bases[k]), lane, context.format_code(access.tensor))
    row.words[tb.COUNTS : tb.COUNTS + 2] = kept, places
    constants = context.spec.constants
    row.header(
        opcode=tb.WINDOWINGS.index(context.spec.kernel_op),
        inputs=len(context.inputs),
        lanes=context.output.lanes,
        units=-(-kept // tb.KEPT_BLOCK),
        value=float_word(context.constant(constants[0]) if constants else 1.0),
        cost_ns=int(kept * max(places, 1) * context.output.lanes * context.spec.element_ns),
    )
    return row
