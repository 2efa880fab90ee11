"""Counts of a kernel that is only linked are those of the executed bundle."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from spyre.hw.counters.program import operation_counts
from spyre.torch_backend.inductor.auto_tile import launch_counts
from tests.torch_backend.inductor.auto_tile.trials import FUNCTIONS, compiled, inputs
from tests.torch_backend.inductor.compiled_code import run_clean

OTHERS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (128,), w, b), [(96, 128), (128,), (128,)]),
    "columns": (lambda x: x.sum(0), [(512, 256)]),
    "transposed": (lambda x, y: x + y.T, [(128, 256), (256, 128)]),
    "k split": (lambda x, y: x @ y, [(2, 2048), (2048, 64)]),
    "batched": (lambda x, y: torch.bmm(x, y), [(4, 64, 128), (4, 128, 64)]),
    "odd": (lambda x: torch.exp(x) + 1, [(7, 100)]),
}


def executed(kernel, place):
    """Records of a launch of the kernel's bundle."""
    (launch,) = run_clean(kernel, place).launches
    return list(operation_counts(launch.linked.view))


def assert_same(kernel, place):
    assert list(launch_counts(kernel.kernel).operations) == executed(kernel, place)


@pytest.mark.parametrize("auto_tile", [False, True], ids=["whole", "tiled"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tiled_functions(name, auto_tile, tmp_path):
    function, sizes = FUNCTIONS[name]
    _, kernels = compiled(function, *inputs(*sizes), auto_tile=auto_tile)
    for k, kernel in enumerate(kernels):
        assert_same(kernel, tmp_path / str(k))


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name, tmp_path):
    function, sizes = OTHERS[name]
    _, kernels = compiled(function, *inputs(*sizes))
    for k, kernel in enumerate(kernels):
        assert_same(kernel, tmp_path / str(k))


def test_what_is_read_again():
    """Each iteration reads the weights again; a product that is not tiled reads them once."""
    function, sizes = FUNCTIONS["mlp"]
    _, (kernel,) = compiled(function, *inputs(*sizes), auto_tile=True)
    operations = launch_counts(kernel.kernel).operations
    again = [c for c in operations if c.product and c.runs > 1]
    assert again
    assert all(0 < c.hbm_reread_bytes < c.counters.rdmem_bytes for c in again)
    assert not any(c.hbm_reread_bytes for c in operations if c.runs == 1)
    assert not any(c.hbm_reread_bytes for c in operations if not c.product)
