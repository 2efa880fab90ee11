"""All eager operations, registered when the first tensor is made on the card."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

from spyre.torch_backend.compat import operator, schema_of
from spyre.torch_backend.device import is_random
from spyre.torch_backend.eager import (
    activations,
    convolution,
    elementwise,
    factories,
    indexing,
    integers,
    libraries,
    masks,
    matmul,
    normalisation,
    recurrent,
    reductions,
    scatter,
    windows,
)
from spyre.torch_backend.eager.dispatch import (
    Conditions,
    EagerOperation,
    FunctionalVariant,
    Kernel,
    call,
    call_functional,
    signature_of,
)
from spyre.torch_backend.eager.overlap import overlap_check
from spyre.torch_backend.registration import register_casts, register_composites, register_kernels

MODULES: tuple[ModuleType, ...] = (
    *(factories, elementwise, reductions, matmul, convolution, windows, normalisation, indexing),
    *(scatter, masks, activations, integers),
)
"""Modules with a table ``KERNELS``."""

_FUNCTIONS = ("exp", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "silu", "gelu", "neg", "abs")
FUNCTIONAL_VARIANTS = {
    **{f"{name}.Tensor": f"{name}.out" for name in ("add", "sub", "mul", "div")},
    **{name: f"{name}.out" for name in ("maximum", "minimum", *_FUNCTIONS)},
    "pow.Tensor_Scalar": "pow.Tensor_Scalar_out",
    **{name: f"{name}.out" for name in ("_softmax", "_log_softmax", "mm", "bmm", "addmm")},
    "sum.dim_IntList": "sum.IntList_out",
    "mean.dim": "mean.out",
    **{name: f"{name}.out" for name in ("amax", "amin", "cat")},
}
"""Functional variants and the ``out`` variants whose kernels they share: operations whose result
has the dtype of floating operands, and is contiguous if they are.
"""

ONE_LAUNCH = {
    *FUNCTIONAL_VARIANTS.values(),
    *(name for module in (elementwise, masks) for name, *_ in module.KERNELS),
    "index_copy.out",
    *factories.FILLS,
}
"""Operations whose kernels do nothing but fill ``out``, as a rule by one launch."""

CHECKED_BY_CONDITIONS = {
    *(
        name
        for module in (matmul, convolution)
        for name, *_ in module.KERNELS
        if not name.startswith("linalg_solve")
    ),
    *("nonzero", "isin.Tensor_Tensor_out"),
    "native_batch_norm",
}
"""Operations that take the CPU long, also once: their conditions hold for right arguments only. And
one that the CPU does not check: it reads and writes beyond statistics of too few elements.
"""

NUMBERS_DECIDE = ("pow.Tensor_Scalar_out", "linalg_vector_norm.out")
"""Operations with kernels for some exponents only."""

PRODUCTS = ("mm", "bmm", "addmm")
"""Those whose result is contiguous in any case: weights come transposed."""


def kernels_by_name() -> dict[str, list[tuple[Kernel, Conditions | None]]]:
    """The kernels of every operator and their conditions, in the order they are tried."""
    kernels: dict[str, list[tuple[Kernel, Conditions | None]]] = {}
    for module in MODULES:
        for name, kernel, conditions in module.KERNELS:
            kernels.setdefault(name, []).append((kernel, conditions))
    return kernels


@cache
def eager_kernels() -> dict[str, Callable[..., Any]]:
    """The function to register for every operator, by aten name."""
    operations: dict[str, EagerOperation] = {}
    for name, kernels in kernels_by_name().items():
        overload = None if name in matmul.WITHOUT_CPU else operator(name)
        operations[name] = EagerOperation(
            name,
            overload,
            kernels,
            signature_of(name),
            _overlap_check(name, overload),
            name in ONE_LAUNCH,
            name in factories.FILLS,
            _is_checked(overload) and name not in CHECKED_BY_CONDITIONS,
            name in NUMBERS_DECIDE,
        )
    functions: dict[str, Callable[..., Any]] = {
        name: partial(call, operation) for name, operation in operations.items()
    }
    for name, out in FUNCTIONAL_VARIANTS.items():
        op = operator(name)
        tensors = sum(str(argument.type) == "Tensor" for argument in schema_of(op).arguments)
        variant = FunctionalVariant(op, operations[out], tensors, name in PRODUCTS)
        functions[name] = partial(call_functional, variant)
    ranges = ("arange", "arange.start", "arange.start_step")
    functions.update((name, partial(factories.arange, name)) for name in ranges)
    return functions


def _is_checked(op: Any) -> bool:
    """Operations over tensors whose results follow from them."""
    has_tensors = op is not None and any("Tensor" in str(a.type) for a in schema_of(op).arguments)
    return has_tensors and not is_random(op)


def _overlap_check(name: str, op: Any) -> Callable[..., bool] | None:
    """Fills take whatever overlaps."""
    is_fill = name in factories.FILLS or name in masks.FILLS
    is_checked = op is not None and schema_of(op).is_mutable and not is_fill
    return overlap_check(op) if is_checked else None


@cache
def register() -> None:
    """Register them, once."""
    register_kernels(eager_kernels())
    for namespace, kernels in libraries.OPERATORS.items():
        register_kernels(kernels, namespace)
    composites = (matmul.COMPOSITES, normalisation.COMPOSITES, recurrent.COMPOSITES)
    register_composites({name: kernel for table in composites for name, kernel in table.items()})
    register_casts()
