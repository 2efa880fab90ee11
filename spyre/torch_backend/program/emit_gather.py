"""Emission of gathers: `identity` through an index tensor (SDSC reference §6.4).

``output[a, i, b] = table[a, index[i], b]``. The dims of the index stand in the output where the
table has its rows. An index that lacks dims of the output is the same all along them; one that has
the output's lane dim picks every lane by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from spyre.dtypes import STICK_BYTES
from spyre.layout.device_view import DeviceView, Factor
from spyre.mlir.operation import Indirection
from spyre.mlir.sdsc_builder import OperationSpec, Place
from spyre.torch_backend.program.emission import Emitter, Operand, lane_index
from spyre.torch_backend.program.iteration import IterationDim, common_iteration
from spyre.torch_backend.program.op_spec import OpSpec
from spyre.torch_backend.program.value import NotExpressible, Value

INDEX_FORMAT = "SENUINT32"
"""Index words; those of int32 and int64 tensors have the same bits."""
INDEX_STICK = 32
_TABLE, _INDEX, _OUTPUT = 0, 1, 2


def emit_gather(spec: OpSpec, place: Callable[[Value], Place]) -> OperationSpec:
    """``dims``: the table's dim of rows. The index has the output's rank, with size 1 (or repeated
    elements) along dims it does not depend on; the table has that rank too.
    """
    table, index = spec.inputs
    (along,) = spec.dims
    output = spec.written
    row_pitch, rows = _rows_of(table, along)
    sizes = output.sizes
    stepped = _stepped(table.view, along, sizes[along], row_pitch)
    views = (stepped.expanded(sizes), index.expanded(sizes).view, output.view)
    roles = [int(k == along) for k in range(len(sizes))]
    dims = common_iteration(views, roles)
    if sizes[along] == 1:
        one = Factor(1, STICK_BYTES)
        dims.append(IterationDim(1, (Factor(1, row_pitch), one, one), 1))
    moved = next(k for k, dim in enumerate(dims) if dim.role == 1)
    if sum(dim.role == 1 for dim in dims) > 1:
        raise NotExpressible("rows of a gather in several steps")
    lane = lane_index(dims, _OUTPUT)
    if lane < 0:
        stick, none = Factor(1, STICK_BYTES, True), Factor(1, 0)
        dims.append(IterationDim(1, (stick, none, stick)))
        lane = len(dims) - 1
    index_lane = lane_index(dims, _INDEX)
    if index_lane < 0:
        index_lane = moved
    multiples = {lane: output.view.elements_per_stick}
    if index_lane != lane and dims[index_lane].extent > INDEX_STICK:
        if dims[index_lane].extent % INDEX_STICK:
            raise NotExpressible("an index in sticks that are not whole")
        multiples[index_lane] = INDEX_STICK
    emitter = Emitter(dims, multiples)
    source = emitter.tensor(Operand(_TABLE, table.view, place(table), lane, "", (moved, rows)))
    words = emitter.tensor(Operand(_INDEX, index.view, place(index), index_lane))
    target = emitter.tensor(Operand(_OUTPUT, output.view, place(output), lane))
    name = emitter.names[moved]
    source = replace(source, indirection=Indirection.VALUE, max_dim_sizes={name: 1}, role="VALUE")
    words = replace(
        words, indirection=Indirection.INDEX, data_format=INDEX_FORMAT, role="KERNEL_IDX"
    )
    return emitter.operation("identity", [source], [target], index_inputs=[words])


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
