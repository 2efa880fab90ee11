"""All eager operations, registered when the first tensor is made on the card."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

from spyre.torch_backend.compat import operator, schema_of
from spyre.torch_backend.eager import (
    activations,
    attention,
    boolean,
    cat,
    convolution,
    elementwise,
    factories,
    indexing,
    integers,
    losses,
    masks,
    matmul,
    normalisation,
    pooling,
    recurrent_layers,
    reductions,
    scatter,
    sorting,
)
from spyre.torch_backend.eager.dispatch import (
    ANY,
    FLOAT,
    ArgumentClass,
    EagerKernel,
    EagerOperation,
    FunctionalVariant,
    always,
    call,
    call_functional,
    never,
)
from spyre.torch_backend.eager.overlap import OverlapRule
from spyre.torch_backend.registration import register_casts, register_composites, register_kernels

MODULES: tuple[ModuleType, ...] = (
    attention,
    factories,
    elementwise,
    reductions,
    matmul,
    convolution,
    pooling,
    normalisation,
    cat,
    indexing,
    scatter,
    sorting,
    masks,
    activations,
    losses,
    boolean,
    integers,
)
"""Modules with a table ``KERNELS``."""

FUNCTIONAL_VARIANTS = {
    "add.Tensor": "add.out",
    "sub.Tensor": "sub.out",
    "mul.Tensor": "mul.out",
    "div.Tensor": "div.out",
    "maximum": "maximum.out",
    "minimum": "minimum.out",
    "exp": "exp.out",
    "sqrt": "sqrt.out",
    "rsqrt": "rsqrt.out",
    "reciprocal": "reciprocal.out",
    "sigmoid": "sigmoid.out",
    "tanh": "tanh.out",
    "silu": "silu.out",
    "gelu": "gelu.out",
    "neg": "neg.out",
    "abs": "abs.out",
    "pow.Tensor_Scalar": "pow.Tensor_Scalar_out",
    "_softmax": "_softmax.out",
    "_log_softmax": "_log_softmax.out",
    "mm": "mm.out",
    "bmm": "bmm.out",
    "addmm": "addmm.out",
    "sum.dim_IntList": "sum.IntList_out",
    "mean.dim": "mean.out",
    "amax": "amax.out",
    "amin": "amin.out",
    "cat": "cat.out",
}
"""Functional variants and the ``out`` variants whose kernels they share: operations whose result
has the dtype of floating operands, and is contiguous if they are.
"""

ONE_LAUNCH = {
    *FUNCTIONAL_VARIANTS.values(),
    *(name for module in (elementwise, boolean, masks) for name in module.KERNELS),
    "index_copy.out",
}
"""Operations whose kernels do nothing but fill ``out``, as a rule by one launch."""

PRODUCTS = ("mm", "bmm", "addmm")
"""Those whose result is contiguous in any case: weights come transposed."""

FITS: dict[str, Callable[..., bool]] = {
    "mm": matmul.is_mm,
    "bmm": matmul.is_bmm,
    "addmm": matmul.is_addmm,
    "_softmax": normalisation.is_softmax,
    "_log_softmax": normalisation.is_softmax,
    "sum.dim_IntList": reductions.keeps_dtype,
    "mean.dim": reductions.keeps_dtype,
}
"""What ATen checks before it calls the ``out`` variants, by functional variant."""


@cache
def kernel_tables() -> dict[str, dict[ArgumentClass, EagerKernel]]:
    """The kernels of every operation by class of arguments, in the order they are asked."""
    tables: dict[str, dict[ArgumentClass, EagerKernel]] = {}
    for module in MODULES:
        for name, kernels in module.KERNELS.items():
            tables.setdefault(name, {}).update(kernels)
    order = list(ArgumentClass)
    return {
        name: dict(sorted(kernels.items(), key=lambda row: order.index(row[0])))
        for name, kernels in tables.items()
    }


@cache
def eager_kernels() -> dict[str, Callable[..., Any]]:
    """What runs every operation, by aten name."""
    tables = kernel_tables()
    functions: dict[str, Callable[..., Any]] = {}
    for name, kernels in tables.items():
        promoted = integers.PROMOTIONS.get(name)
        overload = None if name in attention.WITHOUT_CPU else operator(name)
        operation = EagerOperation(
            name,
            overload,
            tuple(kernels.values()),
            promoted,
            _overlap_check(name, overload),
            name in ONE_LAUNCH,
        )
        functions[name] = partial(call, operation)
    for name, out in FUNCTIONAL_VARIANTS.items():
        functions[name] = partial(call_functional, _functional_variant(name, tables[out]))
    return functions


def _overlap_check(name: str, op: Any) -> Callable[..., bool]:
    """Fills take whatever overlaps."""
    is_fill = name in factories.FILLS or name in masks.FILLS
    is_checked = op is not None and schema_of(op).is_mutable and not is_fill
    return OverlapRule(op).check if is_checked else never


def _functional_variant(name: str, table: dict[ArgumentClass, EagerKernel]) -> FunctionalVariant:
    op, kernel = operator(name), table[FLOAT] if FLOAT in table else table[ANY]
    tensors = sum(str(argument.type) == "Tensor" for argument in schema_of(op).arguments)
    return FunctionalVariant(op, kernel, FITS.get(name, always), tensors, name in PRODUCTS)


_registered = False


def register() -> None:
    global _registered
    if not _registered:
        _registered = True
        register_kernels(eager_kernels())
        register_composites({**attention.COMPOSITES, **recurrent_layers.COMPOSITES})
        register_casts()
