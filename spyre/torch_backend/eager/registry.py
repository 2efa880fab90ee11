"""All eager kernels, registered when the first tensor is made on the card."""

from __future__ import annotations

from collections.abc import Callable

from spyre.torch_backend.eager.activations import activation_kernels
from spyre.torch_backend.eager.attention import attention_kernels, composite_kernels
from spyre.torch_backend.eager.boolean import boolean_kernels
from spyre.torch_backend.eager.cat import cat_kernels
from spyre.torch_backend.eager.dispatch import Kernel
from spyre.torch_backend.eager.elementwise import elementwise_kernels
from spyre.torch_backend.eager.factories import copy_kernels, sequence_kernels
from spyre.torch_backend.eager.functional import functional_kernels
from spyre.torch_backend.eager.indexing import indexing_kernels
from spyre.torch_backend.eager.integers import integer_kernels
from spyre.torch_backend.eager.masks import mask_kernels
from spyre.torch_backend.eager.matmul import matmul_kernels
from spyre.torch_backend.eager.normalisation import normalisation_kernels
from spyre.torch_backend.eager.reductions import cumulative_kernels, reduction_kernels
from spyre.torch_backend.eager.sorting import sorting_kernels
from spyre.torch_backend.eager.zero_size import zero_size_kernels
from spyre.torch_backend.registration.library import register_composites, register_kernels

_registered = False


KERNEL_TABLES: tuple[Callable[[], dict[str, Kernel]], ...] = (
    attention_kernels,
    copy_kernels,
    elementwise_kernels,
    reduction_kernels,
    matmul_kernels,
    normalisation_kernels,
    cat_kernels,
    indexing_kernels,
    sorting_kernels,
    cumulative_kernels,
    mask_kernels,
    sequence_kernels,
    activation_kernels,
)
"""Kernels by aten name, one table per module."""


WIDENING_TABLES: tuple[Callable[[dict[str, Kernel]], dict[str, Kernel]], ...] = (
    boolean_kernels,
    integer_kernels,
    zero_size_kernels,
    functional_kernels,
)
"""More kernels, given those before them: for other dtypes, empty operands, other variants."""


def eager_kernels() -> dict[str, Kernel]:
    """All of them, by aten name."""
    found = {name: kernel for kernels in KERNEL_TABLES for name, kernel in kernels().items()}
    for kernels in WIDENING_TABLES:
        found |= kernels(found)
    return found


def register() -> None:
    """Register them, once."""
    global _registered
    if not _registered:
        _registered = True
        register_kernels(eager_kernels())
        register_composites(composite_kernels())
