"""All eager kernels, registered when the first tensor is made on the card."""

from __future__ import annotations

from collections.abc import Callable

from spyre.torch_backend.eager.activations import activation_kernels
from spyre.torch_backend.eager.attention import attention_kernels, composite_kernels
from spyre.torch_backend.eager.copies import copy_kernels
from spyre.torch_backend.eager.elementwise import elementwise_kernels
from spyre.torch_backend.eager.empties import empty_kernels
from spyre.torch_backend.eager.functional import functional_kernels
from spyre.torch_backend.eager.gathers import gather_kernels
from spyre.torch_backend.eager.integers import integer_kernels
from spyre.torch_backend.eager.joins import join_kernels
from spyre.torch_backend.eager.kernels import Kernel
from spyre.torch_backend.eager.logic import logic_kernels
from spyre.torch_backend.eager.masks import mask_kernels
from spyre.torch_backend.eager.matmuls import matmul_kernels
from spyre.torch_backend.eager.normalisation import normalisation_kernels
from spyre.torch_backend.eager.ordering import ordering_kernels
from spyre.torch_backend.eager.reductions import reduction_kernels
from spyre.torch_backend.eager.scans import scan_kernels
from spyre.torch_backend.eager.sequences import sequence_kernels
from spyre.torch_backend.registration import register_composites, register_kernels

_registered = False


KERNEL_TABLES: tuple[Callable[[], dict[str, Kernel]], ...] = (
    attention_kernels,
    copy_kernels,
    elementwise_kernels,
    reduction_kernels,
    matmul_kernels,
    normalisation_kernels,
    join_kernels,
    gather_kernels,
    ordering_kernels,
    scan_kernels,
    mask_kernels,
    sequence_kernels,
    activation_kernels,
)
"""Kernels by aten name, one table per module."""


WIDENING_TABLES: tuple[Callable[[dict[str, Kernel]], dict[str, Kernel]], ...] = (
    logic_kernels,
    integer_kernels,
    empty_kernels,
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
