"""Emission of gathers: `identity` through an index tensor (SDSC reference §6.4).

``output[a, i, b] = table[a, index[i], b]``. The dims of the index stand in the output where the
table has its rows. An index that lacks dims of the output is the same all along them; one that has
the output's lane dim picks every lane by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout.device_view import DeviceView
from spyre.layout.view_factors import Factor
from spyre.mlir.operation import Indirection
from spyre.mlir.sdsc_builder import OperationSpec, Place
from spyre.torch_backend.program.emission import Emitter, Operand, lane_index
from spyre.torch_backend.program.iteration import IterationDim, common_iteration
from spyre.torch_backend.program.op_spec import Instruction, OpSpec
from spyre.torch_backend.program.value import NotExpressible, Value
from spyre.torch_backend.program.walk import Walk

INDEX_FORMAT = "SENUINT32"
"""Index words; those of int32 and int64 tensors have the same bits."""
INDEX_STICK = 32
_TABLE, _INDEX, _OUTPUT = 0, 1, 2


def gather_walk(spec: OpSpec, place: Callable[[Value], Place]) -> Walk:
    """``dims``: the table's dim of rows. The index has the output's rank, with size 1 (or repeated
    elements) along dims it does not depend on; the table has that rank too.
    """
    table, index = spec.inputs
    (along,) = spec.dims
    output = spec.written
    row_pitch, rows = _rows_of(table, along)
    sizes = output.sizes
    stepped = _stepped(table.view, along, sizes[along], row_pitch)
    views = [stepped.expanded(sizes), index.expanded(sizes).view, output.view]
    dims = common_iteration(views, [int(k == along) for k in range(len(sizes))])
    if sizes[along] == 1:
        dims.append(single_row(row_pitch))
    return Walk(dims, views, [place(table), place(index), place(output)], None, rows)


def single_row(pitch_bytes: int) -> IterationDim:
    """The dim of rows of a gather that picks one, from a table of this pitch."""
    one = Factor(1, STICK_BYTES)
    return IterationDim(1, (Factor(1, pitch_bytes), one, one), 1)


def emit_gather(spec: Instruction, walk: Walk) -> OperationSpec:
    """The SDSC of a gather; the one dim of role 1 steps through the index where there is one row of
    the output per element.
    """
    dims = list(walk.dims)
    if sum(dim.role == 1 for dim in dims) > 1:
        raise NotExpressible("rows of a gather in several steps")
    moved = next(k for k, dim in enumerate(dims) if dim.role == 1)
    lane = lane_index(dims, _OUTPUT)
    if lane < 0:
        stick, none = Factor(1, STICK_BYTES, True), Factor(1, 0)
        dims.append(IterationDim(1, (stick, none, stick)))
        lane = len(dims) - 1
    index_lane = lane_index(dims, _INDEX)
    if index_lane < 0:
        index_lane = moved
    emitter = Emitter(dims, _multiples(dims, lane, index_lane, walk), division=walk.division)
    return _operation(spec.name, emitter, walk, (lane, index_lane, moved))


def _multiples(
    dims: Sequence[IterationDim], lane: int, index_lane: int, walk: Walk
) -> dict[int, int]:
    multiples = {lane: walk.views[_OUTPUT].elements_per_stick}
    if index_lane != lane and dims[index_lane].extent > INDEX_STICK:
        if dims[index_lane].extent % INDEX_STICK:
            raise NotExpressible("an index in sticks that are not whole")
        multiples[index_lane] = INDEX_STICK
    return multiples


def _operation(
    name: str, emitter: Emitter, walk: Walk, lanes: tuple[int, int, int]
) -> OperationSpec:
    """``lanes``: dims along the sticks of the output and of the index, and the dim of rows."""
    lane, index_lane, moved = lanes
    views, bases = walk.views, walk.bases
    rows = (moved, walk.rows)
    source = emitter.tensor(Operand(_TABLE, views[_TABLE], bases[_TABLE], lane, "", rows))
    words = emitter.tensor(Operand(_INDEX, views[_INDEX], bases[_INDEX], index_lane))
    target = emitter.tensor(Operand(_OUTPUT, views[_OUTPUT], bases[_OUTPUT], lane))
    sizes = {emitter.names[moved]: 1}
    source = replace(source, indirection=Indirection.VALUE, max_dim_sizes=sizes, role="VALUE")
    words = replace(
        words, indirection=Indirection.INDEX, data_format=INDEX_FORMAT, role="KERNEL_IDX"
    )
    return emitter.operation(name, [source], [target], index_inputs=[words])


def _rows_of(table: Value, along: int) -> tuple[int, int]:
    """Bytes from row to row, and their number."""
    factors = table.view.dims[along]
    if not factors:
        return STICK_BYTES, 1
    if len(factors) > 1 or factors[0].lane:
        raise NotExpressible(f"rows along {factors}")
    return factors[0].pitch_bytes, factors[0].extent


def _stepped(view: DeviceView, along: int, extent: int, pitch: int) -> DeviceView:
    """The table with as many rows as the output has."""
    rows = (Factor(extent, pitch),) if extent > 1 else ()
    return replace(view, dims=(*view.dims[:along], rows, *view.dims[along + 1 :]))
