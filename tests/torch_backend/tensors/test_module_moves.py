"""Modules: moving them keeps parameters and ties."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn


def tied():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    return model


def test_parameters_keep_their_identity():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.BatchNorm1d(4))
    before = list(model.parameters())
    values = [p.detach().clone() for p in before]
    for move in (lambda: model.to("spyre"), model.cpu, model.spyre, lambda: model.to("cpu")):
        move()
        assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
        assert all(type(p) is nn.Parameter and p.is_leaf for p in before)
    model.to("spyre")
    assert {t.device.type for t in model.state_dict().values()} == {"spyre"}
    for parameter, value in zip(before, values, strict=True):
        assert torch.equal(parameter.cpu(), value)


def test_tied_weights_stay_tied():
    model = tied().to("spyre")
    assert model[0].weight is model[2].weight
    with torch.no_grad():
        model[0].weight.fill_(2)
    assert model[2].weight.cpu().sum() == 32
    assert model.cpu()[0].weight is model[2].weight


def test_attributes_class_and_flags_are_kept():
    class Special(nn.Parameter):
        pass

    model = nn.Module()
    model.weight = Special(torch.ones(2), requires_grad=False)
    model.weight.note = "kept"
    model.to("spyre")
    assert type(model.weight) is Special
    assert model.weight.note == "kept"
    assert not model.weight.requires_grad


def test_gradients_move_along():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    gradient = model.weight.grad.clone()
    model.to("spyre")
    assert model.weight.grad.device.type == "spyre"
    assert torch.equal(model.weight.grad.cpu(), gradient)
    model.cpu()
    assert model.weight.grad.device.type == "cpu"


def test_optimizer_made_before_the_move_goes_on():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.to("spyre")
    before = model.weight.cpu().clone()
    model(torch.ones(1, 3, device="spyre")).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight.cpu(), before - 0.1)


def test_parameter_in_a_graph_is_replaced_with_a_warning():
    model = tied()
    kept = model(torch.ones(1, 4, requires_grad=True))
    before = model[0].weight
    with pytest.warns(UserWarning, match="replaced by a new Parameter"):
        model.to("spyre")
    assert model[0].weight is model[2].weight
    assert model[0].weight.device.type == "spyre"
    assert before.device.type == "cpu"
    kept.sum().backward()
    assert before.grad is not None


def test_half_and_device_together():
    model = nn.Linear(3, 2).to("spyre", torch.float16)
    assert model.weight.dtype == torch.float16
    assert model(torch.ones(1, 3, dtype=torch.float16, device="spyre")).dtype == torch.float16
    weight = model.weight
    assert model.float().weight is weight
    assert weight.dtype == torch.float32


def test_to_empty():
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    model.to_empty(device="spyre")
    assert model.weight.device.type == "spyre"


def test_lazy_modules():
    model = nn.LazyLinear(2).to("spyre")
    assert model(torch.ones(1, 3, device="spyre")).shape == (1, 2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_modules(kind, bias):
    torch.manual_seed(0)
    model = kind(3, 4, num_layers=2, batch_first=True, bias=bias)
    on_card = copy.deepcopy(model).to("spyre")
    x = torch.randn(2, 5, 3)
    results = []
    for module, device in ((model, "cpu"), (on_card, "spyre")):
        data = x.clone().to(device).requires_grad_()
        out, _ = module(data)
        out.pow(2).sum().backward()
        results.append([out, data.grad, *(p.grad for p in module.parameters())])
    for found, expected in zip(results[1], results[0], strict=True):
        assert torch.allclose(found.cpu(), expected, atol=1e-5)


def test_deepcopy_of_a_module():
    model = tied().to("spyre")
    other = copy.deepcopy(model)
    assert other[0].weight is other[2].weight
    assert other[0].weight is not model[0].weight
    assert torch.equal(other[0].weight.cpu(), model[0].weight.cpu())


def test_modules_on_the_cpu_are_torchs():
    model = nn.Linear(3, 2)
    before = model.weight
    assert model.double().half().float().weight is before
    with torch.no_grad():
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            assert model.to("spyre").weight is not before
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_data_can_be_assigned(host):
    parameter = nn.Parameter(host.clone())
    parameter.grad = torch.ones(4, 6)
    parameter.note = "kept"
    parameter.data = parameter.to("spyre")
    assert type(parameter) is nn.Parameter
    assert (parameter.device.type, parameter.note) == ("spyre", "kept")
    assert parameter.is_leaf
    assert parameter.requires_grad
    assert parameter.grad.device.type == "spyre"
    assert torch.equal(parameter.cpu(), host)
    parameter.data = parameter.data * 2
    assert torch.equal(parameter.data.cpu(), host * 2)
    parameter.data = host
    assert parameter.device.type == "cpu"
    assert parameter.data_ptr() == host.data_ptr()


def test_data_of_a_tensor_in_a_graph_is_refused(host):
    x = host.clone().requires_grad_()
    kept = (x * x).sum()
    with pytest.raises(RuntimeError, match="autograd graph or a weak reference"):
        x.data = host.to("spyre")
    kept.backward()
    assert torch.equal(x.grad, 2 * host)


def test_training_equals_the_cpu():
    torch.manual_seed(0)
    on_host = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    on_card = copy.deepcopy(on_host).to("spyre")
    x = torch.randn(5, 6)
    for make in (
        lambda ps: torch.optim.SGD(ps, 0.01, momentum=0.9),
        lambda ps: torch.optim.AdamW(ps, 1e-3),
    ):
        for model, data in ((on_host, x), (on_card, x.to("spyre"))):
            optimizer = make(model.parameters())
            for _ in range(3):
                optimizer.zero_grad()
                model(data).pow(2).mean().backward()
                optimizer.step()
    for a, b in zip(on_card.parameters(), on_host.parameters(), strict=True):
        assert torch.allclose(a.cpu(), b, atol=1e-4)


def test_clip_grad_norm():
    model = nn.Linear(3, 2).to("spyre")
    model(torch.ones(4, 3, device="spyre")).sum().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert norm.device.type == "spyre"
    assert norm.item() > 1


@pytest.mark.parametrize(
    "model",
    [nn.Conv1d(2, 4, 3), nn.Conv2d(2, 4, 3, groups=2, bias=False), nn.ConvTranspose2d(2, 4, 3)],
    ids=str,
)
def test_convolutions(model):
    torch.manual_seed(0)
    on_card = copy.deepcopy(model).to("spyre")
    x = torch.randn(2, 2, 5) if isinstance(model, nn.Conv1d) else torch.randn(2, 2, 5, 5)
    results = []
    for module, device in ((model, "cpu"), (on_card, "spyre")):
        data = x.clone().to(device).requires_grad_()
        out = module(data)
        out.pow(2).sum().backward()
        results.append([out, data.grad, *(p.grad for p in module.parameters())])
    for found, expected in zip(results[1], results[0], strict=True):
        assert torch.allclose(found.cpu(), expected, atol=1e-4)


def test_a_parameter_tied_to_a_childs_stays_tied():
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.ones(3))
            self.scale = nn.Parameter(torch.ones(3))
            self.decoder = nn.Linear(2, 3)
            self.decoder.bias = self.bias

    head = Head()
    scale = head.scale
    head.to("spyre", torch.float16)
    assert head.decoder.bias is head.bias
    assert head.scale is scale
    assert {p.device.type for p in head.parameters()} == {"spyre"}
    assert head.float().decoder.bias is head.bias


def test_weights_of_convolutions_are_laid_out_for_the_matrix_units():
    convolution = torch.nn.Conv2d(70, 130, 3, padding=1)
    x = torch.randint(-2, 3, (1, 70, 5, 6)).float()
    with torch.no_grad():
        for parameter in convolution.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape))
        wanted, weight = convolution(x), convolution.weight.detach().clone()
        convolution.to("spyre", torch.float16)
        assert convolution.weight.device_tensor_layout().device_size == (3, 3, 3, 70, 64)
        assert torch.equal(convolution(x.to("spyre", torch.float16)).cpu().float(), wanted)
        convolution.weight += 1
        assert torch.equal(convolution.weight.cpu().float(), weight + 1)
        convolution.cpu()
    assert torch.equal(convolution.weight.float(), weight + 1)


@pytest.mark.parametrize(
    ("module", "device_size"),
    [
        (nn.Linear(70, 130).eval(), (3, 70, 64)),
        (nn.Linear(70, 130), (2, 130, 64)),  # to be trained
        (nn.Linear(70, 3).eval(), (2, 3, 64)),  # outputs fill no stick
    ],
)
def test_weights_of_linear_maps_are_laid_out_for_inference(module, device_size):
    x = torch.randint(-2, 3, (5, 70)).float()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randint(-2, 3, parameter.shape))
        wanted, weight = module(x), module.weight.detach().clone()
        module.to("spyre", torch.float16)
        assert module.weight.device_tensor_layout().device_size == device_size
        assert torch.equal(module(x.to("spyre", torch.float16)).cpu().float(), wanted)
        module.cpu()
    assert torch.equal(module.weight.float(), weight)


def test_a_tied_embedding_keeps_the_layout_it_is_read_in():
    model = nn.ModuleList([nn.Embedding(100, 70), nn.Linear(70, 100, bias=False)]).eval()
    model[1].weight = model[0].weight
    model.to("spyre", torch.float16)
    assert model[1].weight is model[0].weight
    assert model[1].weight.device_tensor_layout().device_size == (2, 100, 64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_a_convolution_of_one_element_moves(kind, dtype):
    module = kind(1, 1, 1, dtype=dtype)
    nn.init.constant_(module.weight, 0.5)
    assert module.to("spyre").weight.cpu().flatten().tolist() == [0.5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_weights_of_products_are_loaded_in_their_layout_without_a_program(dtype: torch.dtype):
    model = nn.Sequential(nn.Linear(48, 128), nn.Conv2d(8, 64, 3), nn.Linear(7, 3)).eval().to(dtype)
    expected = [p.detach().half().to("spyre").cpu() for p in model.parameters()]
    with torch.spyre.counting() as counted:
        model.to("spyre", torch.float16)
    assert counted.launches == 0
    sizes = [model[k].weight.device_tensor_layout().device_size for k in range(3)]
    assert sizes == [(2, 48, 64), (1, 3, 3, 8, 64), (1, 3, 64)]
    for parameter, value in zip(model.parameters(), expected, strict=True):
        assert torch.equal(parameter.cpu(), value)
