"""Counts read off specs are those of the executed bundles."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from spyre.torch_backend.inductor.auto_tile.spec_counts import spec_counts
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
    """(read, written, LX read, LX written, multiply-adds, points, executions) per execute."""
    found = run_clean(kernel, place)
    rows = [execute.counters for execute in found.executes]
    return [
        (
            *(c.rdmem_bytes, c.wrmem_bytes, c.lx_read_bytes, c.lx_written_bytes),
            *(c.multiply_adds, c.element_operations, c.executions),
        )
        for c in rows
    ]


def counted(kernel):
    return [
        (
            *(c.hbm_read_bytes, c.hbm_written_bytes, c.lx_read_bytes, c.lx_written_bytes),
            *(c.multiply_adds, c.element_operations, c.runs),
        )
        for c in spec_counts(kernel.specs).operations
    ]


@pytest.mark.parametrize("auto_tile", [False, True], ids=["whole", "tiled"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tiled_functions(name, auto_tile, tmp_path):
    function, sizes = FUNCTIONS[name]
    _, kernels = compiled(function, *inputs(*sizes), auto_tile=auto_tile)
    for k, kernel in enumerate(kernels):
        assert counted(kernel) == executed(kernel, tmp_path / str(k))


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions(name, tmp_path):
    function, sizes = OTHERS[name]
    _, kernels = compiled(function, *inputs(*sizes))
    for k, kernel in enumerate(kernels):
        assert counted(kernel) == executed(kernel, tmp_path / str(k))


def test_what_is_read_again():
    """Each iteration reads the weights again."""
    function, sizes = FUNCTIONS["mlp"]
    _, (kernel,) = compiled(function, *inputs(*sizes), auto_tile=True)
    operations = spec_counts(kernel.specs).operations
    again = [(c.hbm_reread_bytes, c.hbm_read_bytes) for c in operations if c.product]
    assert all(0 < reread < read for reread, read in again)
    assert not any(c.hbm_reread_bytes for c in operations if not c.product)
