"""complex64: pairs of float32 on the card, operations on the CPU, parts as views on the card."""

from __future__ import annotations

import io
import warnings

import pytest
import torch

from spyre.errors import UnsupportedError


@pytest.fixture
def host():
    return torch.complex(torch.randn(3, 5), torch.randn(3, 5))


def rope(x, angles):
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * turn
    return torch.view_as_real(turned).flatten(-2)


MOVES = {
    "as it is": lambda x: x,
    "transposed": lambda x: x.t(),
    "a part": lambda x: x[1:, ::2],
    "copied": torch.clone,
    "contiguous": lambda x: x.t().contiguous(),
    "conjugate": torch.conj,
    "copied conjugate": lambda x: x.conj().clone(),
    "written conjugate": lambda x: x.clone().conj().copy_(x),
    "written part": lambda x: x.clone().index_put_((torch.arange(1, device=x.device),), x[1:2]),
    "filled": lambda x: torch.full_like(x, 2 + 3j),
    "zeros": torch.zeros_like,
    "real": lambda x: x.real,
    "imaginary": lambda x: x.imag + 1,
    "negative view": lambda x: x.conj().imag,
    "negative view read": lambda x: x.conj().imag + 1,
    "negative view copied": lambda x: torch.empty(3, 5, device=x.device).copy_(x.conj().imag),
    "from floats": lambda x: x.real.to(torch.complex64),
    "pairs": torch.view_as_real,
    "resized": lambda x: x.clone().resize_(3, 2),
    "number": lambda x: x[1, 2] * (2 - 1j),
    "power": lambda x: x**1.5,
    "transform": torch.fft.fft,
    "magnitude": torch.abs,
}


@pytest.mark.parametrize("name", MOVES)
def test_numbers_are_those_of_the_cpu(name, host):
    found, wanted = MOVES[name](host.to("spyre")), MOVES[name](host)
    assert found.device.type == "spyre"
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    torch.testing.assert_close(found.cpu().resolve_conj(), wanted.resolve_conj())


def test_rotary_embeddings_warn_once_per_operation():
    x, angles = torch.randn(2, 8, 64).half(), torch.randn(8, 32)
    torch.spyre.reset_fallbacks()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [rope(x.to("spyre"), angles.to("spyre")) for _ in range(2)]
    torch.testing.assert_close(found[1].cpu(), rope(x, angles), rtol=2**-8, atol=2**-8)
    assert torch.spyre.fallbacks() == {"aten.polar": 2, "aten.mul": 2}
    texts = [str(w.message) for w in caught if "complex" in str(w.message)]
    assert not texts


def test_items_and_files(host):
    x = host.to("spyre")
    assert x[1, 2].item() == host[1, 2].item()
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert torch.equal(torch.load(file)["x"].cpu(), host)
    assert "j" in str(x)


def test_gradients(host):
    def gradient(x):
        x = x.detach().requires_grad_()
        (x * (1 + 2j)).abs().sum().backward()
        return x.grad

    torch.testing.assert_close(gradient(host.to("spyre")).cpu(), gradient(host))


def test_in_compiled_code():
    x, angles = torch.randn(2, 8, 64), torch.randn(8, 32)
    torch._dynamo.reset()
    found = torch.compile(rope)(x.to("spyre"), angles.to("spyre"))
    torch.testing.assert_close(found.cpu(), rope(x, angles))


def test_double_precision_is_refused(host):
    with pytest.raises(UnsupportedError, match="complex128"):
        host.to(torch.complex128).to("spyre")
