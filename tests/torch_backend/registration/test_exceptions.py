"""Composite operations whose insides the card has no format for run on the CPU as a whole; tensors
that are not strided are refused in words a user understands.
"""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from spyre.errors import UnsupportedError
from spyre.torch_backend.registration.library import (
    OUT_VARIANTS,
    THROUGH_COMPLEX,
    THROUGH_FLOAT64,
)

linalg, fft = torch.linalg, torch.fft


def number(x, value):
    return torch.tensor(value, device=x.device)


FUNCTIONS = {
    "linalg_pinv": lambda x: torch.ops.aten.linalg_pinv(x, 0.1),
    "linalg_pinv.atol_rtol_float": lambda x: linalg.pinv(x, atol=0.1, rtol=0.01),
    "linalg_pinv.rcond_tensor": lambda x: torch.ops.aten.linalg_pinv.rcond_tensor(
        x, number(x, 0.1)
    ),
    "linalg_pinv.atol_rtol_tensor": lambda x: linalg.pinv(x, rtol=number(x, 0.1)),
    "pinverse": torch.pinverse,
    "linalg_matrix_rank": lambda x: torch.ops.aten.linalg_matrix_rank(x, 0.5),
    "linalg_matrix_rank.tol_tensor": lambda x: linalg.matrix_rank(x, tol=number(x, 0.5)),
    "linalg_matrix_rank.atol_rtol_float": lambda x: linalg.matrix_rank(x, atol=0.5, rtol=0.1),
    "linalg_matrix_rank.atol_rtol_tensor": lambda x: linalg.matrix_rank(x, rtol=number(x, 0.1)),
    "fft_hfft": fft.hfft,
    "fft_hfft2": fft.hfft2,
    "fft_hfftn": fft.hfftn,
    "fft_irfft": fft.irfft,
    "fft_irfft2": fft.irfft2,
    "fft_irfftn": fft.irfftn,
    "stft": lambda x: torch.ops.aten.stft(x, 4, return_complex=False),
    "stft.center": lambda x: torch.ops.aten.stft.center(x, 4, return_complex=False),
}
WITH_GRADIENT = [name for name in FUNCTIONS if "rank" not in name]


@pytest.fixture
def matrix():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_every_operation_has_a_case():
    assert {*THROUGH_FLOAT64, *THROUGH_COMPLEX} <= {*FUNCTIONS}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.filterwarnings("ignore:stft|A window")
def test_values(function, matrix):
    wanted, found = function(matrix), function(matrix.to("spyre"))
    assert (found.device.type, found.dtype) == ("spyre", wanted.dtype)
    assert_close(found.cpu(), wanted)
    with torch.inference_mode():
        assert_close(function(matrix.to("spyre")).cpu(), wanted)


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_gradients(name, matrix):
    gradients = []
    for device in ("cpu", "spyre"):
        x = matrix.clone().to(device).requires_grad_()
        FUNCTIONS[name](x).pow(2).sum().backward()
        gradients.append(x.grad.cpu())
    assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OUT_VARIANTS)
def test_given_results(name, matrix):
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    tolerance = {"tensor": torch.tensor(0.1)}.get(name.rpartition("_")[2], 0.1)
    given = {"linalg_pinv.out": (0.1,), "linalg_matrix_rank.out": (0.1,)}.get(name, ())
    given = (tolerance,) if name.endswith("tensor") else given
    wanted = op(matrix, *given, out=torch.empty(0, dtype=_dtype(name)))
    out = torch.empty(0, dtype=_dtype(name), device="spyre")
    moved = [g.to("spyre") if isinstance(g, torch.Tensor) else g for g in given]
    assert op(matrix.to("spyre"), *moved, out=out) is out
    assert_close(out.cpu(), wanted)


def _dtype(name):
    return torch.int64 if "rank" in name else torch.float32


def test_most_frequent_numbers_into_given_tensors(matrix):
    x = matrix.round()
    wanted = torch.mode(x)
    out = (torch.empty(0, device="spyre"), torch.empty(0, dtype=torch.int64, device="spyre"))
    found = torch.mode(x.to("spyre"), out=out)
    assert found.values is out[0]
    assert torch.equal(out[0].cpu(), wanted.values)


def test_they_are_counted_and_refused_as_fallbacks(matrix, monkeypatch):
    x = matrix.to("spyre")
    torch.spyre.reset_fallbacks()
    torch.linalg.pinv(x, rtol=0.1)
    assert torch.spyre.fallbacks() == {"aten.linalg_pinv.atol_rtol_float": 1}
    monkeypatch.setenv("SPYRE_FALLBACK", "error")
    with pytest.raises(UnsupportedError, match="SPY900"):
        torch.linalg.pinv(x)


def test_complex_results_are_those_of_the_cpu(matrix):
    wanted = torch.stft(matrix, 4, window=torch.ones(4), return_complex=True)
    window = torch.ones(4, device="spyre")
    found = torch.stft(matrix.to("spyre"), 4, window=window, return_complex=True)
    assert torch.allclose(found.cpu(), wanted)


def test_mixed_devices(matrix):
    with pytest.raises(RuntimeError, match="same device"):
        torch.ops.aten.linalg_pinv.rcond_tensor(matrix.to("spyre"), torch.tensor([0.1]))


LAYOUT_CASES = {
    "coo to the card": ("sparse", lambda x: x.cpu().to_sparse().to("spyre")),
    "coo on the card": ("sparse_coo", lambda x: x.to_sparse()),
    "csr on the card": ("sparse_csr", lambda x: x.to_sparse_csr()),
    "csr to the card": ("sparse", lambda x: x.cpu().to_sparse_csr().to("spyre") @ x.t()),
    "elements of csr": ("sparse", lambda x: x.cpu().to_sparse_csr().to("spyre").values()),
    "rows of csr": ("sparse", lambda x: x.cpu().to_sparse_csr().to("spyre").crow_indices()),
    "factory": ("sparse", lambda x: torch.zeros(3, layout=torch.sparse_coo, device="spyre")),
    "of parts": (
        "sparse",
        lambda x: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), device="spyre"),
    ),
    "with a dense one": ("sparse", lambda x: torch.sparse.mm(x.cpu().to_sparse(), x.t())),
    "nested": ("nested", lambda x: torch.nested.nested_tensor([x.cpu()]).to("spyre")),
}


@pytest.mark.parametrize(("kind", "function"), LAYOUT_CASES.values(), ids=LAYOUT_CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_layouts_are_refused(card, kind, function):
    with pytest.raises(NotImplementedError, match=f"SPY906]: spyre tensors are strided: {kind}"):
        function(card)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nested_tensors_with_gradients_are_refused_and_do_not_abort():
    parts = [torch.ones(2, n, device="spyre", requires_grad=True) for n in (3, 4)]
    nested = torch.nested.as_nested_tensor(parts)
    assert nested.requires_grad
    for use in (nested.clone, nested.unbind, lambda: (nested * 2).backward(nested.detach())):
        with pytest.raises(NotImplementedError, match="SPY906"):
            use()
