"""Device layouts: the default one, chosen ones, those of views."""

from __future__ import annotations

import pickle

import pytest
import torch

from spyre.errors import LaunchError
from spyre.layout import SpyreTensorLayout


def by_columns(dtype="float32"):
    return SpyreTensorLayout.from_dim_order((4, 6), (6, 1), dtype, (1, 0))


@pytest.mark.parametrize("shape", [(), (5,), (3, 65), (2, 3, 70), (2, 1, 4, 8)])
def test_default(shape):
    x = torch.zeros(shape, dtype=torch.float16, device="spyre")
    assert x.device_tensor_layout() == SpyreTensorLayout.from_host(shape, "float16")
    assert isinstance(x.device_tensor_layout(), torch.spyre.SpyreTensorLayout)


def test_views_have_the_layout_of_their_base(card):
    for view in (card.t(), card[1:], card.view(24), card.detach()):
        assert view.device_tensor_layout() == card.device_tensor_layout()


def test_tensor_without_elements():
    layout = torch.empty(0, 3, device="spyre").device_tensor_layout()
    assert layout == SpyreTensorLayout.from_host((0, 3), "float32")


def test_to_layout(host):
    x = host.to("spyre", device_layout=by_columns())
    assert x.device_tensor_layout() == by_columns()
    assert (x.shape, x.stride()) == (host.shape, host.stride())
    assert torch.equal(x.cpu(), host)
    assert torch.equal((x + 1).cpu(), host + 1)


def test_to_layout_with_a_dtype(host):
    x = host.to("spyre", torch.float16, device_layout=by_columns("float16"))
    assert x.dtype == torch.float16
    assert x.device_tensor_layout() == by_columns("float16")
    y = host.to(device="spyre:0", dtype=torch.float16, device_layout=by_columns("float16"))
    assert torch.equal(y.cpu(), host.half())


def test_to_layout_within_the_card(card, host):
    x = card.to(device_layout=by_columns())
    assert x.data_ptr() != card.data_ptr()
    assert torch.equal(x.cpu(), host)
    assert x.to("spyre", device_layout=by_columns()) is x
    assert x.to("spyre", device_layout=by_columns(), copy=True) is not x


def test_to_layout_is_differentiable(host):
    x = host.clone().requires_grad_()
    y = x.to("spyre", device_layout=by_columns())
    (y * 3).sum().backward()
    assert torch.equal(x.grad, torch.full_like(host, 3))


def test_to_layout_of_a_transposed_tensor(host):
    layout = SpyreTensorLayout.from_host((4, 6), "float32")
    x = host.t().to("spyre", device_layout=layout)
    assert x.stride() == (1, 6)
    assert torch.equal(x.cpu(), host.t())
    with pytest.raises(LaunchError):
        host.t().contiguous().to("spyre", device_layout=layout)


@pytest.mark.parametrize("size", [((4, 6),), (4, 6), (torch.Size([4, 6]),)])
def test_empty(size, host):
    x = torch.empty(*size, device="spyre", device_layout=by_columns(), requires_grad=True)
    assert x.device_tensor_layout() == by_columns()
    assert x.requires_grad
    assert x.is_leaf
    with torch.device("spyre"):
        assert torch.empty(*size, device_layout=by_columns()).device_tensor_layout() == by_columns()


def test_layout_of_other_sizes_is_refused():
    with pytest.raises(LaunchError, match="SPY322"):
        torch.empty(4, 7, device="spyre", device_layout=by_columns())


def test_other_devices_have_none(host):
    for ask in (
        host.device_tensor_layout,
        lambda: host.to("cpu", device_layout=by_columns()),
        lambda: torch.empty(4, 6, device_layout=by_columns()),
    ):
        with pytest.raises(LaunchError, match="SPY903"):
            ask()
    with pytest.raises(TypeError, match="is a SpyreTensorLayout, not tuple"):
        host.to("spyre", device_layout=(1, 2))


def test_operations_still_go_to_their_functions(host):
    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    with Seen():
        torch.empty(2)
        host.to(torch.float16)
    assert seen == [torch.empty, torch.Tensor.to]


def test_subclasses_keep_their_type(host):
    class Mine(torch.Tensor):
        pass

    assert type(host.as_subclass(Mine).to(torch.float16)) is Mine
    assert type(host.as_subclass(Mine).to("spyre")) is Mine


def test_pickle():
    assert pickle.loads(pickle.dumps(by_columns())) == by_columns()
