"""The table of a gather: a tensor one of whose coordinates comes from an index tensor.

``op_info["indirect"]`` of a gather is (name, along, rows): the table's coordinates hold the symbol
``name``, which no dim of the iteration has; the symbol ``along`` steps through the index, and
through the rows of the output; ``rows`` are those of the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from spyre.dtypes import STICK_BYTES
from spyre.layout.device_view import DeviceView
from spyre.layout.view_factors import Factor
from spyre.torch_backend.inductor.op_spec import OpSpec
from spyre.torch_backend.inductor.spec_views import ArgView, arg_view, inexpressible, tile_extents
from spyre.torch_backend.program.emit_gather import single_row
from spyre.torch_backend.program.iteration import IterationDim

INDIRECT = "indirect"
ROW = sympy.Symbol("i0")
"""What an index says, in the coordinates of a table."""


@dataclass(frozen=True, slots=True)
class Rows:
    """``place``: of the symbol along which the output has its rows, ``extent`` of them; the table
    has ``count``, one every ``pitch_bytes``.
    """

    place: int
    extent: int
    count: int
    pitch_bytes: int

    @property
    def unread_bytes(self) -> int:
        """Bytes from the last row that a step per output row would reach to the table's last."""
        return (self.count - self.extent) * self.pitch_bytes

    def with_single(self, dims: list[IterationDim]) -> list[IterationDim]:
        """``dims`` with one for the rows where there is but one."""
        return dims if self.extent > 1 else [*dims, single_row(self.pitch_bytes)]


def indirect_info(
    symbols: Sequence[sympy.Symbol], dims: Sequence[IterationDim], rows: int
) -> tuple[str, str, int]:
    """The entry of ``op_info``; the one dim of role 1 is that of the rows."""
    along = next(s for s, dim in zip(symbols, dims, strict=True) if dim.role)
    return str(ROW), str(along), rows


def table_view(spec: OpSpec) -> tuple[ArgView, Rows]:
    """The table, with as many rows as the output has. UnsupportedError SPY960 for one whose rows do
    not follow each other at one pitch.
    """
    name, along, count = spec.op_info[INDIRECT]
    space = {**spec.iteration_space, sympy.Symbol(name): (sympy.Integer(count), 1)}
    arg = spec.args[0]
    found = arg_view(replace(spec, iteration_space=space), arg).view
    *dims, factors = found.dims
    if len(factors) > 1 or any(factor.lane for factor in factors):
        raise inexpressible(spec, "its table", f"rows along {factors}")
    tile = tile_extents(spec)
    pitch_bytes = factors[0].pitch_bytes if factors else STICK_BYTES
    rows = Rows(list(tile).index(along), tile[along], count, pitch_bytes)
    dims[rows.place] = (Factor(rows.extent, pitch_bytes),) if rows.extent > 1 else ()
    view = DeviceView(tuple(dims), found.device_format, found.offset_bytes)
    return ArgView(view, {}), rows
