"""Autocast: all its lists, and operations outside them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from spyre.torch_backend.compat import operator
from spyre.torch_backend.registration import autocast
from tests.torch_backend.processes import run


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def low(request):
    with torch.autocast("spyre", dtype=request.param):
        yield request.param


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device="spyre")


LISTS = (autocast.LOWER_PRECISION, autocast.FLOAT32, autocast.FLOAT32_RESULT, autocast.PROMOTED)


@pytest.mark.parametrize("name", [*(n for names in LISTS for n in names), autocast.BANNED])
def test_every_name_is_an_operator(name):
    assert operator(name)._schema.name.startswith("aten::")


def test_no_operator_is_in_two_lists():
    names = [*(n for names in LISTS for n in names), *autocast.FLOAT32_NORMS, autocast.BANNED]
    assert len(names) == len(set(names))


LOWERED = {
    "mm": lambda: ones(2, 3) @ ones(3, 2),
    "bmm": lambda: torch.bmm(ones(1, 2, 3), ones(1, 3, 2)),
    "addmm": lambda: torch.addmm(ones(2, 2), ones(2, 3), ones(3, 2)),
    "linear": lambda: F.linear(ones(2, 3), ones(4, 3), ones(4)),
    "matmul": lambda: torch.matmul(ones(2, 2, 3), ones(3)),
    "einsum": lambda: torch.einsum("ij,jk->ik", ones(2, 3), ones(3, 2)),
    "baddbmm": lambda: torch.baddbmm(ones(1, 2, 2), ones(1, 2, 3), ones(1, 3, 2)),
    "conv2d": lambda: F.conv2d(ones(1, 1, 3, 3), ones(1, 1, 2, 2)),
    "attention": lambda: F.scaled_dot_product_attention(*[ones(1, 1, 2, 4)] * 3),
    "mixed": lambda: torch.mm(ones(2, 3), ones(3, 2, dtype=torch.float16)),
}


@pytest.mark.parametrize("name", LOWERED)
def test_lowered(low, name):
    assert LOWERED[name]().dtype == low


RAISED = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "exp": lambda x: x.exp(),
    "pow": lambda x: x**2,
    "sum": lambda x: x.sum(),
    "sum of dims": lambda x: x.sum(0, keepdim=True),
    "cumsum": lambda x: x.cumsum(0),
    "prod": lambda x: x.prod(),
    "norm": lambda x: torch.norm(x),
    "vector norm": lambda x: torch.linalg.vector_norm(x),
    "mse": lambda x: F.mse_loss(x, x),
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(2, dtype=torch.long, device="spyre")),
    "rsqrt": lambda x: x.rsqrt(),
}


@pytest.mark.parametrize("name", RAISED)
def test_raised(low, name):
    assert RAISED[name](ones(2, 4, dtype=low)).dtype == torch.float32


def test_explicit_dtype_wins(low):
    assert ones(2, dtype=low).sum(dtype=low).dtype == low
    assert ones(2, dtype=low).softmax(0, dtype=low).dtype == low


def test_integers_are_left_alone(low):
    assert ones(2, dtype=torch.int32).sum().dtype == torch.int64
    assert (ones(2, dtype=torch.int32) + 1).dtype == torch.int32


def test_promoted(low):
    assert torch.cat([ones(2), ones(2, dtype=low)]).dtype == torch.float32
    assert torch.stack([ones(2, dtype=low)] * 2).dtype == low
    assert torch.addcmul(ones(2), ones(2, dtype=low), ones(2, dtype=low)).dtype == torch.float32


def test_others_are_left_alone(low):
    assert (ones(2, dtype=low) + ones(2, dtype=low)).dtype == low
    assert ones(2).relu().dtype == torch.float32
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_banned(low):
    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(ones(2), ones(2))


def test_outside_and_disabled_regions(low):
    with torch.autocast("spyre", enabled=False):
        assert (ones(2, 2) @ ones(2, 2)).dtype == torch.float32
    assert torch.is_autocast_enabled("spyre")


def test_not_enabled_outside():
    assert not torch.is_autocast_enabled("spyre")
    assert (ones(2, 2) @ ones(2, 2)).dtype == torch.float32


def test_default_dtype():
    with torch.autocast("spyre"):
        assert (ones(2, 2) @ ones(2, 2)).dtype == torch.get_autocast_dtype("spyre")


def test_unsupported_dtype_disables_it():
    with (
        pytest.warns(UserWarning, match="target dtype is not supported"),
        torch.autocast("spyre", dtype=torch.float64),
    ):
        assert (ones(2, 2) @ ones(2, 2)).dtype == torch.float32


def test_training_keeps_float32_gradients():
    model = torch.nn.Linear(3, 2).to("spyre")
    with torch.autocast("spyre", dtype=torch.float16):
        loss = F.mse_loss(model(ones(4, 3)), ones(4, 2))
    assert loss.dtype == torch.float32
    loss.backward()
    assert model.weight.grad.dtype == torch.float32
    assert model.weight.grad.device.type == "spyre"


def test_grad_scaler():
    model = torch.nn.Linear(3, 2).to("spyre")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("spyre", init_scale=8.0)
    before = model.bias.cpu()
    with torch.autocast("spyre", dtype=torch.float16):
        loss = model(ones(4, 3)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.allclose(model.bias.cpu(), before - 0.4, atol=1e-2)


@pytest.mark.parametrize(
    "enable",
    [
        "torch.autocast('spyre:0').__enter__()",
        "torch.set_autocast_enabled('spyre', True)",
        "torch.autocast('spyre').__enter__()",
    ],
)
def test_autocast_may_be_the_first_use_of_the_device(enable):
    code = f"""
        {enable}
        x = torch.ones(2, 2, device="spyre")
        print((x @ x).dtype, x.exp().dtype)
    """
    assert "torch.float16 torch.float32" in run(code)
