"""Autocast on the device: the dtype of each operation.

The lists are torch's for backends (ATen/autocast_mode.h of 2.13), with cat, stack and the ban of
binary_cross_entropy as for CUDA. Other operations run in the dtypes of their arguments. Weights are
cast at every use; casts are not cached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map

from spyre.torch_backend.compat import operator, without_autocast
from spyre.torch_backend.registration.library import register_under

LOWER_PRECISION = (
    *("_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "convolution"),
    *("prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot"),
    *("linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell"),
    *("rnn_tanh_cell", "rnn_relu_cell", "_scaled_dot_product_flash_attention"),
    "scaled_dot_product_attention",
)
"""Arguments are cast to the dtype autocast was entered with."""

FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "softplus"),
    *("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm"),
    *("frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity"),
    *("poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d"),
    *("hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss"),
    *("triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits"),
    *("dist", "pdist", "cdist", "renorm", "logsumexp"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa"),
    *("upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa"),
)
"""Arguments are cast to float32."""

FLOAT32_RESULT = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum"),
    *("linalg_vector_norm", "linalg_matrix_norm", "linalg_matrix_norm.str_ord"),
    *("sum", "sum.dim_IntList"),
)
"""Computed in float32 through their dtype argument, unless the caller passes one."""

FLOAT32_NORMS = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""By overload, the one that also takes a dtype."""

PROMOTED = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler"),
    *("index_put", "tensordot", "scatter_add", "cat", "stack"),
)
"""Arguments are cast to float32 if one of them is float32, else not at all."""

BANNED = "binary_cross_entropy"

Kernel = Callable[..., Any]

_lock = threading.Lock()
_is_registered = False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes autocast may cast to; ``torch.autocast("spyre")`` calls this first."""
    register_casts()
    return [torch.float16, torch.bfloat16]


def register_casts(without: Collection[str] = ()) -> None:
    """Register the autocast kernels, once. This happens with the first tensor, because autocast can
    be enabled without a call into this package, and takes too long for ``import torch``.

    ``without``: operations to leave out.
    """
    global _is_registered
    with _lock:
        if not _is_registered:
            _register(without)
            _is_registered = True


def _register(without: Collection[str]) -> None:
    kernels: dict[str, Kernel] = {
        name: _casting(name, lambda _: torch.get_autocast_dtype("spyre"))
        for name in LOWER_PRECISION
    }
    kernels |= {name: _casting(name, lambda _: torch.float32) for name in FLOAT32}
    kernels |= {name: _casting(name, _widest) for name in PROMOTED}
    kernels |= {name: _computing_in_float32(name, name) for name in FLOAT32_RESULT}
    kernels |= {name: _computing_in_float32(name, other) for name, other in FLOAT32_NORMS.items()}
    kernels[BANNED] = _banned
    wanted = {name: kernels[name] for name in kernels if name not in without}
    register_under("AutocastPrivateUse1", wanted)


def _casting(name: str, choose: Callable[[Any], torch.dtype]) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = choose((args, kwargs))

        def cast(value: Any) -> Any:
            return value.to(dtype) if _is_eligible(value) else value

        with without_autocast():
            return operator(name)(*tree_map(cast, args), **tree_map(cast, kwargs))

    return kernel


def _computing_in_float32(name: str, with_dtype: str) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            values = (*args, kwargs.get("dtype"))
            has_dtype = any(isinstance(value, torch.dtype) for value in values)
            if has_dtype or not _is_eligible(args[0]):
                return operator(name)(*args, **kwargs)
            return operator(with_dtype)(*args, **kwargs, dtype=torch.float32)

    return kernel


def _banned(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. "
        "Use torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss"
    )


def _is_eligible(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "spyre"
        and value.is_floating_point()
    )


def _widest(arguments: Any) -> torch.dtype:
    dtypes = {value.dtype for value in tree_iter(arguments) if _is_eligible(value)}
    if len(dtypes) == 1:
        return dtypes.pop()
    return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("spyre")
