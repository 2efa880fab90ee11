"""arange, linspace, eye, filled tensors: constants, without a fallback."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.tensors import allocation

MAKERS = {
    "arange": lambda d: torch.arange(5, device=d),
    "arange from": lambda d: torch.arange(3, 100, 7, device=d, dtype=torch.int32),
    "arange of floats": lambda d: torch.arange(0, 2, 0.25, device=d),
    "arange of halves": lambda d: torch.arange(0, 2, 0.25, device=d, dtype=torch.float16),
    "arange of nothing": lambda d: torch.arange(0, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 7, device=d),
    "eye": lambda d: torch.eye(3, 5, device=d),
    "square eye": lambda d: torch.eye(70, device=d, dtype=torch.float16),
    "tril_indices": lambda d: torch.tril_indices(3, 4, device=d),
    "triu_indices": lambda d: torch.triu_indices(3, 4, 1, device=d),
    "full": lambda d: torch.full((3, 70), 2.5, device=d),
    "full of truth": lambda d: torch.full((3,), True, device=d),
    "ones": lambda d: torch.ones(3, 70, dtype=torch.int64, device=d),
    "zeros": lambda d: torch.zeros(3, 70, device=d),
    "scalar": lambda d: torch.scalar_tensor(3.5, device=d),
    "like": lambda d: torch.full_like(torch.zeros(4, 5, device=d).t(), 7),
}


@pytest.mark.parametrize("name", MAKERS)
def test_made(name):
    before = torch.spyre.fallbacks()
    found, wanted = MAKERS[name]("spyre"), MAKERS[name]("cpu")
    assert torch.spyre.fallbacks() == before
    assert (found.dtype, found.shape, found.stride()) == (
        wanted.dtype,
        wanted.shape,
        wanted.stride(),
    )
    assert torch.equal(found.cpu(), wanted)


def test_into_given_tensors():
    out = torch.empty(0, dtype=torch.int64, device="spyre")
    assert torch.arange(6, out=out).tolist() == list(range(6))
    assert torch.eye(2, out=torch.empty(2, 2, device="spyre")).cpu().equal(torch.eye(2))


@pytest.mark.parametrize("kept", [0, 1, 64])
def test_tensors_of_more_kinds_than_are_kept(kept, monkeypatch):
    monkeypatch.setattr(allocation, "_structs", kinds := {})
    monkeypatch.setattr(allocation, "MAX_STRUCTS", kept)
    shapes = [(2, 3), (3, 2), (2, 3), (70,), (3, 2)]
    made = [torch.full(shape, k, device="spyre") for k, shape in enumerate(shapes)]
    monkeypatch.undo()
    assert len(kinds) == min(kept, len(set(shapes)))
    for k, (tensor, shape) in enumerate(zip(made, shapes, strict=True)):
        assert torch.equal(tensor.cpu(), torch.full(shape, k, dtype=torch.float32))
    del made, tensor  # before the structs they point to


def test_the_smallest_float16_stays_finite():
    """Masks hold ``torch.finfo(torch.float16).min``: cards keep it as -65472 (torch-spyre 2518)."""
    lowest = torch.finfo(torch.float16).min
    x = torch.zeros(2, 70, dtype=torch.float16, device="spyre")
    mask = torch.ones(2, 70, dtype=torch.bool, device="spyre")
    filled = torch.full_like(x, lowest), x.masked_fill(mask, lowest), x + lowest, x.fill_(lowest)
    for y in filled:
        assert y.cpu().unique().tolist() == [-65472.0]
