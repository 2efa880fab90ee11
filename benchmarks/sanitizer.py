"""What watching costs: `python -m benchmarks.sanitizer`, the same program plain and sanitized.

Two devices, one with a sanitizer, run a linked program in turn; medians are compared. Targets: at
most 2.5 times for a 2048 x 4096 add, at most 1.6 times for a 1024 x 1024 x 1024 matmul.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sampling import alternate
from benchmarks.workloads import link_operations, upload
from spyre.hw.device.device import Device
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise

ROUNDS = 21


@dataclass(frozen=True)
class Cost:
    """Medians in seconds, and what their ratio may be."""

    name: str
    plain: float
    sanitized: float
    target: float

    @property
    def ratio(self) -> float:
        return self.sanitized / self.plain


def workloads() -> list[tuple[str, tuple[int, int], OperationSpec, float]]:
    """Name, shape of both inputs, operation and target of every workload."""
    a, b, y = (HostOperand(region * REGION_BYTES) for region in range(3))
    add = pointwise("add", (2048, 4096), [a, b], y, {"mb": 32})
    product = matmul(1024, 1024, 1024, a, b, y, (), {"mb": 8, "out": 4})
    return [
        ("add 2048x4096", (2048, 4096), add, 2.5),
        ("matmul 1024x1024x1024", (1024, 1024), product, 1.6),
    ]


def measure(threads: int | None = None, rounds: int = ROUNDS) -> list[Cost]:
    """Every workload on a plain and on a sanitizing device."""
    costs = []
    for name, shape, spec, target in workloads():
        devices = {
            "plain": Device(threads=threads),
            "sanitized": Device(None, threads, sanitize=True),
        }
        values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        sides = {side: _prepare(device, [spec], values) for side, device in devices.items()}
        times = alternate(sides, rounds)
        found = devices["sanitized"].sanitizer.take()
        assert not found, found
        costs.append(Cost(name, times["plain"].median, times["sanitized"].median, target))
    return costs


def _prepare(device: Device, specs: Sequence[OperationSpec], values: np.ndarray):
    for region in range(2):
        upload(device, region, values)
    linked = link_operations(device, specs)
    return lambda: device.executor.run(linked)


if __name__ == "__main__":
    for cost in measure():
        print(
            f"{cost.name}: plain {cost.plain * 1e3:.2f} ms, "
            f"sanitized {cost.sanitized * 1e3:.2f} ms, "
            f"ratio {cost.ratio:.2f} (target {cost.target})"
        )
