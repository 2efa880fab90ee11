"""Symbolic dims bound to the sizes of a launch (SDSC reference §11).

Memory is laid out for the largest size, so only the trip count changes: `with_sizes` gives the
plain operation of one set of sizes, which planners, counters and the twin take as any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from spyre.errors import BundleError, JsonLocation, LaunchError
from spyre.mlir.footprint import stick_elements, stored_extent
from spyre.mlir.operation import Operation, SymbolicDim, Tensor

Sizes = Mapping[str, int]
"""Extent in elements per symbolic dim."""


def with_sizes(op: Operation, sizes: Sizes) -> Operation:
    """``op`` over ``sizes``, its tensors still stored as for the maxima. LaunchError SPY372."""
    if not op.symbolic_dims:
        return op
    for dim, size in op.symbolic_dims.items():
        _check_size(op, dim, size, sizes[dim])
    return replace(
        op,
        extents={**op.extents, **{dim: sizes[dim] for dim in op.symbolic_dims}},
        symbolic_dims={},
        inputs=tuple(pinned(op, t, op.symbolic_dims) for t in op.inputs),
        index_tensors=tuple(pinned(op, t, op.symbolic_dims) for t in op.index_tensors),
        outputs=tuple(pinned(op, t, op.symbolic_dims) for t in op.outputs),
    )


def pinned(op: Operation, tensor: Tensor, dims: Mapping[str, object]) -> Tensor:
    """``tensor`` whose stored extents along ``dims`` no longer follow from those of ``op``."""
    sticks = stick_elements(tensor)
    stored = {
        dim: stored_extent(op, tensor, dim, sticks.get(dim, 1))
        for dim in tensor.dims
        if dim in dims and tensor.holds(dim)
    }
    return replace(tensor, device_dim_sizes={**tensor.device_dim_sizes, **stored})


def group_by_sizes(
    op: Operation, symbol_ids: tuple[int, ...], symbols: npt.NDArray[np.int64]
) -> Iterator[tuple[Sizes, npt.NDArray[np.int64]]]:
    """Sizes, and the instances (rows of ``symbols``, one column per id) that have them.

    BundleError SPY275 unless the ids hold those of ``op``'s symbolic dims.
    """
    dims = op.symbolic_dims
    for dim, size in dims.items():
        if size.symbol not in symbol_ids:
            raise BundleError(
                "SPY275",
                f"symbol {size.symbol} of dim {dim} is not bound",
                JsonLocation(op.file, "$.dscs_[0].dimToSymbolMapping_"),
                expected=f"{size.symbol} in symbol_ids",
                found=str(list(symbol_ids)),
            )
    columns = [symbol_ids.index(size.symbol) for size in dims.values()]
    if not dims or not len(symbols):
        yield {}, np.arange(len(symbols))
        return
    values, which = np.unique(symbols[:, columns], axis=0, return_inverse=True)
    for k, row in enumerate(values):
        sizes = dict(zip(dims, (int(value) for value in row), strict=True))
        yield sizes, np.flatnonzero(which.reshape(-1) == k)


def _check_size(op: Operation, dim: str, size: SymbolicDim, value: int) -> None:
    if 0 < value <= size.maximum and value % max(size.granularity, 1) == 0:
        return
    name = f" {size.tag}" if size.tag else ""
    raise LaunchError(
        "SPY372",
        f"{op.name}: runtime size{name} of dim {dim} contradicts the SDSC",
        JsonLocation(op.file, "$.dscs_[0].N_.symbolicDimInfo_"),
        expected=f"a positive multiple of {size.granularity} up to {size.maximum}",
        found=str(value),
    )
