"""Concatenation, and reading through indices: embedding, index_select, tensors and masks, gather.

ATen makes stack of cat.
Indices out of range stop the launch with a device fault, which the next synchronization raises.
Negative ones count from the end where torch allows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    CONVERTED,
    FLOATS,
    Arguments,
    Conditions,
    NewResult,
    as_like,
    call,
    copy_into,
    counted_dims,
    fill,
    one_launch,
    row,
)
from spyre.torch_backend.eager.factories import cached_sequence
from spyre.torch_backend.program import (
    MAX_ROWS,
    Lowering,
    LoweringError,
    Value,
    current_recorder,
    gathered,
    join_lane,
    joined,
    narrowed,
    other_lane,
    stored_elements,
    wrapped_positions,
)
from spyre.torch_backend.tensors import assemble, buffer_of, moves_bits, to_host

MAX_ELEMENTS = 1 << 26
"""Elements a join or a gather may need room for in its layout; beyond that, DMA or the CPU."""

# --- joins ---------------------------------------------------------------------------------------


def join(builder: Lowering, *args: Any) -> Value:
    """Pieces converted to the result's dtype, joined."""
    *pieces, dim, dtype = args
    return joined(builder, [builder.convert(p, dtype) for p in pieces], dim, dtype)


def joined_sizes(tensors: Sequence[torch.Tensor], dim: int) -> torch.Size:
    """Sizes of the result of tensors that go together."""
    shapes = [t.shape for t in tensors if t.shape != (0,)]
    if not shapes:
        return torch.Size((0,))  # for any dim
    sizes = [*shapes[0]]
    sizes[dim] = sum(shape[dim] for shape in shapes)
    return torch.Size(sizes)


def cat(args: Arguments) -> torch.Tensor:
    tensors, out = args.tensors, args.out
    # without empty ones, among them those of shape (0,), which any shape goes with
    pieces, sizes = [t for t in tensors if t.numel()], joined_sizes(tensors, args.dim)
    if isinstance(out, torch.Tensor):
        if out.shape != sizes:
            out.resize_(sizes)
        if not pieces:
            return out
    dim = args.dim % len(sizes)
    starts = [0, *accumulate(p.shape[dim] for p in pieces)][:-1]
    if _goes_by_dma(pieces, starts, dim, out, sizes):
        if isinstance(out, NewResult) or current_recorder() is not None:
            raise LoweringError("a join that DMA does")
        parts = zip(starts, pieces, strict=True)
        assemble(buffer_of(out), [(out.narrow(dim, s, p.shape[dim]), p) for s, p in parts])
        return out
    return fill("cat", join, pieces, (dim, name_of(out.dtype)), out, sizes)


def _goes_by_dma(
    pieces: Sequence[torch.Tensor],
    starts: Sequence[int],
    dim: int,
    out: torch.Tensor | NewResult,
    sizes: Sequence[int],
) -> bool:
    """Pieces of one dtype that the cores cannot copy, or not without very much memory."""
    if isinstance(out, torch.Tensor):
        if current_recorder() is None and not moves_bits(out):
            return False
        if any(p.dtype != out.dtype for p in pieces):
            return False
        if out.dtype not in CONVERTED:
            return True
    lanes = 128 // (2 if pieces[0].dtype.itemsize < 4 else 4)
    needed = stored_elements(sizes, join_lane(sizes, starts, dim, lanes), lanes)
    return needed > max(MAX_ELEMENTS, 4 * prod(sizes))


def _can_join(args: Arguments) -> bool:
    if isinstance(args.out, NewResult):
        return True  # floats of one dtype
    out, pieces = args.out, [t for t in args.tensors if t.numel()]
    dtypes = {t.dtype for t in pieces}
    if any(t.device != out.device for t in pieces):
        return False
    if not all(torch.can_cast(dtype, out.dtype) for dtype in dtypes):
        return False
    if current_recorder() is None and dtypes <= {out.dtype} and moves_bits(out):
        return True
    return {out.dtype, *dtypes} <= set(CONVERTED)


def roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """aten::roll: the end of every dim in front of its beginning."""
    if not dims:
        return roll(x.reshape(-1), shifts, (0,)).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):  # a dim may come twice
        extent = x.shape[dim]
        cut = extent - shift % extent
        pieces = [x.narrow(dim, cut, extent - cut), x.narrow(dim, 0, cut)]
        x = torch.cat(pieces, dim)
    return x


_ROLL = Conditions(
    dtypes={"self": CONVERTED},
    nonempty=("self",),
    check=lambda args: args.self.dim() > 0 and len(args.shifts) == (len(args.dims) or 1),
)


# --- indices -------------------------------------------------------------------------------------

INDICES = (torch.int32, torch.int64)


def select_rows(builder: Lowering, table: Value, index: Value, dim: int, wraps: bool) -> Value:
    """Rows of ``table`` selected by ``index``, whose dims replace ``dim`` in the result."""
    sizes = (*table.sizes[:dim], *index.sizes, *table.sizes[dim + 1 :])
    if wraps:
        index = wrapped_positions(builder, index, table.sizes[dim])
    if not index.sizes:
        index = index.unsqueezed(0)
    for _ in range(len(index.sizes) - 1):
        table = table.unsqueezed(dim)
    along = dim + len(index.sizes) - 1
    for _ in range(dim):
        index = index.unsqueezed(0)
    for _ in range(len(table.sizes) - len(index.sizes)):
        index = index.unsqueezed(len(index.sizes))
    gathered_sizes = tuple(
        table.sizes[k] if k < dim or k > along else index.sizes[k] for k in range(len(table.sizes))
    )
    return gathered(builder, table, along, index, gathered_sizes).reshaped(sizes)


def select_positions(builder: Lowering, table: Value, rows: Value, *args: Any) -> Value:
    """As `select_rows`, by several indices, whose dims of these extents are one in ``table``."""
    *indices, dim, extents = args
    position = joint_position(builder, indices, extents, rows)
    return select_rows(builder, table, position, dim, False)


def joint_position(
    builder: Lowering, indices: Sequence[Value], extents: Sequence[int], rows: Value
) -> Value:
    """Positions of several indices in the one dim that dims of these extents make together.

    Every index is checked against its own extent: ``rows`` are the numbers of as many rows as the
    longest extent has, or more.
    """
    steps = (
        checked_positions(builder, index, narrowed(rows, 0, 0, extent), True)
        for index, extent in zip(indices, extents, strict=True)
    )
    position = next(steps)
    for step, extent in zip(steps, extents[1:], strict=True):
        scaled = builder.pointwise("mul", position, extent)
        position = builder.pointwise("add", scaled, step)
    return position


def checked_positions(builder: Lowering, index: Value, rows: Value, wraps: bool) -> Value:
    """Indices as float32 positions among ``rows`` (their numbers); those out of range are a fault.

    A gather looks up the largest and the smallest among the row numbers, which checks their range
    and returns them unchanged.
    """
    position = builder.convert(index, "float32")
    if wraps:
        position = wrapped_positions(builder, position, rows.numel)
    dims = tuple(range(len(position.sizes)))
    for name, bound in (("max", "minimum"), ("min", "maximum")):
        extreme = builder.reduce(name, position, dims)
        found = gathered(builder, rows, 0, extreme.reshaped((1,)), (1,)).reshaped([1] * len(dims))
        if position.numel == 1:
            return found.reshaped(position.sizes)
        position = builder.pointwise(bound, position, found)
    return position


def select_elements(builder: Lowering, table: Value, index: Value, dim: int) -> Value:
    """``output[i, j] = table[index[i, j], j]`` for ``dim`` 0, and so on."""
    for k, extent in enumerate(index.sizes):
        if k != dim:
            table = narrowed(table, k, 0, extent)
    return gathered(builder, table, dim, index, index.sizes)


# --- kernels -------------------------------------------------------------------------------------


def row_numbers(count: int, device: torch.device) -> torch.Tensor:
    """0 to count - 1 in float32; callers must not write to it."""
    if current_recorder() is not None:
        return torch.arange(count, dtype=torch.float32, device=device)
    return cached_sequence("arange", (count,), torch.float32, device)


def _rows_fit(sizes: Sequence[int], dim: int, count: int) -> bool:
    """True if the cores can gather ``count`` rows along ``dim`` of a table of these sizes."""
    if not sizes:
        return _rows_fit((1,), 0, count)
    dim %= len(sizes)
    lane, elements = other_lane(sizes, dim), prod(sizes)
    rows = count * (elements // sizes[dim])
    needed = max(stored_elements(sizes, lane), rows * 64 if lane < 0 else rows)
    return bool(sizes[dim] <= MAX_ROWS and needed <= max(MAX_ELEMENTS, 4 * elements))


def embedding(args: Arguments) -> Any:
    weight, indices = args.weight, args.indices
    rows = weight.new_empty((*indices.shape, *weight.shape[1:]))
    return call(_SELECTION, weight, indices, 0, out=rows)  # under a recorder its node, not ``rows``


_SELECTION = one_launch(
    "index_select",
    ("table", "index", "dim"),
    lambda args: fill("select", select_rows, [args.table, args.index], (args.dim, False), args.out),
)


def index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """aten::index_select; a tensor of rank 0 has one row, which is the result."""
    if not x.dim():
        return index_select(x.reshape(1), 0, index).reshape(())
    dim %= x.dim()
    sizes = (*x.shape[:dim], index.numel(), *x.shape[dim + 1 :])
    return call(_SELECTION, x, index.reshape(-1), dim, out=x.new_empty(sizes))


def gather(args: Arguments) -> torch.Tensor:
    x, index = args.self, args.index
    return fill("gather", select_elements, [x, index], (args.dim % x.dim(),), args.out, index.shape)


def _gather_of_nothing(args: Arguments) -> torch.Tensor:
    """By no index, or from a tensor of rank 0."""
    x, index, out = args.self, args.index, args.out
    if index.numel() == 0:
        return out.resize_(index.shape) if out.shape != index.shape else out
    elements = torch.gather(x.reshape(1), 0, index.reshape(-1)).reshape(index.shape)
    return copy_into(out, elements)


Indices = Sequence[torch.Tensor | None]


def index(args: Arguments) -> torch.Tensor:
    """aten::index.Tensor_out with index tensors for any dims."""
    out, (x, indices, dim) = args.out, neighbours(args.self, args.indices)
    chosen = [k for k in indices if k is not None]
    count = len(chosen)
    shape = torch.broadcast_shapes(*(k.shape for k in chosen))
    sizes = torch.Size((*x.shape[:dim], *shape, *x.shape[dim + count :]))
    if count == 1:
        return fill("select", select_rows, [x, chosen[0]], (dim, True), out, sizes)
    extents = tuple(x.shape[dim : dim + count])
    rows = row_numbers(max(extents), x.device)
    operands = [merged(x, dim, count), rows, *chosen]
    parameters = (dim, extents)
    return fill("select several", select_positions, operands, parameters, out, sizes)


def neighbours(x: torch.Tensor, indices: Indices) -> tuple[torch.Tensor, Indices, int]:
    """Indexed dims next to each other, in front where they were not, and the first of them."""
    dims = [k for k, index in enumerate(indices) if index is not None]
    if dims[-1] - dims[0] == len(dims) - 1:
        return x, indices, dims[0]
    others = [k for k in range(x.dim()) if k not in dims]
    return x.permute(*dims, *others), [indices[k] for k in dims], 0


def merged(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """``x`` with ``count`` dims from ``dim`` on as one."""
    return x.reshape((*x.shape[:dim], -1, *x.shape[dim + count :]))


def index_by_masks(args: Arguments) -> torch.Tensor:
    """aten::index.Tensor_out with masks as the positions they mark."""
    positions = [p for k in args.indices for p in mask_positions(k)]
    selected: torch.Tensor = torch.ops.aten.index.Tensor_out(args.self, positions, out=args.out)
    return selected


def mask_positions(index: torch.Tensor | None) -> Indices:
    """A mask as one index of positions per dim it covers; other indices unchanged."""
    if index is None or index.dtype is not torch.bool:
        return [index]
    positions: Sequence[torch.Tensor] = index.nonzero().unbind(1)
    return positions


def nonzero(args: Arguments) -> torch.Tensor:
    """aten::nonzero: found on the host, since the number of results is needed there."""
    return to_host(args.self).nonzero().to(args.self.device)


def isin(args: Arguments) -> torch.Tensor:
    """aten::isin.Tensor_Tensor_out: compare every element with every test element."""
    if isinstance(args.out, torch.Tensor) and args.out.dtype != torch.bool:
        given = (args.elements, args.test_elements, args.out)
        *tests, out = (torch.empty(0, dtype=t.dtype) for t in given)
        torch.isin(*tests, out=out)  # raises torch's error
    matches = (args.elements.unsqueeze(-1) == args.test_elements.reshape(-1)).any(-1)
    return copy_into(args.out, ~matches if args.invert else matches)


def flip(args: Arguments) -> torch.Tensor:
    """aten::flip: gathered from the last to the first along every dim."""
    x, dims = args.self, args.dims
    for dim in counted_dims(dims, x.dim()):
        if x.shape[dim] > 1:
            order = torch.arange(x.shape[dim] - 1, -1, -1, dtype=torch.int32, device=x.device)
            x = index_select(x, dim, order)
        else:
            x = x.clone()
    return as_like(args.self, x) if dims else x.clone()


def embedding_renorm_(args: Arguments) -> torch.Tensor:
    """aten::embedding_renorm_: rows that are looked up and longer than ``max_norm`` are scaled."""
    weight: torch.Tensor = args.self
    norms = torch.linalg.vector_norm(weight, args.norm_type, dim=1, keepdim=True)
    rows = torch.arange(weight.shape[0], device=weight.device)
    used = torch.isin(rows, args.indices.reshape(-1)).unsqueeze(1)
    scale = torch.where(used & (norms > args.max_norm), args.max_norm / (norms + 1e-7), 1.0)
    return weight.mul_(scale)


def _has_room_to_gather(args: Arguments) -> bool:
    x, index = args.self, args.index
    if x.dim() != index.dim() or not x.dim():
        return False
    dim = args.dim % x.dim()
    lane = other_lane(index.shape, dim)
    needed = max(stored_elements(x.shape, lane), stored_elements(index.shape, lane))
    return bool(x.shape[dim] <= MAX_ROWS and needed <= max(MAX_ELEMENTS, 4 * x.numel()))


def _has_room_to_index(args: Arguments) -> bool:
    chosen = [k for k in args.indices if k is not None]
    if not chosen:
        return False
    table, _, dim = neighbours(torch.empty(args.self.shape, device="meta"), args.indices)
    count = prod(torch.broadcast_shapes(*(k.shape for k in chosen)))
    return _rows_fit(merged(table, dim, len(chosen)).shape, dim, count)


def _can_flip(args: Arguments) -> bool:
    x, sizes = args.self, args.self.shape
    if not sizes or not args.dims:
        return bool(sizes)
    fits = x.dtype in CONVERTED and x.numel() > 0
    return fits and all(_rows_fit(sizes, dim, max(sizes)) for dim in args.dims)


KERNELS = (
    ("cat.out", cat, Conditions(check=_can_join)),
    ("roll", lambda args: roll(args.self, args.shifts, args.dims), _ROLL),
    row(
        embedding,
        dtypes={"weight": CONVERTED, "indices": INDICES},
        same_device=("weight", "indices"),
        nonempty=("weight",),
        check=lambda args: (
            args.weight.dim() and _rows_fit(args.weight.shape, 0, args.indices.numel())
        ),
    ),
    row(
        lambda args: index_select(args.self, args.dim, args.index),
        "index_select",
        dtypes={"self": CONVERTED, "index": INDICES},
        same_device=("self", "index"),
        nonempty=("self",),
        check=lambda args: _rows_fit(args.self.shape, args.dim, args.index.numel()),
    ),
    row(
        _gather_of_nothing,
        "gather.out",
        check=lambda args: not args.index.numel() or not args.self.dim(),
    ),
    row(
        gather,
        "gather.out",
        dtypes={"self": CONVERTED, "index": INDICES},
        same_dtype=("self", "out"),
        same_device=("self", "index"),
        nonempty=("index",),
        check=_has_room_to_gather,
    ),
    row(
        index_by_masks,
        "index.Tensor_out",
        check=lambda args: any(k is not None and k.dtype is torch.bool for k in args.indices),
    ),
    row(
        index,
        "index.Tensor_out",
        dtypes={"self": CONVERTED, "indices": INDICES},
        same_dtype=("self", "out"),
        same_device=("self", "indices"),
        nonempty=("self",),
        check=_has_room_to_index,
    ),
    row(
        isin,
        "isin.Tensor_Tensor_out",
        dtypes={"inputs": CONVERTED},
        same_device=("inputs",),
        nonempty=("inputs",),
        check=lambda args: args.elements.numel() * args.test_elements.numel() <= 1 << 20,
    ),
    row(flip, check=_can_flip),
    row(nonzero),
    row(embedding_renorm_, dtypes={"self": FLOATS}, nonempty=("inputs",)),
)
