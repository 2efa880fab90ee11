"""One pass of a kernel as the compute engine is given it, and other ways of running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spyre.runtime.kernel import Kernel, LaunchShape


@dataclass(slots=True)
class BoundKernel:
    """One pass of a kernel.

    ``shape``: what does not change between launches; ``addresses``: where its memory begins, bytes;
    ``names``: of that memory.
    """

    shape: LaunchShape
    addresses: tuple[int, ...]
    names: tuple[str, ...]


Runner = Callable[[Kernel, BoundKernel], Any]
"""Runs one pass of a kernel on the compute engine; its result is kept in the outcome."""
