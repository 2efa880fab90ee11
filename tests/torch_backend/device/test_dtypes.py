"""dtypes: supported ones, refused ones, int64 as int32."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import UnsupportedError
from spyre.torch_backend.device.dtypes import NAMES
from tests.torch_backend.processes import run

UNSUPPORTED = [torch.float64, torch.complex32, torch.complex128, torch.uint16, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_values_come_back(dtype):
    host = torch.tensor([[0, 1, 2], [3, 4, 5]]).to(dtype)
    x = host.to("spyre")
    assert x.dtype == dtype
    assert torch.equal(x.cpu().float(), host.float())
    assert torch.equal(torch.empty_like(x).copy_(x).cpu().float(), host.float())


@pytest.mark.parametrize("dtype", UNSUPPORTED, ids=str)
def test_refusals_begin_with_what_users_look_for(dtype):
    name = str(dtype).removeprefix("torch.")
    for make in (
        lambda: torch.empty(2, dtype=dtype, device="spyre"),
        lambda: torch.zeros(2, dtype=dtype).to("spyre"),
        lambda: torch.ones(2, device="spyre").to(dtype),
    ):
        with pytest.raises(RuntimeError) as caught:
            make()
        assert isinstance(caught.value, UnsupportedError)
        assert str(caught.value).startswith(f"Spyre backend does not support dtype {name}")
        assert caught.value.code == "SPY311"


def test_sixteen_bit_values_are_rounded_to_the_cards_format():
    host = torch.tensor([1.0 + 2**-10], dtype=torch.float16)
    assert host.to("spyre").item() == 1.0 + 2**-9
    big = torch.tensor([1e38], dtype=torch.bfloat16)
    assert big.to("spyre").item() != big.item()


def test_conversions(card, host):
    for dtype in (torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.uint8):
        assert card.to(dtype).dtype == dtype
        assert torch.equal(card.to(dtype).cpu(), host.to(dtype))
        assert torch.equal(host.to("spyre", dtype).cpu(), host.to(dtype))
    assert torch.equal(card.to("cpu", torch.float64), host.double())
    assert card.to("spyre") is card
    assert card.half().float().dtype == torch.float32
    assert card.long().dtype == torch.int64


def test_int64_is_refused_where_int32_ends():
    limits = torch.iinfo(torch.int32)
    edge = torch.tensor([limits.min, limits.max])
    assert torch.equal(edge.to("spyre").cpu(), edge)
    x = torch.zeros(2, dtype=torch.int64, device="spyre")
    for value in (limits.max + 1, limits.min - 1):
        for put in (
            lambda v: torch.tensor([v]).to("spyre"),
            lambda v: x.copy_(torch.tensor([0, v])),
            lambda v: x.view(2, 1)[1].copy_(torch.tensor([v])),
        ):
            with pytest.raises(RuntimeError, match=f"SPY901(.|\n)*{value}") as caught:
                put(value)
            assert isinstance(caught.value, OverflowError)
    assert x.tolist() == [0, 0]


WARNED = """
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.ones(2, device="spyre")
        print("before", len(seen))
        torch.arange(3, device="spyre")
        torch.arange(3).to("spyre")
    print("after", [str(w.message)[:27] for w in seen], {w.filename for w in seen})
"""


def test_warning_once():
    printed = run(WARNED)
    assert "before 0" in printed
    assert "after ['Spyre holds int64 tensors a'] {'<string>'}" in printed


def test_warning_can_be_silenced():
    assert "after []" in run(WARNED, TORCH_SPYRE_DOWNCAST_WARN="0")
    assert "after []" in run("    torch.spyre.set_downcast_warning(False)" + WARNED)


def test_scalars(card, host):
    assert card.sum().item() == host.sum()
    assert bool((card >= 0).all())
    assert float(card[0, 1]) == 1.0
    assert int(card[1, 0]) == 6
    assert card.tolist() == host.tolist()
    assert len(card) == 4
    with pytest.raises(RuntimeError, match="24 elements cannot be converted to Scalar"):
        card.item()


FACTORIES = {
    "zeros": lambda d: torch.zeros(3, device=d),
    "ones": lambda d: torch.ones(3, dtype=torch.float16, device=d),
    "full": lambda d: torch.full((2,), 7, device=d),
    "arange": lambda d: torch.arange(5, device=d),
    "arange step": lambda d: torch.arange(0, 1, 0.25, device=d),
    "tensor": lambda d: torch.tensor([1.0, 2.0], device=d),
    "bools": lambda d: torch.tensor([True, False], device=d),
    "as_tensor": lambda d: torch.as_tensor([1, 2], device=d),
    "eye": lambda d: torch.eye(3, device=d),
    "linspace": lambda d: torch.linspace(0, 1, 5, device=d),
    "scalar": lambda d: torch.scalar_tensor(3.0, device=d),
    "zeros_like": lambda d: torch.zeros_like(torch.ones(2, 2, device=d)),
    "full_like": lambda d: torch.full_like(torch.ones(2, 2, device=d), 4),
    "new_ones": lambda d: torch.ones(1, device=d).new_ones(2, 2),
    "new_tensor": lambda d: torch.ones(1, device=d).new_tensor([3.0]),
    "tril": lambda d: torch.ones(3, 3, device=d).tril(),
    "empty dims": lambda d: torch.zeros(0, 3, device=d),
    "channels last": lambda d: torch.ones(1, 2, 3, 4, device=d).to(
        memory_format=torch.channels_last
    ),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_factories(name):
    found, expected = FACTORIES[name]("spyre"), FACTORIES[name]("cpu")
    assert found.device == torch.device("spyre:0")
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    assert torch.equal(found.cpu(), expected)
