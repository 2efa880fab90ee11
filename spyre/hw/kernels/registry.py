"""Entry addresses of the kernels, compiled or loaded from the cache on first use."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache

import numpy as np

from spyre.hw.table.plan import KERNEL_MODULES
from spyre.layout.access_map import Int64Array


@cache
def _address(kind: int) -> int:
    module = importlib.import_module(f"spyre.hw.kernels.{KERNEL_MODULES[kind]}")
    return int(module.run.address)


def entry_addresses(kinds: Iterable[int]) -> Int64Array:
    """Address of the entry of every kind in ``kinds`` (0 for kinds not asked for)."""
    addresses = np.zeros(len(KERNEL_MODULES), np.int64)
    for kind in kinds:
        addresses[kind] = _address(kind)
    return addresses
