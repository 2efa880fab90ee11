"""Scaled dot-product attention as one program: masks, causal masks and grouped heads included.

Backward passes are made of other operations; dropout takes ATen's own way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend
from torch.nn.functional import linear

from spyre.layout import contiguous_strides
from spyre.torch_backend.eager.dispatch import (
    ANY,
    FLOATS,
    ArgumentClass,
    EagerKernel,
    call,
    fill,
    filling,
)
from spyre.torch_backend.eager.masks import triangle
from spyre.torch_backend.eager.matmul import is_small_product, product
from spyre.torch_backend.program import Lowering, Value, current_recorder
from spyre.torch_backend.tensors import allocate


def attention(low: Lowering, q: Value, k: Value, v: Value, *args: Any) -> Value:
    """softmax(q·kᵀ·scale + mask)·v, [.., heads, rows, width]; rows that see nothing become 0.

    ``rest``: masks as values, then their kinds ("add" or "keep"), scale and dtype.
    """
    *masks, kinds, scale, dtype = args
    q, k, v = (low.convert(x, dtype) for x in (q, k, v))
    groups = q.sizes[-3] // k.sizes[-3]
    q5, k5, v5 = _grouped(q, groups), k.unsqueezed(len(k.sizes) - 2), v.unsqueezed(len(v.sizes) - 2)
    last = len(k5.sizes)
    scores = product(low, q5, k5.transposed(last - 2, last - 1), dtype)
    scores = low.pointwise("mul", scores, low.constant(scale, dtype))
    for kind, mask in zip(kinds, masks, strict=True):
        scores = _masked(low, scores, _mask_view(mask, q, groups), kind, dtype)
    output = product(low, _safe_softmax(low, scores, dtype), v5, dtype)
    return output.reshaped((*q.sizes[:-1], v.sizes[-1]))


def _grouped(x: Value, groups: int) -> Value:
    """[.., heads, rows, width] as [.., heads / groups, groups, rows, width]."""
    *outer, heads, rows, width = x.sizes
    return x.reshaped((*outer, heads // groups, groups, rows, width))


def _mask_view(mask: Value, q: Value, groups: int) -> Value:
    """A mask in as many dims as the scores."""
    for _ in range(len(q.sizes) - len(mask.sizes)):
        mask = mask.unsqueezed(0)
    *outer, heads, rows, columns = mask.sizes
    if heads == 1:
        return mask.unsqueezed(len(mask.sizes) - 2)
    return mask.reshaped((*outer, heads // groups, groups, rows, columns))


def _masked(low: Lowering, scores: Value, mask: Value, kind: str, dtype: str) -> Value:
    mask = low.convert(mask, dtype)
    if kind == "add":
        return low.pointwise("add", scores, mask)
    return low.pointwise("where3", mask, scores, low.constant(float("-inf"), dtype))


def _safe_softmax(low: Lowering, x: Value, dtype: str) -> Value:
    dims = (len(x.sizes) - 1,)
    top = low.reduce("max", x, dims)
    seen = low.pointwise("greaterthan", top, low.constant(float("-inf"), dtype))
    top = low.pointwise("where3", seen, top, low.constant(0.0, dtype))
    terms = low.pointwise("exp", low.pointwise("sub", x, top))
    total = low.reduce("sum", terms, dims)
    total = low.pointwise("where3", seen, total, low.constant(1.0, dtype))
    return low.pointwise("realdiv", terms, total)


# --- kernels -------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """aten::scaled_dot_product_attention: ATen asks no device in Python which way to take."""
    if fits(q, k, v, dropout_p):
        fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
        output: torch.Tensor = fused(q, k, v, attn_mask, 0.0, is_causal, False, scale=scale)[0]
        return output
    math = torch.ops.aten._scaled_dot_product_attention_math
    arguments = (attn_mask, dropout_p, is_causal)
    plain: torch.Tensor = math(q, k, v, *arguments, scale=scale, enable_gqa=enable_gqa)[0]
    return plain


def fused_choice(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    *_: Any,
    **__: Any,
) -> int:
    """aten::_fused_sdp_choice: the number of the SDPBackend that computes such an attention."""
    choice = SDPBackend.OVERRIDEABLE if fits(q, k, v, dropout_p) else SDPBackend.MATH
    return int(choice.value)


def fits(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> bool:
    """True for what one program can do: floats in four dims, heads that divide, no dropout."""
    tensors = (q, k, v)
    if dropout or any(t.dim() != 4 or not t.numel() for t in tensors):
        return False
    if q.dtype not in FLOATS or len({t.dtype for t in tensors}) > 1:
        return False
    heads = k.shape[-3] == v.shape[-3] and q.shape[-3] % k.shape[-3] == 0
    small = q.dtype is not torch.float32 or is_small_product(q.shape, k.shape[-2])
    return heads and small and q.shape[0] == k.shape[0] == v.shape[0]


def fused_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """aten::_scaled_dot_product_fused_attention_overrideable."""
    operands, kinds = [q, k, v], []
    if attn_bias is not None:
        operands.append(attn_bias)
        kinds.append("keep" if attn_bias.dtype is torch.bool else "add")
    if is_causal:
        operands.append(causal_mask(q, k))
        kinds.append("keep")
    parameters = (tuple(kinds), _scale_of(q, scale), str(q.dtype).removeprefix("torch."))
    output = call(_ATTENTION, *operands, *parameters, out=_ordered_as(q, v.shape[-1]))
    empty = allocate((0,), (1,), torch.float32, q.device.index)
    counts = torch.empty(0, dtype=torch.int64, device="cpu")
    lengths = (q.shape[-2], k.shape[-2])
    return (output, empty, counts, counts, *lengths, counts, counts, empty)


def _fill_attention(*args: Any, out: torch.Tensor) -> torch.Tensor:
    *operands, kinds, scale, dtype = args
    return fill("attention", attention, operands, (kinds, scale, dtype), out)


_ATTENTION = filling("scaled_dot_product_attention", _fill_attention)


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


def fused_attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: list[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """aten::_scaled_dot_product_fused_attention_overrideable_backward: the scores again."""
    groups, factor = q.shape[-3] // k.shape[-3], _scale_of(q, scale)
    keys, values = (t.repeat_interleave(groups, -3) if groups > 1 else t for t in (k, v))
    scores = q @ keys.transpose(-2, -1) * factor
    if attn_bias is not None:
        scores = _with_bias(scores, attn_bias)
    if is_causal:
        mask = causal_mask(q, k)
        scores = torch.where(mask, scores, float("-inf"))
    weights = torch.softmax(scores, -1)
    grad_values = weights.transpose(-2, -1) @ grad
    grad_weights = grad @ values.transpose(-2, -1)
    inner = (grad_weights * weights).sum(-1, keepdim=True)
    grad_scores = weights * (grad_weights - inner)
    grad_q = grad_scores @ keys * factor
    grad_keys = grad_scores.transpose(-2, -1) @ q * factor
    grad_k, grad_v = (_summed(g, k, groups) for g in (grad_keys, grad_values))
    bias = None
    if attn_bias is not None and grad_input_mask[3]:
        bias = grad_scores.sum_to_size(attn_bias.shape)
    return grad_q, grad_k, grad_v, bias


def _with_bias(scores: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    if bias.dtype is torch.bool:
        return torch.where(bias, scores, float("-inf"))
    return scores + bias


def _summed(grad: torch.Tensor, like: torch.Tensor, groups: int) -> torch.Tensor:
    """Gradients of repeated heads, added up."""
    if groups == 1:
        return grad
    return grad.unflatten(-3, (like.shape[-3], groups)).sum(-3)


def _scale_of(q: torch.Tensor, scale: float | None) -> float:
    return float(q.shape[-1] ** -0.5 if scale is None else scale)


def causal_mask(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A bool tensor, true where a row of ``q`` sees a row of ``k``: on and below the diagonal."""
    return triangle(q.shape[-2], k.shape[-2], 0, True, q.device)


def native_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::_native_multi_head_attention, what nn.MultiheadAttention is without gradients.

    ``mask``: true where nothing is seen; of [rows, columns], [batch, columns] (``mask_type`` 1) or
    all four dims.
    """
    weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
    columns = zip((query, key, value), weights, biases, strict=True)
    q, k, v = (linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in columns)
    seen = None
    if mask is not None:
        seen = ~mask.bool()
        seen = seen[:, None, None] if mask_type == 1 else seen
    empty = query.new_empty(0)
    if not need_weights:
        output, attention_weights = scaled_dot_product_attention(q, k, v, seen), empty
    else:
        scores = q @ k.transpose(-2, -1) * _scale_of(q, None)
        if seen is not None:
            scores = torch.where(seen, scores, float("-inf"))
        attention_weights = torch.softmax(scores, -1)
        output = attention_weights @ v
        if average_attn_weights:
            attention_weights = attention_weights.mean(1)
    return linear(output.transpose(1, 2).flatten(-2), weight, bias), attention_weights


def encoder_layer(
    x: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    last_norm_weight: torch.Tensor,
    last_norm_bias: torch.Tensor,
    up_weight: torch.Tensor,
    up_bias: torch.Tensor,
    down_weight: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """aten::_transformer_encoder_layer_fwd: nn.TransformerEncoderLayer without gradients."""
    first, last = (norm_weight, norm_bias), (last_norm_weight, last_norm_bias)

    def attended(x: torch.Tensor) -> torch.Tensor:
        tensors = (qkv_weight, qkv_bias, weight, bias, mask)
        return native_attention(x, x, x, width, heads, *tensors, False, True, mask_type)[0]

    def fed_forward(x: torch.Tensor) -> torch.Tensor:
        inner = linear(x, up_weight, up_bias)
        inner = torch.nn.functional.gelu(inner) if use_gelu else torch.relu(inner)
        return linear(inner, down_weight, down_bias)

    def normed(x: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.layer_norm(x, [x.shape[-1]], *norm, eps)

    if norm_first:
        x = x + attended(normed(x, first))
        return x + fed_forward(normed(x, last))
    x = normed(x + attended(x), first)
    return normed(x + fed_forward(x), last)


def _is_plain(x: torch.Tensor, *_: Any, **__: Any) -> bool:
    """Floats in three dims."""
    return x.dtype in FLOATS and x.dim() == 3 and x.numel() > 0


COMPOSITES = {"scaled_dot_product_attention": scaled_dot_product_attention}
"""Operations made of others, with gradients of those; by aten name."""

_FUSED = "_scaled_dot_product_fused_attention_overrideable"

KERNELS: dict[str, dict[ArgumentClass, EagerKernel]] = {
    _FUSED: {ANY: EagerKernel(fused_attention)},
    "_fused_sdp_choice": {ANY: EagerKernel(fused_choice)},
    f"{_FUSED}_backward": {ANY: EagerKernel(fused_attention_backward)},
    "_native_multi_head_attention": {ANY: EagerKernel(native_attention, _is_plain)},
    "_transformer_encoder_layer_fwd": {ANY: EagerKernel(encoder_layer, _is_plain)},
}

WITHOUT_CPU = (_FUSED, "_fused_sdp_choice", f"{_FUSED}_backward")
"""Of these the ones that no other device has."""
