"""The kernel that adds the result of one tile to the sum of those before.

It runs on the card like any other, over the sticks of two temporaries, so every tile's result is
rounded to the format once more: sums over tiles differ from one sum by that rounding.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from spyre.hw.device import Device
from spyre.layout import SpyreTensorLayout
from spyre.runtime.kernel import Kernel

if TYPE_CHECKING:
    from spyre.mlir.bundle import Bundle


def accumulator(device: Device, operation: str, layout: SpyreTensorLayout) -> Kernel:
    """argument 0 ← argument 0 ``operation`` argument 1, both dense in ``layout``.

    Kept in the device itself, to end with it; call it from the device's thread.
    """
    kernels: dict[tuple[str, str, int], Kernel] = vars(device).setdefault("_accumulators", {})
    key = operation, layout.device_dtype, layout.num_sticks
    if key not in kernels:
        kernels[key] = Kernel(_bundle(*key), device)
    return kernels[key]


@lru_cache(maxsize=256)
def _bundle(operation: str, data_format: str, num_sticks: int) -> Bundle:
    """A bundle over ``num_sticks`` rows of one stick; the writers are imported when needed."""
    from spyre.mlir.bundle import Bundle
    from spyre.mlir.bundle_builder import BundleBuilder
    from spyre.mlir.sdsc_recipes import Operand, pointwise

    builder = BundleBuilder()
    total, result = (builder.argument(num_sticks * 128) for _ in range(2))
    target = Operand(total.at(), data_format=data_format)
    lanes = SpyreTensorLayout((num_sticks, 1), (1, -1), data_format).elements_per_stick
    source = Operand(result.at(), data_format=data_format)
    builder.add(pointwise(operation, (num_sticks, lanes), [target, source], target))
    parts = builder.build()
    return Bundle(Path(f"accumulate_{operation}"), parts.module, parts.sdscs)
