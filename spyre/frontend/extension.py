"""The replacement of ``torch_spyre._C``, and the kernels it registers with torch.

`EXPORTS` lists all its members. torch-spyre's Python renames PrivateUse1, sets its module and
registers most kernels; this module replaces the parts that are C++.
"""

from __future__ import annotations

import atexit
import dis
import gc
import sys
from types import ModuleType
from typing import Any, NoReturn

import torch

from spyre import __version__
from spyre.cli import compile_in_this_process
from spyre.frontend import (
    collectives,
    copies,
    device,
    formats,
    kernels,
    layout_solver,
    layouts,
    native_logging,
    tensors,
)
from spyre.frontend.formats import EXTENSION
from spyre.frontend.upstream import SUPPORTED
from spyre.torch_backend import compat
from spyre.torch_backend.device import reset
from spyre.torch_backend.observe import counting, profile, sanitizer_findings, trace
from spyre.torch_backend.registration import (
    FLOAT32_NORMS,
    FLOAT32_RESULT,
    pass_autocast,
    patches,
    register_casts,
    register_composites,
    register_kernels,
)

_OF_MODULES: dict[Any, tuple[str, ...]] = {
    formats: (
        *("DataFormats", "ElementArrangement", "SpyreStreamError", "SpyreDeviceState"),
        *("AIUPTI_ACTIVITY_NAME_MAX_BYTES", "encode_constant", "get_device_dtype"),
        *("get_elem_in_stick", "get_downcast_warning", "set_downcast_warning"),
    ),
    tensors: (
        *("spyre_empty_with_layout", "empty_with_layout", "as_strided_with_layout"),
        *("reinterpret_tensor", "reinterpret_tensor_with_layout"),
        *("get_spyre_tensor_layout", "set_spyre_tensor_layout"),
    ),
    copies: ("copy_tensor", "fill_tensor"),
    kernels: (
        *("prepare_kernel", "launch_jobplan"),
        *("extract_kernel_provenance_key", "register_kernel_provenance"),
        *("lookup_kernel_provenance", "kernel_provenance_registry_stats"),
    ),
}

EXPORTS: dict[str, Any] = {
    **{name: getattr(module, name) for module, names in _OF_MODULES.items() for name in names},
    **device.FUNCTIONS,
    "NativePermutationLayoutSolver": layout_solver.LayoutSolver,
    "SpyreTensorLayout": layouts.FrontendLayout,
    "JobPlan": kernels.PreparedKernel,
    "_SpyreStreamBase": device.FrontendStream,
    "createSpyreCCLBackend": collectives.create_backend,
    # Not the extension's: what the simulator has more, also as torch.spyre.NAME.
    "profile": profile,
    "trace": trace,
    "counting": counting,
    "sanitizer_findings": sanitizer_findings,
    "reset": reset,
}
"""Everything in the module, by name."""


def populate(module: ModuleType) -> None:
    """Make ``module`` the extension, and register its parts with torch; once per process."""
    vars(module).update(EXPORTS)
    module.__dict__["_logging"] = native_logging.make_module()
    module.__dict__["__getattr__"] = _unknown
    module.__doc__ = f"{EXTENSION} on the simulator: `docs/frontend.md` of spyre."
    _register()


def _unknown(name: str) -> NoReturn:
    """Raise ImportError or AttributeError, as who asks for the name expects."""
    if name == "__path__":  # Python asks for it at every ``from``, and needs no text
        raise AttributeError(name)
    problem = (
        f"{EXTENSION} of the simulator (spyre {__version__}) has no {name!r}; it is made for "
        f"{SUPPORTED}: python -m spyre.frontend check compares a checkout with it"
    )
    frame = sys._getframe(1)
    # Python replaces the text of an AttributeError by "unknown location" there.
    if frame.f_code.co_code[frame.f_lasti] == dis.opmap["IMPORT_FROM"]:
        raise ImportError(problem, name=EXTENSION)
    raise AttributeError(problem)


_NOT_CAST = (
    *("cat", "stack", "binary_cross_entropy", "_convolution.deprecated"),
    *("rms_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim"),
    *(*FLOAT32_RESULT, *FLOAT32_NORMS),
)
"""Operations that autocast of our own device handles, and torch-spyre's does not."""


_library = torch.library.Library("spyre", "FRAGMENT")


def _register() -> None:
    compat.register_guard()
    register_kernels(
        {
            **tensors.KERNELS,
            "_fused_sdp_choice": lambda *_, **__: torch.nn.attention.SDPBackend.OVERRIDEABLE.value,
            "record_stream": _record_stream,
        }
    )
    register_composites({"scaled_dot_product_attention": attention})
    pass_autocast()
    register_casts(without=_NOT_CAST)
    patches.install_named()
    compile_in_this_process()
    # Python looks for cycles at its end, which takes a second among what torch.compile has made.
    atexit.register(gc.freeze)
    for schema, kernel in collectives.OPERATORS.items():
        _library.impl(_library.define(schema), kernel, "PrivateUse1")


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """aten::scaled_dot_product_attention, always in one operation, as torch-spyre chooses.

    ATen asks for the choice in C++ only, and decomposes the operation for other devices.
    """
    bias = attn_mask
    if bias is not None and bias.dtype is torch.bool:
        nothing = torch.zeros_like(bias, dtype=query.dtype)
        bias = nothing.masked_fill(bias.logical_not(), float("-inf"))
    fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
    output: torch.Tensor = fused(query, key, value, bias, dropout_p, is_causal, scale=scale)[0]
    return output


def _record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """A launch keeps its memory until it has run."""
