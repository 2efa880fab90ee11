"""Dims A and B, named matrices of them, and other fixtures of coarse tiling."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims

ROWS, COLUMNS = 64, 256


@pytest.fixture(autouse=True)
def dims():
    declare_tensor_dim("A", ROWS)
    declare_tensor_dim("B", COLUMNS)


@pytest.fixture
def named():
    """Makes seeded tensors of named dims: ``named("AB")`` is a matrix."""
    generator = torch.Generator().manual_seed(0)

    def make(names, dtype=torch.float32):
        sizes = [{"A": ROWS, "B": COLUMNS, "1": 1}[n] for n in names]
        tensor = torch.randn(sizes, generator=generator).to(dtype)
        name_tensor_dims(tensor, [None if n == "1" else n for n in names])
        return tensor

    return make


@pytest.fixture
def abc(named):
    """Three matrices of dims A and B."""
    return named("AB"), named("AB"), named("AB")
