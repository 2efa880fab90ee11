"""Writing through indices: index_copy, index_put, scatter, sums of rows, gradients of embeddings.

The cores read through indices but cannot write through them, so a result row looks for its index:
the numbers of all rows are compared with all indices, and the last match is the row of the source
to read. Sums add up the rows of the source with equal indices
first. Comparisons are made in float32, in pieces of the index that memory has room for. An index
out of range stops the launch with a device fault, as in reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from msgspec.structs import replace

from spyre.torch_backend.compat import operator
from spyre.torch_backend.eager.dispatch import (
    CONVERTED,
    FLOATS,
    INTEGERS,
    Arguments,
    Conditions,
    bind,
    copy_into,
    fill,
    operand,
    signature_of,
)
from spyre.torch_backend.eager.indexing import (
    INDICES,
    Indices,
    checked_positions,
    joint_position,
    mask_positions,
    merged,
    neighbours,
    row_numbers,
    select_elements,
    select_rows,
)
from spyre.torch_backend.eager.integers import exact_add, folded, mul, select
from spyre.torch_backend.eager.masks import is_number_of
from spyre.torch_backend.eager.matmul import is_small_product, product
from spyre.torch_backend.eager.special import along
from spyre.torch_backend.program import MAX_ROWS, Lowering, LoweringError, Value, current_recorder

MOST_COMPARISONS = 1 << 24
"""Pairs of row and index that one program compares."""
MOST_PIECES = 64
"""Programs that one call may need; beyond that, the CPU."""


# --- lowerings -----------------------------------------------------------------------------------


def _positions(
    builder: Lowering, indices: Sequence[Value], extents: Sequence[int], rows: Value, wraps: bool
) -> Value:
    if len(indices) == 1:
        return checked_positions(builder, indices[0], rows, wraps)
    return joint_position(builder, indices, extents, rows)


def _last_match(builder: Lowering, hits: Value, order: Value, dim: int) -> Value:
    """1 + the last position along ``dim`` where ``hits`` is 1, or 0; without that dim."""
    places = builder.pointwise("add", order, 1.0)
    marked = builder.pointwise("mul", hits, along(places, dim, len(hits.sizes)))
    last = builder.reduce("max", marked, (dim,))
    return last.reshaped((*hits.sizes[:dim], *hits.sizes[dim + 1 :]))


def _if_written(
    builder: Lowering, last: Value, written: Value, x: Value, dim: int | None = None
) -> Value:
    """``written`` where `_last_match` found one, else x, in its dtype; ``dim``: of the matches."""
    is_written = builder.pointwise("greaterthan", last, 0.0)
    if dim is not None:
        is_written = along(is_written, dim, len(x.sizes))
    truth = is_written if x.dtype == "float32" else builder.truth(is_written)
    return select(builder, truth, written, x, x.dtype)


def _source_row(builder: Lowering, last: Value) -> Value:
    """The row of a match; of rows that are not written the first one."""
    return builder.pointwise("maximum", builder.pointwise("sub", last, 1.0), 0.0)


def write_rows(
    builder: Lowering, x: Value, source: Value, rows: Value, order: Value, *args: Any
) -> Value:
    """x with the rows of ``source`` along ``dim`` where the indices name them; of rows written
    twice the last one counts. A source of one row goes to all of them.
    """
    *indices, dim, extents, wraps = args
    wanted = _positions(builder, indices, extents, rows, wraps)
    hits = builder.pointwise("equal", rows.unsqueezed(1), wanted.unsqueezed(0))
    last = _last_match(builder, hits, order, 1)
    if source.sizes[dim] > 1:
        source = select_rows(builder, source, _source_row(builder, last), dim, False)
    return _if_written(builder, last, source, x, dim)


def add_rows(
    builder: Lowering, x: Value, source: Value, rows: Value, order: Value, *args: Any
) -> Value:
    """x [rows, width] plus the rows of ``source`` [count, width] that the indices send there.

    A row of the matrix of equal indices sums all rows of the source with the same index.
    """
    *indices, extents, wraps = args
    wanted = _positions(builder, indices, extents, rows, wraps)
    same = builder.pointwise("equal", wanted.unsqueezed(1), wanted.unsqueezed(0))
    sums = product(builder, same, source, source.dtype)
    hits = builder.pointwise("equal", rows.unsqueezed(1), wanted.unsqueezed(0))
    last = _last_match(builder, hits, order, 1)
    picked = select_rows(builder, sums, _source_row(builder, last), 0, False)
    total = builder.pointwise("add", builder.convert(x, source.dtype), picked)
    total = builder.convert(total, x.dtype)
    return _if_written(builder, last, total, x, 0)


def write_elements(
    builder: Lowering,
    x: Value,
    index: Value,
    source: Value,
    rows: Value,
    order: Value,
    dim: int,
    adds: bool,
) -> Value:
    """``output[index[i, j], j] = source[i, j]`` for ``dim`` 0, or added to the element of x.

    A source of rank 0, or of one row, goes to all of them.
    """
    wanted = checked_positions(builder, index, rows, False).unsqueezed(dim)
    hits = builder.pointwise("equal", along(rows, dim, len(wanted.sizes)), wanted)
    if adds and x.dtype in ("int32", "int64"):
        terms = mul(builder, source.unsqueezed(dim), builder.convert(hits, x.dtype))
        total = folded(exact_add, builder, terms, (dim + 1,), x.dtype)
        return exact_add(builder, x, total.reshaped(x.sizes))
    if adds:
        terms = builder.convert(source, "float32").unsqueezed(dim)
        terms = builder.pointwise("where3", hits, terms, 0.0)
        total = builder.reduce("sum", terms, (dim + 1,)).reshaped(x.sizes)
        return builder.convert(
            builder.pointwise("add", builder.convert(x, "float32"), total), x.dtype
        )
    last = _last_match(builder, hits, order, dim + 1)
    if source.sizes and source.sizes[dim] > 1:
        source = select_elements(builder, source, _source_row(builder, last), dim)
    return _if_written(builder, last, source, x)


# --- rows by one index or several ----------------------------------------------------------------


def _pieces(count: int, comparisons: int) -> Iterator[slice]:
    """Parts of ``count`` indices that one program does, at ``comparisons`` for each of them."""
    step = max(MOST_COMPARISONS // comparisons, 1)
    for start in range(0, count, step):
        yield slice(start, start + step)


def _written(
    x: torch.Tensor,
    dim: int,
    indices: Sequence[torch.Tensor],
    extents: tuple[int, ...],
    source: torch.Tensor,
    wraps: bool,
    out: torch.Tensor,
) -> torch.Tensor:
    """``x`` written along ``dim`` by indices of one dim; ``out`` may be ``x``."""
    rows = x.shape[dim]
    numbers = row_numbers(rows, x.device)
    for part in _pieces(len(indices[0]), rows):
        chosen = [index[part] for index in indices]
        count = len(chosen[0])
        piece = source if source.shape[dim] == 1 else source.narrow(dim, part.start, count)
        operands = [x, piece, numbers, row_numbers(count, x.device), *chosen]
        x = fill("write_rows", write_rows, operands, (dim, extents, wraps), out, x.shape)
    return x


def _added_along(
    x: torch.Tensor,
    dim: int,
    indices: Sequence[torch.Tensor],
    extents: tuple[int, ...],
    source: torch.Tensor,
    wraps: bool,
) -> torch.Tensor:
    """``x`` with the rows of ``source`` added along ``dim``, by indices of one dim."""
    front = x.movedim(dim, 0)
    rows = source.movedim(dim, 0).reshape(len(indices[0]), -1)
    total = _added(front.reshape(x.shape[dim], -1), indices, extents, rows, wraps)
    return total.reshape(front.shape).movedim(0, dim)


def _added(
    x: torch.Tensor,
    indices: Sequence[torch.Tensor],
    extents: tuple[int, ...],
    source: torch.Tensor,
    wraps: bool,
) -> torch.Tensor:
    """`_added_along` of rows [rows, width]; sums of several pieces stay in float32."""
    count = len(indices[0])
    pieces = [*_pieces(count, max(x.shape[0], count))]
    total = x.float() if len(pieces) > 1 else x
    numbers = row_numbers(x.shape[0], x.device)
    for part in pieces:
        chosen = [index[part] for index in indices]
        operands = [total, source[part], numbers, row_numbers(len(chosen[0]), x.device), *chosen]
        made = torch.empty_like(total, memory_format=torch.contiguous_format)
        total = fill("add_rows", add_rows, operands, (extents, wraps), made)
    return total.to(x.dtype)


def _can_add(x: torch.Tensor, count: int, width: int) -> bool:
    """Floats; of float32 as many rows as the vector unit can multiply."""
    if x.dtype not in FLOATS:
        return False
    return x.dtype is not torch.float32 or is_small_product((count, count), width)


def index_copy(args: Arguments) -> torch.Tensor:
    """aten::index_copy.out; tensors of rank 0 have one row."""
    x, source = args.self, args.source
    if not x.dim():
        rows = x.reshape(1).index_copy(0, args.index.reshape(-1), source.reshape(-1))
        return copy_into(args.out, rows.reshape(()))
    dim, index = args.dim % x.dim(), args.index.reshape(-1)
    source = source.reshape((*x.shape[:dim], len(index), *x.shape[dim + 1 :]))
    return _written(x, dim, [index], (x.shape[dim],), source, False, args.out)


def index_add(args: Arguments) -> torch.Tensor:
    x = args.self
    source = args.source * args.alpha if args.alpha != 1 else args.source
    if not x.dim():
        rows = x.reshape(1).index_add(0, args.index.reshape(-1), source.reshape(1))
        return copy_into(args.out, rows.reshape(()))
    dim, index = args.dim % x.dim(), args.index.reshape(-1)
    source = source.reshape((*x.shape[:dim], len(index), *x.shape[dim + 1 :]))
    return copy_into(args.out, _added_along(x, dim, [index], (x.shape[dim],), source, False))


def index_fill(args: Arguments) -> torch.Tensor:
    """aten::index_fill_, of a number or a tensor of rank 0; negative indices count from the end."""
    x: torch.Tensor = args.self
    target = x if x.dim() else x.reshape(1)
    dim = args.dim % target.dim()
    row = torch.as_tensor(args.value, dtype=x.dtype, device=x.device).reshape([1] * target.dim())
    _written(target, dim, [args.index.reshape(-1)], (target.shape[dim],), row, True, target)
    return x


def index_put(args: Arguments) -> torch.Tensor:
    """aten::_index_put_impl_."""
    x: torch.Tensor = args.self
    return x.copy_(index_put_of(x, args.indices, args.values, args.accumulate))


def index_put_of(
    x: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """aten::index_put by indices: a new tensor."""
    dims = [k for k, index in enumerate(indices) if index is not None]
    front, placed, dim = neighbours(x, indices)
    chosen = torch.broadcast_tensors(*(k for k in placed if k is not None))
    count, flat = len(chosen), [k.reshape(-1) for k in chosen]
    outer, inner = front.shape[:dim], front.shape[dim + count :]
    extents = tuple(front.shape[dim : dim + count])
    table = merged(front, dim, count)
    source = values.reshape([1] * table.dim()) if values.numel() == 1 else values
    if values.numel() != 1 or accumulate:
        source = values.expand((*outer, *chosen[0].shape, *inner))
        source = source.reshape((*outer, chosen[0].numel(), *inner))
    if accumulate:
        result = _added_along(table, dim, flat, extents, source, True)
    else:
        made = torch.empty_like(table, memory_format=torch.contiguous_format)
        result = _written(table, dim, flat, extents, source, True, made)
    result = result.reshape(front.shape)
    if front is x:
        return result
    order = [*dims, *(k for k in range(x.dim()) if k not in dims)]
    return result.permute([order.index(k) for k in range(x.dim())])


def index_put_by_masks(args: Arguments) -> torch.Tensor:
    """aten::_index_put_impl_ with masks: where one holds, or by the positions they mark."""
    x: torch.Tensor = args.self
    values = args.values
    if (mask := _only_mask(x, args.indices, values, args.accumulate)) is not None:
        return x.masked_fill_(mask, values.reshape(()))
    positions = [p for k in args.indices for p in mask_positions(k)]
    written: torch.Tensor = operator("_index_put_impl_")(x, positions, values, args.accumulate)
    return written


def _only_mask(
    x: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool
) -> torch.Tensor | None:
    """The one mask over the first dims that one value goes to, in as many dims as ``x``."""
    (mask, *others) = indices
    if mask is None or others or mask.dtype is not torch.bool or values.numel() != 1 or accumulate:
        return None
    return mask.reshape((*mask.shape, *[1] * (x.dim() - mask.dim())))


def index_put_functional(
    x: torch.Tensor, indices: Indices, values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """aten::index_put for a recorder, to which the number of a mask's positions is unknown."""
    if (mask := _only_mask(x, indices, values, accumulate)) is not None:
        return torch.where(mask, values.reshape(()), x)
    arguments = bind(signature_of("_index_put_impl_"), (x, indices, values, accumulate), {})
    if not _INDEX_PUT.hold(arguments):
        raise LoweringError(
            f"index_put by {[None if k is None else k.dtype for k in indices]} of {x.dtype}"
        )
    return index_put_of(x, indices, values, accumulate)


def embedding_dense_backward(args: Arguments) -> torch.Tensor:
    """Gradients of equal indices, added; none for the padding."""
    rows, grad, padding = args.num_weights, args.grad_output, args.padding_idx
    width = grad.shape[-1]
    flat, grads = args.indices.reshape(-1), grad.reshape(-1, width)
    if padding >= 0:
        grads = grads.masked_fill((flat == padding).unsqueeze(1), 0)
    zeros = torch.zeros(rows, width, dtype=grad.dtype, device=grad.device)
    return _added(zeros, [flat], (rows,), grads, False)


# --- scatter: an index per element ---------------------------------------------------------------


def scatter(
    adds: bool, x: torch.Tensor, dim: int, index: torch.Tensor, source: Any, *, out: torch.Tensor
) -> torch.Tensor:
    """aten::scatter.src_out, scatter.value_out and scatter_add.out."""
    index, source = map(_with_a_dim, (index, source))
    if not x.dim():
        row = x.reshape(1)
        return copy_into(out, scatter(adds, row, 0, index, source, out=row.clone()).reshape(()))
    dim %= x.dim()
    region = tuple(slice(None) if k == dim else slice(0, n) for k, n in enumerate(index.shape))
    if isinstance(source, torch.Tensor):
        source = source[tuple(slice(0, n) for n in index.shape)]
    if x[region].shape != x.shape:
        return _scatter_in(region, adds, x, dim, index, source, out)
    rows, count = x.shape[dim], index.shape[dim]
    numbers = row_numbers(rows, x.device)
    # sums of words lay them out with other sticks, up to one in each
    for part in _pieces(count, x.numel() * (64 if adds and x.dtype in INTEGERS else 1)):
        length = min(part.stop, count) - part.start
        piece = operand(source, x.dtype)
        if isinstance(piece, torch.Tensor):
            piece = piece.narrow(dim, part.start, length)
        order = row_numbers(length, x.device)
        operands = [x, index.narrow(dim, part.start, length), piece, numbers, order]
        x = fill("write_elements", write_elements, operands, (dim, adds), out, x.shape)
    return x


def _with_a_dim(value: Any) -> Any:
    """Return a tensor of rank 0 as one of rank 1, as ATen counts it, and other values unchanged."""
    is_scalar = isinstance(value, torch.Tensor) and not value.dim()
    return value.reshape(1) if is_scalar else value


def _scatter_in(
    region: tuple[slice, ...],
    adds: bool,
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: Any,
    out: torch.Tensor,
) -> torch.Tensor:
    """`scatter` by an index that does not reach all of ``x``."""
    if current_recorder() is not None:
        raise LoweringError("a scatter to a part of a tensor")
    part = x[region].contiguous()
    written = scatter(adds, part, dim, index, source, out=torch.empty_like(part))
    whole = copy_into(out, x)
    whole[region].copy_(written)
    return whole


def _scatter_kernel(adds: bool, args: Arguments) -> torch.Tensor:
    source = args.src if hasattr(args, "src") else args.value
    return scatter(adds, args.self, args.dim, args.index, source, out=args.out)


def _extent(x: torch.Tensor, dim: int) -> int:
    return x.shape[dim] if x.dim() else 1


def _few_comparisons(rows: int, count: int) -> bool:
    """The cores can compare ``rows`` rows with ``count`` indices."""
    return rows <= MAX_ROWS and rows * count <= MOST_PIECES * MOST_COMPARISONS


def _can_write_rows(args: Arguments) -> bool:
    return _few_comparisons(_extent(args.self, args.dim), args.index.numel())


def _can_add_rows(args: Arguments) -> bool:
    width = args.self.numel() // _extent(args.self, args.dim)
    return _can_write_rows(args) and _can_add(args.self, args.index.numel(), width)


def _can_add_words(args: Arguments) -> bool:
    terms = args.self.numel() * _extent(args.index, args.dim)
    return _can_write_rows(args) and terms <= MOST_COMPARISONS


def _can_fill_rows(args: Arguments) -> bool:
    is_tensor = isinstance(args.value, torch.Tensor)
    if isinstance(args.value, complex) or (is_tensor and args.value.dim()):
        return False
    return _can_write_rows(args)


def _can_put(args: Arguments) -> bool:
    x, chosen = args.self, [k for k in args.indices if k is not None]
    if not chosen or not x.dim():
        return False
    rows = prod(x.shape[k] for k, index in enumerate(args.indices) if index is not None)
    count = prod(torch.broadcast_shapes(*(k.shape for k in chosen)))
    fits = count > 0 and _few_comparisons(rows, count)
    return fits and (not args.accumulate or _can_add(x, count, x.numel() // rows))


def _has_device_mask(args: Arguments) -> bool:
    masks = (torch.bool, args.self.device)
    return any(k is not None and (k.dtype, k.device) == masks for k in args.indices)


_ROWS = Conditions(
    dtypes={"self": CONVERTED, "index": INDICES},
    same_dtype=("self", "source", "out"),
    same_device=("inputs",),
    nonempty=("inputs",),
    check=_can_write_rows,
)
_FILL = Conditions(
    dtypes={"self": CONVERTED, "index": INDICES},
    same_device=("self", "index"),
    nonempty=("self", "index"),
    check=_can_fill_rows,
)
_INDEX_PUT = Conditions(
    dtypes={"self": CONVERTED, "indices": INDICES},
    same_dtype=("self", "values"),
    same_device=("self", "indices", "values"),
    nonempty=("self", "values"),
    check=_can_put,
)
_EMBEDDING = Conditions(
    dtypes={"grad_output": FLOATS, "indices": INDICES},
    same_device=("inputs",),
    nonempty=("inputs",),
    values={"scale_grad_by_freq": (False,)},
    check=lambda args: (
        _few_comparisons(args.num_weights, args.indices.numel())
        and _can_add(args.grad_output, args.indices.numel(), args.grad_output.shape[-1])
    ),
)
_SCATTER = Conditions(
    dtypes={"self": CONVERTED, "index": INDICES},
    same_dtype=("self", "out", "src"),
    same_device=("inputs",),
    nonempty=("self", "index"),
    check=lambda args: (
        is_number_of(getattr(args, "value", 0), args.self.dtype) and _can_write_rows(args)
    ),
)
_NOTHING = Conditions(same_dtype=("self", "out"), empty=("index",))
_SCATTERS = ("scatter.src_out", "scatter.value_out", "scatter_add.out")

KERNELS = (
    ("index_copy.out", index_copy, _ROWS),
    (
        "index_add.out",
        index_add,
        replace(_ROWS, dtypes={"self": FLOATS, "index": INDICES}, check=_can_add_rows),
    ),
    ("index_fill_.int_Scalar", index_fill, _FILL),
    ("index_fill_.int_Tensor", index_fill, _FILL),
    ("_index_put_impl_", index_put_by_masks, Conditions(check=_has_device_mask)),
    ("_index_put_impl_", index_put, _INDEX_PUT),
    ("embedding_dense_backward", embedding_dense_backward, _EMBEDDING),
    *((name, lambda args: copy_into(args.out, args.self), _NOTHING) for name in _SCATTERS),
    ("scatter.src_out", partial(_scatter_kernel, False), _SCATTER),
    ("scatter.value_out", partial(_scatter_kernel, False), _SCATTER),
    (
        "scatter_add.out",
        partial(_scatter_kernel, True),
        replace(_SCATTER, dtypes={"self": FLOATS, "index": INDICES}),
    ),
    (
        "scatter_add.out",
        partial(_scatter_kernel, True),
        replace(_SCATTER, dtypes={"self": INTEGERS, "index": INDICES}, check=_can_add_words),
    ),
)
