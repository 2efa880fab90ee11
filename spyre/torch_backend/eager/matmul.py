"""Matrix products, DL16 on the matrix units and float32 on the vector unit; and attention.

The matrix units have no float32. Such a product is a sum of products of columns with rows, with all
terms in memory; the CPU computes products whose terms would need too much.

Attention is one program, masks, causal masks and grouped heads included. Its backward pass is made
of other operations, and dropout takes ATen's composition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

import torch
from msgspec.structs import replace
from torch.nn.attention import SDPBackend
from torch.nn.functional import linear

from spyre.interrupts import interrupts
from spyre.layout import contiguous_strides
from spyre.torch_backend.compat import is_fake, operator
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    Arguments,
    Conditions,
    bind,
    call,
    call_composite,
    fill,
    fill_number,
    one_launch,
    row,
    signature_of,
)
from spyre.torch_backend.eager.launch import is_plain_call, repeated
from spyre.torch_backend.eager.masks import triangle
from spyre.torch_backend.eager.special import Term
from spyre.torch_backend.program import (
    Ints,
    Lowering,
    Value,
    broadcast_sizes,
    current_recorder,
    result_lane,
    stored_elements,
)
from spyre.torch_backend.tensors import allocate

TERMS_BYTES = 1 << 28
"""Most memory for the terms of a float32 product."""


def is_small_product(left_shape: Sequence[int], columns: int) -> bool:
    """True if a float32 product of ``left_shape`` with ``columns`` columns can run on the card."""
    return _terms_fit((*left_shape, max(columns, 1)), len(left_shape))


def _terms_fit(sizes: Sequence[int], lane: int) -> bool:
    """True if there is room for the terms of a float32 product in sticks along dim ``lane``."""
    return 4 * stored_elements(sizes, lane, 32) <= TERMS_BYTES


def product(builder: Lowering, left: Value, right: Value, dtype: str) -> Value:
    """left · right; in float32 as sums of products of columns with rows."""
    left, right = builder.convert(left, dtype), builder.convert(right, dtype)
    if dtype != "float32":
        return builder.matmul(left, right)
    rank = len(left.sizes)
    batch = broadcast_sizes([left.sizes[:-2], right.sizes[:-2]])
    sizes = (*batch, *left.sizes[-2:], right.sizes[-1])
    if not all(_terms_fit(sizes, lane) for lane in range(rank - 2, rank + 1)):
        left, right = _with_room_for_terms(builder, left, right, sizes)
    a, b = left.unsqueezed(rank), right.unsqueezed(rank - 2)
    products = builder.pointwise("mul", a, b)
    total = builder.reduce("sum", products, (rank - 1,))
    return total.reshaped((*total.sizes[: rank - 1], total.sizes[-1]))


def _with_room_for_terms(
    builder: Lowering, left: Value, right: Value, sizes: Ints
) -> tuple[Value, Value]:
    """The factors, in layouts that give the terms sticks along the columns if there is no room for
    them in sticks of the largest factor, as where K is few elements and most lanes are empty.
    """
    rank = len(left.sizes)
    if _terms_fit(sizes, result_lane((left.unsqueezed(rank), right.unsqueezed(rank - 2)), sizes)):
        return left, right
    return builder.with_lane(left, -1), builder.with_lane(right, rank - 1 if sizes[-1] > 1 else -1)


def added(
    builder: Lowering, bias: Value, left: Value, right: Value, dtype: str, beta: float, alpha: float
) -> Value:
    """beta · bias + alpha · left · right."""
    result = product(builder, left, right, dtype)
    if alpha != 1:
        result = builder.pointwise("mul", result, alpha)
    if beta == 0:
        return result
    bias = builder.convert(bias, dtype)
    if beta != 1:
        bias = builder.pointwise("mul", bias, beta)
    return builder.pointwise("add", result, bias)


# --- kernels -------------------------------------------------------------------------------------


def _matmul(args: Arguments) -> torch.Tensor:
    left, right = args.inputs
    sizes = (*left.shape[:-1], right.shape[-1])
    if not (left.numel() and right.numel()):
        return fill_number(args.out, sizes, 0.0)
    return fill("matmul", product, args.inputs, (name_of(args.out.dtype),), args.out, sizes)


def _addmm(args: Arguments) -> torch.Tensor:
    bias, left, right = args.inputs
    sizes = (*left.shape[:-1], right.shape[-1])
    if left.numel() and right.numel():
        return fill("addmm", added, args.inputs, _factors(args), args.out, sizes)
    scaled = bias * args.beta if args.beta else None  # in place, out is the bias
    out = fill_number(args.out, sizes, 0.0)
    return out if scaled is None else out.copy_(scaled)


def _factors(args: Arguments) -> tuple[str, float, float]:
    return name_of(args.out.dtype), float(args.beta), float(args.alpha)


def _added_vector(
    builder: Lowering, bias: Value, left: Value, right: Value, dtype: str, beta: float, alpha: float
) -> Value:
    """beta · bias + alpha · left · right of a matrix and a vector."""
    column = right.unsqueezed(1)
    bias = bias.unsqueezed(len(bias.sizes))  # a number may be the bias of all rows
    result = added(builder, bias, left, column, dtype, beta, alpha)
    return result.reshaped(result.sizes[:1])


def _addmv(args: Arguments) -> torch.Tensor:
    """aten::addmv.out; with ``beta`` 0 the bias may have no memory."""
    bias = args.mat[:, 0] if args.beta == 0 else args.self
    operands, sizes = [bias, args.mat, args.vec], args.mat.shape[:1]
    return fill("addmv", _added_vector, operands, _factors(args), args.out, sizes)


def _scaled_product(builder: Lowering, left: Value, right: Value, *args: Any) -> Value:
    """left · rightᵀ of 8-bit floats, times both scales, plus a bias if there is one."""
    first, second, *bias, dtype = args
    result = builder.convert(builder.packed_product(left, right), "float32")
    for scale in (first, second):
        result = builder.pointwise("mul", result, scale)
    if bias:
        result = builder.pointwise("add", result, builder.convert(bias[0], "float32"))
    return builder.convert(result, dtype)


def scaled_mm(args: Arguments) -> torch.Tensor:
    """aten::_scaled_mm of e4m3 factors, on the matrix units."""
    left, dtype = args.self, args.out_dtype
    right = args.mat2.t().contiguous()
    scales = (s.reshape(()) if s.numel() == 1 else s for s in (args.scale_a, args.scale_b))
    operands = [left, right, *scales, *([] if args.bias is None else [args.bias])]
    (out,) = args.results or [left.new_empty((len(left), len(right)), dtype=dtype)]
    return fill("scaled_mm", _scaled_product, operands, (name_of(dtype),), out, out.shape)


def _can_scale(args: Arguments) -> bool:
    a, b = args.self, args.mat2
    scales = ((args.scale_a, (len(a), 1)), (args.scale_b, (1, b.shape[1])))
    return (
        a.shape[1] == b.shape[0]
        and all(s.numel() == 1 or s.shape == sizes for s, sizes in scales)
        and (args.bias is None or args.bias.shape == b.shape[1:])
        and all(out.shape == (len(a), b.shape[1]) for out in args.results)
    )


def _inner(builder: Lowering, left: Value, right: Value, dtype: str) -> Value:
    products = builder.pointwise("mul", builder.convert(left, dtype), builder.convert(right, dtype))
    return builder.reduce("sum", products, (0,)).reshaped(())


def dot(args: Arguments) -> torch.Tensor:
    out = torch.empty((), dtype=args.self.dtype, device=args.self.device)
    return fill("dot", _inner, args.inputs, (name_of(out.dtype),), out)


def solve_triangular(args: Arguments) -> torch.Tensor:
    """aten::linalg_solve_triangular: a product with the inverse."""
    lower = args.self.mT if args.upper else args.self
    inverse = _inverse_of_lower(lower, args.unitriangular)
    inverse = inverse.mT if args.upper else inverse
    found = inverse @ args.B if args.left else args.B @ inverse
    if not args.results:
        return found.mT.contiguous().mT  # by columns, as torch's
    out: torch.Tensor = args.results[0]
    if out.shape != found.shape:
        out.resize_(found.mT.shape).transpose_(-2, -1)
    return out.copy_(found)


def _inverse_of_lower(x: torch.Tensor, has_ones: bool) -> torch.Tensor:
    """The inverse of triangles, from blocks of one element to twice as many rows at a time, all
    pairs of blocks at once: of blocks A, 0, C, D it is A⁻¹, 0, -D⁻¹ C A⁻¹, D⁻¹. Rows up to a power
    of two are those of a unit matrix.
    """
    extent, diagonal = x.shape[-1], x.diagonal(dim1=-2, dim2=-1)
    missing = (1 << (extent - 1).bit_length()) - extent
    x = torch.nn.functional.pad(x, (0, missing, 0, missing))
    diagonal = torch.ones_like(diagonal) if has_ones else 1 / diagonal
    diagonal = torch.nn.functional.pad(diagonal, (0, missing), value=1.0)
    blocks = diagonal.unsqueeze(-1).unsqueeze(-1)
    while (count := blocks.shape[-3]) > 1:
        half = blocks.shape[-1]
        first, second = blocks[..., ::2, :, :], blocks[..., 1::2, :, :]
        pairs = x.unflatten(-1, (count // 2, -1)).unflatten(-3, (count // 2, -1))
        pairs = pairs.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        below = -(second @ pairs[..., half:, :half] @ first)
        above = torch.zeros_like(below)
        upper, lower = torch.cat([first, above], -1), torch.cat([below, second], -1)
        blocks = torch.cat([upper, lower], -2)
    return blocks[..., 0, :extent, :extent]


def _is_small(left: str, right: str, args: Arguments) -> bool:
    """A result of 16-bit floats, or a float32 product whose terms have room."""
    if args.out.dtype is not torch.float32:
        return True
    factor, columns = getattr(args, left), getattr(args, right)
    return is_small_product(factor.shape, 1 if columns.dim() == 1 else columns.shape[-1])


def _is_product(left: str, right: str, args: Arguments) -> bool:
    """The factors agree, their product can run on the card, and a bias broadcasts to it."""
    a, b = getattr(args, left), getattr(args, right)
    agree = a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
    if not (agree and _is_small(left, right, args)):
        return False
    return len(args.inputs) < 3 or _broadcasts(args.self, (*a.shape[:-1], b.shape[-1]))


def _broadcasts(x: torch.Tensor, sizes: Sequence[int]) -> bool:
    pairs = zip(reversed(x.shape), reversed(sizes), strict=False)
    return x.dim() <= len(sizes) and all(n in (1, m) for n, m in pairs)


_PRODUCTS = (
    ("mm.out", "self", "mat2", 2, _matmul),
    ("bmm.out", "self", "mat2", 3, _matmul),
    ("addmm.out", "mat1", "mat2", 2, _addmm),
    ("baddbmm.out", "batch1", "batch2", 3, _addmm),
)
_ADDMV = Conditions(
    dtypes={"mat": FLOATS, "vec": FLOATS, "out": FLOATS},
    same_dtype=("mat", "vec", "out"),
    ranks={"self": (0, 1), "mat": (2,), "vec": (1,)},
    nonempty=("mat", "vec"),
    check=lambda args: (
        args.mat.shape[1] == args.vec.shape[0]
        and _is_small("mat", "vec", args)
        and _broadcasts(args.self, args.mat.shape[:1])
    ),
)
_EIGHT_BITS = (torch.float8_e4m3fn,)
_SCALED = Conditions(
    dtypes={
        **dict.fromkeys(("self", "mat2"), _EIGHT_BITS),
        **dict.fromkeys(("scale_a", "scale_b"), (torch.float32,)),
        "bias": FLOATS,
        "results": FLOATS,
    },
    same_device=("inputs",),
    ranks={"self": (2,), "mat2": (2,)},
    nonempty=("inputs",),
    values={"out_dtype": FLOATS, "scale_result": (None,)},
    check=_can_scale,
)
_DOT = Conditions(
    dtypes={"self": FLOATS},
    same_dtype=("inputs",),
    ranks={"inputs": (1,)},
    nonempty=("self",),
    check=lambda args: len({t.shape for t in args.inputs}) == 1,
)
_SOLVED = Conditions(
    dtypes={"inputs": (torch.float32,), "results": (torch.float32,)},
    same_device=("inputs",),
    nonempty=("inputs",),
    check=lambda args: is_small_product(args.self.shape, args.B.shape[-1 if args.left else -2]),
)


def attention(builder: Lowering, q: Value, k: Value, v: Value, *args: Any) -> Value:
    """softmax(q·kᵀ·scale + mask)·v, [.., heads, rows, width]; rows that see nothing become 0. In
    products dims [.., heads / groups, groups, rows, width].

    ``rest``: masks as values, then their kinds ("add" or "keep"), scale and dtype.
    """
    *masks, kinds, scale, dtype = args
    q, k, v = (builder.convert(x, dtype) for x in (q, k, v))
    groups = q.sizes[-3] // k.sizes[-3]
    *outer, heads, rows, width = q.sizes
    q5 = q.reshaped((*outer, heads // groups, groups, rows, width))
    k5, v5 = k.unsqueezed(len(k.sizes) - 2), v.unsqueezed(len(v.sizes) - 2)
    last = len(k5.sizes)
    scores = product(builder, q5, k5.transposed(last - 2, last - 1), dtype)
    scores = builder.pointwise("mul", scores, scale)
    for kind, mask in zip(kinds, masks, strict=True):
        mask = builder.convert(_mask_view(mask, q, groups), dtype)
        if kind == "add":
            scores = builder.pointwise("add", scores, mask)
        else:
            scores = builder.pointwise("where3", mask, scores, -inf)
    output = product(builder, _safe_softmax(builder, scores), v5, dtype)
    return output.reshaped((*q.sizes[:-1], v.sizes[-1]))


def _mask_view(mask: Value, q: Value, groups: int) -> Value:
    """A mask in as many dims as the scores."""
    for _ in range(len(q.sizes) - len(mask.sizes)):
        mask = mask.unsqueezed(0)
    *outer, heads, rows, columns = mask.sizes
    if heads == 1:
        return mask.unsqueezed(len(mask.sizes) - 2)
    return mask.reshaped((*outer, heads // groups, groups, rows, columns))


def _safe_softmax(builder: Lowering, x: Value) -> Value:
    term, dims = Term(builder, x), (len(x.sizes) - 1,)
    top = term.reduce("max", dims)
    seen = top > -inf
    powers = (term - seen.chosen(top, 0.0)).exp()
    return (powers / seen.chosen(powers.reduce("sum", dims), 1.0)).value


# --- kernels -------------------------------------------------------------------------------------


_FUSED = "_scaled_dot_product_fused_attention_overrideable"


def scaled_dot_product_attention(*positional: Any, **named: Any) -> torch.Tensor:
    """aten::scaled_dot_product_attention: ATen asks no device in Python which way to take."""
    args = bind(signature_of("scaled_dot_product_attention"), positional, named)
    options = (args.attn_mask, args.is_causal, args.scale, args.enable_gqa)
    given = (args.query, args.key, args.value, *options)
    if args.dropout_p or not is_plain_call(given):
        return _attended(args)
    with interrupts:
        return repeated(_FUSED, given, lambda: (_attended(args),))[0]


def _attended(args: Arguments) -> torch.Tensor:
    q, k, v, mask, scale = args.query, args.key, args.value, args.attn_mask, args.scale
    if FUSED.hold(args):
        fused = getattr(torch.ops.aten, _FUSED)
        output: torch.Tensor = fused(q, k, v, mask, 0.0, args.is_causal, False, scale=scale)[0]
        return output
    # without dropout, which would draw random numbers of the CPU
    checked = (q, k, v, mask, 0.0, args.is_causal)
    options = {"scale": scale, "enable_gqa": args.enable_gqa}
    op = operator("scaled_dot_product_attention")
    if is_fake(q):
        metas = [None if t is None else torch.empty_like(t, device="meta") for t in checked[:4]]
        op(*metas, *checked[4:], **options)  # for torch's errors
        return _composed_attention(args)
    kernel = _COMPOSED.kernel_for(op, args, checked, options) or _composed_attention
    composed: torch.Tensor = kernel(args)
    return composed


def _composed_attention(args: Arguments) -> torch.Tensor:
    """ATen's composition of other operations."""
    math = torch.ops.aten._scaled_dot_product_attention_math
    options = {"scale": args.scale, "enable_gqa": args.enable_gqa}
    tensors = (args.query, args.key, args.value, args.attn_mask)
    plain: torch.Tensor = math(*tensors, args.dropout_p, args.is_causal, **options)[0]
    return plain


_COMPOSED = replace(one_launch("composed", (), _composed_attention), is_checked=True)


def _agree(args: Arguments) -> bool:
    """One batch, width and length of keys and values, heads that divide if they may, a mask for all
    scores, and in float32 few enough terms.
    """
    q, k, v, mask = args.query, args.key, args.value, args.attn_mask
    groups = q.shape[1] % k.shape[1] == 0 if args.enable_gqa else q.shape[1] == k.shape[1]
    if not (groups and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]):
        return False
    if k.shape[:3] != v.shape[:3] or (mask is not None and args.is_causal):
        return False
    if mask is not None:
        scores = (*q.shape[:3], k.shape[2])
        if mask.dtype not in (torch.bool, torch.float32, q.dtype) or mask.device != q.device:
            return False
        if mask.dim() < 2 or not _broadcasts(mask, scores):
            return False
    return q.dtype is not torch.float32 or is_small_product(q.shape, k.shape[-2])


_QKV = ("query", "key", "value")
FUSED = Conditions(
    dtypes={"query": FLOATS},
    same_dtype=_QKV,
    nonempty=_QKV,
    ranks=dict.fromkeys(_QKV, (4,)),
    values={"dropout_p": (0.0,)},
    check=_agree,
)
"""Attention that one program computes."""


def fused_attention(args: Arguments) -> tuple[Any, ...]:
    q, k, v = operands = [args.query, args.key, args.value]
    kinds = []
    if args.attn_bias is not None:
        operands.append(args.attn_bias)
        kinds.append("keep" if args.attn_bias.dtype is torch.bool else "add")
    if args.is_causal:
        operands.append(causal_mask(q, k))
        kinds.append("keep")
    parameters = (tuple(kinds), _scale_of(q, args.scale), name_of(q.dtype))
    output = call(_ATTENTION, operands, *parameters, out=_ordered_as(q, v.shape[-1]))
    empty = allocate((0,), (1,), torch.float32, q.device.index)
    counts = torch.empty(0, dtype=torch.int64, device="cpu")
    lengths = (q.shape[-2], k.shape[-2])
    return (output, empty, counts, counts, *lengths, counts, counts, empty)


_ATTENTION = one_launch(
    "scaled_dot_product_attention",
    ("operands", "kinds", "scale", "dtype"),
    lambda args: fill(
        "attention", attention, args.operands, (args.kinds, args.scale, args.dtype), args.out
    ),
)


def _ordered_as(q: torch.Tensor, width: int) -> torch.Tensor:
    """A new tensor for the output, dims in memory in the order of ``q``'s: as torch expects it, so
    that heads which were a view of rows can be viewed as rows again.
    """
    order = sorted(range(q.dim()), key=q.stride().__getitem__, reverse=True)
    sizes = (*q.shape[:-1], width)
    if current_recorder() is None:
        strides = contiguous_strides([sizes[k] for k in order])
        in_order = [strides[order.index(k)] for k in range(q.dim())]
        return allocate(sizes, in_order, q.dtype, q.device.index)
    made = torch.empty([sizes[k] for k in order], dtype=q.dtype, device=q.device)
    return made.permute([order.index(k) for k in range(q.dim())])


def fused_attention_backward(args: Arguments) -> tuple[torch.Tensor | None, ...]:
    """Gradients of q, k, v and the bias; the scores are computed again."""
    q, k, v, grad, attn_bias = args.query, args.key, args.value, args.grad_out, args.attn_bias
    groups, factor = q.shape[-3] // k.shape[-3], _scale_of(q, args.scale)
    keys, values = (t.repeat_interleave(groups, -3) if groups > 1 else t for t in (k, v))
    scores = q @ keys.transpose(-2, -1) * factor
    if attn_bias is not None:
        scores = _with_bias(scores, attn_bias)
    if args.is_causal:
        scores = _with_bias(scores, causal_mask(q, k))
    weights = torch.softmax(scores, -1)
    grad_values = weights.transpose(-2, -1) @ grad
    grad_weights = grad @ values.transpose(-2, -1)
    inner = (grad_weights * weights).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - inner)
    grad_q = grad_scores @ keys * factor
    grad_keys = grad_scores.transpose(-2, -1) @ q * factor
    grad_k, grad_v = grad_keys, grad_values
    if groups > 1:  # of repeated heads, added up
        heads = (k.shape[-3], groups)
        grad_k, grad_v = (g.unflatten(-3, heads).sum(-3) for g in (grad_k, grad_v))
    bias = None
    if attn_bias is not None and args.grad_input_mask[3]:
        bias = grad_scores.sum_to_size(attn_bias.shape)
    return grad_q, grad_k, grad_v, bias


def _with_bias(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    if bias.dtype is torch.bool:
        return torch.where(bias, scores, float("-inf"))
    return scores + bias


def _scale_of(q: torch.Tensor, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5 if scale is None else scale)


def causal_mask(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A bool tensor, true where a row of ``q`` sees a row of ``k``: on and below the diagonal."""
    return triangle(q.shape[-2], k.shape[-2], 0, True, q.device)


def native_attention(args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::_native_multi_head_attention: nn.MultiheadAttention without gradients.

    ``mask``: true where nothing is seen; of [rows, columns], [batch, columns] (``mask_type`` 1) or
    all four dims.
    """
    heads, weights, biases = args.num_head, args.qkv_weight.chunk(3), args.qkv_bias.chunk(3)
    columns = zip((args.query, args.key, args.value), weights, biases, strict=True)
    q, k, v = (linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in columns)
    seen = None
    if args.mask is not None:
        seen = ~args.mask.bool()
        seen = seen[:, None, None] if args.mask_type == 1 else seen
    attention_weights = args.query.new_empty(0)
    if seen is None and not args.need_weights:
        output = scaled_dot_product_attention(q, k, v)
    else:  # rows that see nothing are NaN here, unlike those of scaled_dot_product_attention
        scores = q @ k.transpose(-2, -1) * _scale_of(q, None)
        if seen is not None:
            scores = _with_bias(scores, seen)
        attention_weights = torch.softmax(scores, -1)
        output = attention_weights @ v
        if args.average_attn_weights:
            attention_weights = attention_weights.mean(1)
    output = output.transpose(1, 2).flatten(-2)
    return linear(output, args.proj_weight, args.proj_bias), attention_weights


def encoder_layer(args: Arguments) -> torch.Tensor:
    """aten::_transformer_encoder_layer_fwd: nn.TransformerEncoderLayer without gradients."""

    def attended(x: torch.Tensor) -> torch.Tensor:
        named = {"query": x, "key": x, "value": x, "num_head": args.num_heads}
        named |= {"need_weights": False, "average_attn_weights": False}
        return native_attention(Arguments(**{**vars(args), **named}))[0]

    def fed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = linear(x, args.ffn_weight_1, args.ffn_bias_1)
        inner = torch.nn.functional.gelu(inner) if args.use_gelu else torch.relu(inner)
        return linear(inner, args.ffn_weight_2, args.ffn_bias_2)

    def normed(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.layer_norm(x, [x.shape[-1]], weight, bias, args.eps)

    first, last = ((args.norm_weight_1, args.norm_bias_1), (args.norm_weight_2, args.norm_bias_2))
    x: torch.Tensor = args.src
    if args.norm_first:
        x = x + attended(normed(x, *first))
        return x + fed_forward(normed(x, *last))
    x = normed(x + attended(x), *first)
    return normed(x + fed_forward(x), *last)


COMPOSITES: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": scaled_dot_product_attention,
    **{name: partial(call_composite, name) for name in ("linear", "matmul")},
}
"""Operations made of others, with gradients of those; by aten name."""

WITHOUT_CPU = (_FUSED, "_fused_sdp_choice", f"{_FUSED}_backward")
"""Operators that no other device has a kernel for."""

KERNELS = (
    *(
        row(
            kernel,
            name,
            dtypes={"inputs": FLOATS, "out": FLOATS},
            same_dtype=("inputs", "out"),
            ranks={left: (rank,), right: (rank,)},
            check=partial(_is_product, left, right),
        )
        for name, left, right, rank, kernel in _PRODUCTS
    ),
    *((f"linalg_solve_triangular{kind}", solve_triangular, _SOLVED) for kind in ("", ".out")),
    ("addmv.out", _addmv, _ADDMV),
    *((f"_scaled_mm{kind}", scaled_mm, _SCALED) for kind in ("", ".out")),
    ("dot", dot, _DOT),
    ("vdot", dot, _DOT),
    (_FUSED, fused_attention, None),
    ("_fused_sdp_choice", lambda _: int(SDPBackend.OVERRIDEABLE.value), FUSED),
    ("_fused_sdp_choice", lambda _: int(SDPBackend.MATH.value), None),
    (f"{_FUSED}_backward", fused_attention_backward, None),
    (
        "_native_multi_head_attention",
        native_attention,
        Conditions(dtypes={"query": FLOATS}, ranks={"query": (3,)}, nonempty=("query",)),
    ),
    (
        "_transformer_encoder_layer_fwd",
        encoder_layer,
        Conditions(dtypes={"src": FLOATS}, ranks={"src": (3,)}, nonempty=("src",)),
    ),
)
