"""Planner of pooling and depthwise convolution: a window of input sticks per stick of the output.

Dims of the output are kept, window dims are reduced; neither may be in a stick but for the common
stick dim. A second input is a map of factors over the output (avgpoolnmapfwd) or the weights per
channel and place of the window (depthwiseconv2dnative): operations reference §3, §7.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from spyre.errors import SdscError
from spyre.hw import table as tb
from spyre.hw import vector_table as vt
from spyre.hw.access import per_core
from spyre.hw.kernels.opcodes import WINDOWING_KIND, WINDOWINGS
from spyre.hw.nest import Int64Array
from spyre.hw.plans.context import (
    PlanContext,
    RowWriter,
    check_covered,
    float_word,
    refuse_chunks,
    whole_steps,
)
from spyre.hw.plans.elementwise import check_sticks
from spyre.hw.plans.lines import Space, attach, combine, spaces
from spyre.hw.plans.window_regions import (
    Region,
    place_line,
    region_line,
    regions,
    window_dims,
)


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
        per_core(context.op, context.output.stick_dim),
        context.output.lanes,
    )
    for space in spaces(context, places):
        for chosen in regions(context, space):
            yield _block(context, space, chosen)


def _check_roles(context: PlanContext, places: tuple[str, ...]) -> None:
    target = context.output.tensor
    kept = {d for d in context.op.dims if target.holds(d)}
    weights = places if context.spec.kernel_op == "channel" else ()
    second = {d for a in context.inputs[1:] for d in context.op.dims if a.tensor.holds(d)}
    lost = [d for d in context.op.dims if context.op.extents[d] > 1 and d not in kept | {*places}]
    spatial = set(context.op.windows) if weights else set()
    wrong = second - kept - {*weights} | second & spatial
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


def _block(context: PlanContext, space: Space, chosen: dict[str, Region]) -> Int64Array:
    op, lanes = context.op, context.output.lanes
    width = space.bases.size
    kept = []
    for dim in op.dims:
        if dim in chosen:
            kept.append(region_line(space, dim, chosen))
        elif context.output.tensor.holds(dim):
            step = lanes if dim == context.output.stick_dim else 1
            kept.append(space.line(dim)[:, ::step])
    kept.sort(key=lambda line: -int(np.abs(line[len(context.inputs)]).max(initial=0)))
    steps = combine(context, kept, width)[: len(context.accesses)]
    places = combine(context, [place_line(context, space, dim, chosen) for dim in chosen], width)
    places = places[: len(context.inputs)]
    row = _head(context, space, steps.shape[1], places.shape[1])
    return attach(row.words, [steps, places])


def _head(context: PlanContext, space: Space, kept: int, places: int) -> RowWriter:
    row = RowWriter(WINDOWING_KIND)
    for k, access in enumerate(context.accesses):
        lane = 0 if access.is_lane else tb.WHOLE_STICK
        row.operand(k, k, int(space.bases[k]), lane, context.format_code(access.tensor))
    row.words[vt.KEPT], row.words[vt.PLACES] = kept, places
    constants = context.spec.constants
    row.header(
        opcode=WINDOWINGS.index(context.spec.kernel_op),
        inputs=len(context.inputs),
        lanes=context.output.lanes,
        units=-(-kept // vt.KEPT_BLOCK),
        value=float_word(context.constant(constants[0]) if constants else 1.0),
        cost_ns=int(kept * max(places, 1) * context.output.lanes * context.spec.element_ns),
    )
    return row
