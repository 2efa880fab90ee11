"""Counts of operations that no bundle is made of, against those of the linked bundle."""

from __future__ import annotations

import pytest
import torch

from spyre.hw.cost import default_machine, kernel_ns
from spyre.torch_backend.inductor.auto_tile import launch_counts
from spyre.torch_backend.inductor.bundles.kernel_op import operations_in
from spyre.torch_backend.inductor.division import counts_of
from tests.torch_backend.inductor.auto_tile.trials import compiled, inputs

FUNCTIONS = {
    "softmax": (lambda x: torch.softmax(x, -1), [(256, 512)]),
    "row": (lambda x, y: x * y + x, [(128, 256), (256,)]),
    "columns": (lambda x: x.sum(0), [(128, 256)]),
    "mlp": (lambda x, w, v: torch.relu(x @ w) @ v, [(128, 256), (256, 512), (512, 128)]),
    "batches": (lambda a, b: a @ b, [(4, 64, 128), (4, 128, 256)]),
    "transposed": (lambda x, y: x.T.contiguous() * y, [(128, 256), (256, 128)]),
}
EQUAL = ("cost_class", "cores", "product", "transcendental", "mac_format")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_counts(name: str):
    function, sizes = FUNCTIONS[name]
    _, kernels = compiled(function, *inputs(*sizes))
    for kernel in kernels:
        linked = launch_counts(kernel.kernel).operations
        for op, expected in zip(operations_in(kernel.kernel), linked, strict=True):
            found = counts_of(op)
            for field in EQUAL:
                assert getattr(found, field) == getattr(expected, field), (op.name, field)
            for field in ("rdmem_bytes", "wrmem_bytes", "multiply_adds", "executions"):
                assert getattr(found.counters, field) == getattr(expected.counters, field)
            times = [kernel_ns([each], default_machine()).total_ns for each in (found, expected)]
            assert times[0] == pytest.approx(times[1], rel=0.02)
