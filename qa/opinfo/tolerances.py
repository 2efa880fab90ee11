"""Bounds of the difference between a result of the device and the CPU's in float32.

An element passes when ``|actual - reference| <= atol + rtol·|reference| + E + C``:

- ``E`` is the part that the format causes (:mod:`.stored`): ``native`` times the error of the CPU
  when it computes in the dtype under test from the same inputs and stores every intermediate
  result in the device's format, as long as that is at most a quarter of the value. An element
  within ``atol + rtol`` of that CPU result passes too.
- ``C`` is ``condition`` times the change of the float32 result when every float input changes by
  half a unit in the last place of the format (the largest of several fixed changes). Only
  operators in :data:`OVERRIDES` have it, those that add many rounded terms, cancel or amplify,
  and gradients. If a float32 result or a gradient exceeds the bound, float64 decides: it becomes
  the reference, and ``C`` is at least ``condition`` times the largest error of the CPU.

Results that are not floats must be equal to the float32 result or to the CPU's in the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

DL16_STEP = 2.0**-9
"""Relative distance of neighbouring DL16 numbers, which have 9 fraction bits."""
DL16_MAX = 8.57e9
"""Largest DL16 number, cut; larger bfloat16 numbers have no device value (Runtime reference §2)."""


@dataclass(frozen=True)
class Tolerance:
    """Terms of the module's bound. ``step``: relative change of inputs for ``C``."""

    rtol: float
    atol: float
    native: float = 0.0
    condition: float = 0.0
    step: float = 0.0


@dataclass(frozen=True)
class Override:
    """Additional tolerance of an operator: number of successive roundings, and ``condition``.

    ``atol``: instead of the dtype's, for 16-bit dtypes.
    """

    roundings: float
    condition: float
    why: str
    atol: float | None = None


DEFAULTS = {
    torch.float32: Tolerance(rtol=1.3e-6, atol=1e-5, step=2.0**-23),
    torch.float16: Tolerance(rtol=DL16_STEP, atol=2.0**-20, native=2.0, step=DL16_STEP / 2),
    torch.bfloat16: Tolerance(rtol=4 * DL16_STEP, atol=2.0**-20, native=2.0, step=DL16_STEP / 2),
}
DEFAULT_REASONS = {
    torch.float32: "torch.testing's defaults",
    torch.float16: "one DL16 step: two roundings of half a step, of the result and on the way back",
    torch.bfloat16: "one bfloat16 step and one DL16 step, rounded up",
}

_SUMS = "adds rounded products or terms, which may cancel"
_NORM = "squares, sums and roots: every step is rounded"
_EXP = "exp of a rounded difference turns its absolute into a relative error"
_BITS = "moves elements, computes nothing"

OVERRIDES: dict[str, Override] = {
    **dict.fromkeys(
        (
            "mm", "bmm", "addmm", "addmm/decomposed", "addmv", "baddbmm", "addbmm", "matmul",
            "__rmatmul__", "mv", "dot", "vdot", "inner", "einsum", "tensordot", "linalg.multi_dot",
            "nn.functional.linear", "nn.functional.bilinear", "nn.functional.conv1d",
            "nn.functional.conv2d", "nn.functional.conv3d", "nn.functional.conv_transpose1d",
            "nn.functional.conv_transpose2d", "nn.functional.conv_transpose3d", "sum", "mean",
            "masked.sum", "masked.mean", "cumsum", "nansum", "nanmean", "trace", "addr",
            "linalg.vecdot", "_softmax_backward_data", "gradient", "nn.functional.embedding_bag",
            "_unsafe_masked_index_put_accumulate",
        ),
        Override(1, 4, _SUMS),
    ),
    **dict.fromkeys(
        ("prod", "cumprod", "masked.prod", "masked.cumprod"),
        Override(4, 4, "a chain of rounded products"),
    ),
    **dict.fromkeys(
        (
            "logsumexp", "logcumsumexp", "masked.logsumexp", "masked.logaddexp", "log_softmax",
            "log_softmax/with_dtype", "masked.log_softmax", "nn.functional.cross_entropy",
        ),
        Override(4, 4, "log of a rounded sum near 1 has an absolute error", atol=2 * DL16_STEP),
    ),
    **dict.fromkeys(
        (
            "nn.functional.linear_cross_entropy", "nn.functional.linear_cross_entropy/chunked",
            "nn.functional.linear_cross_entropy/chunked_none",
        ),
        Override(4, 4, "difference of two rounded numbers up to 8", atol=4 * DL16_STEP),
    ),
    "nn.functional.gelu": Override(
        4, 4, "x / 2 · (1 + tanh): the stored tanh is near -1", atol=DL16_STEP
    ),
    **dict.fromkeys(
        ("nn.functional.binary_cross_entropy_with_logits", "nn.functional.poisson_nll_loss"),
        Override(4, 4, "difference of rounded numbers up to 16", atol=8 * DL16_STEP),
    ),
    "Muon": Override(4, 4, "orthogonalises in bfloat16"),
    "cov": Override(4, 4, "products of differences, divided by a difference of weights"),
    **dict.fromkeys(
        (
            "softmax", "softmax/with_dtype",
            "nn.functional.softmin", "nn.functional.softmin/with_dtype", "masked.softmax",
            "masked.softmin", "torch.ops.aten._safe_softmax.default",
            "nn.functional.scaled_dot_product_attention",
            "nn.functional.multi_head_attention_forward",
        ),
        Override(4, 4, _EXP),
    ),
    **dict.fromkeys(
        (
            "nn.functional.layer_norm", "native_layer_norm", "nn.functional.rms_norm",
            "nn.functional.batch_norm", "nn.functional.instance_norm", "native_batch_norm",
            "_native_batch_norm_legit", "_batch_norm_with_update",
            "nn.functional.group_norm", "native_group_norm", "nn.functional.normalize",
            "norm", "norm/fro", "linalg.norm", "linalg.vector_norm", "linalg.matrix_norm", "std",
            "std/unbiased", "var", "var/unbiased", "std_mean", "std_mean/unbiased", "var_mean",
            "var_mean/unbiased", "masked.var", "masked.std", "masked.norm",
            "nn.functional.cosine_similarity", "nn.functional.cosine_embedding_loss",
        ),
        Override(4, 4, _NORM),
    ),
    **dict.fromkeys(
        (
            "gather", "index_select", "__getitem__", "cat", "stack",
            "hstack", "vstack", "narrow", "select", "slice", "split", "split/list_args", "chunk",
            "unbind", "transpose", "permute", "t", "T", "contiguous", "clone", "expand", "reshape",
            "view", "squeeze", "unsqueeze", "flatten", "movedim", "where", "tril", "triu", "flip",
            "slice_scatter", "select_scatter", "masked_select", "take_along_dim", "ones", "zeros",
            "zeros_like", "ones_like", "diagonal", "unfold", "repeat", "alias_copy",
        ),
        Override(0, 0, _BITS, atol=0.0),
    ),
}  # fmt: skip
"""Operators with a larger or smaller tolerance than their dtype's, with the reason."""


GRADIENT = Override(4, 4, "a chain of rounded operations, which sum and amplify")
"""Least tolerance of gradients."""


def tolerance_of(op: str, run: torch.dtype, result: torch.dtype, way: str = "forward") -> Tolerance:
    """Return the tolerance of ``op`` for results of dtype ``result`` in a run of dtype ``run``.

    The coarser of the two dtypes counts: float16 inputs make a float32 result inexact.
    """
    known = [DEFAULTS[dtype] for dtype in (run, result) if dtype in DEFAULTS]
    base = max(known, key=lambda tolerance: tolerance.rtol, default=DEFAULTS[torch.float32])
    extra = OVERRIDES.get(op)
    if way == "backward":
        extra = _coarser(extra)
    if extra is None:
        return base
    if extra.roundings == 0 and base.native == 0.0:
        return replace(base, rtol=0.0, atol=0.0)
    return replace(
        base,
        rtol=base.rtol * extra.roundings,
        atol=base.atol if extra.atol is None or base.native == 0.0 else extra.atol,
        condition=extra.condition,
    )


def _coarser(known: Override | None) -> Override:
    """Return the larger of an operator's tolerance and that of gradients."""
    if known is None or known.roundings == 0:
        return GRADIENT
    return replace(
        known,
        roundings=max(known.roundings, GRADIENT.roundings),
        condition=max(known.condition, GRADIENT.condition),
    )


def limit_of(result: torch.dtype) -> float:
    """Return the magnitude from which a result of the dtype may come back as NaN or infinity."""
    if result is torch.float16:
        return float(torch.finfo(result).max) * (1 - DL16_STEP)
    return DL16_MAX if result is torch.bfloat16 else float("inf")


def is_sixteen_bit(dtype: torch.dtype) -> bool:
    """Return True if the device stores the dtype as DL16, with one code for infinity and NaN."""
    return dtype in (torch.float16, torch.bfloat16)
