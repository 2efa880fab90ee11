"""Models as modules on the device: tied weights, state, copies, and memory given back."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from torch import nn

from qa.models import configurations
from qa.models.configurations import FAMILIES, Family
from tests.torch_backend.models.comparison import DL16
from tests.torch_backend.models.tasks import MLP, TRANSFORMER, Task

HALF = torch.float16


def allocated() -> int:
    """Bytes of device memory held by live tensors, those in reference cycles not counted."""
    gc.collect()
    return in_use()


def in_use() -> int:
    """Bytes of device memory held by tensors once all launches are done."""
    torch.spyre.synchronize()
    return torch.spyre.memory_allocated()


def assert_states_equal(found: nn.Module, expected: nn.Module) -> None:
    ours, theirs = found.state_dict(), expected.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.equal(value.cpu(), theirs[name].cpu()), name


def test_tied_weights_stay_tied(device: str):
    model = configurations.gpt2().to(device)
    assert model.lm_head.weight is model.transformer.wte.weight
    with torch.no_grad():
        model.transformer.wte.weight[3].fill_(2.0)
    assert torch.equal(model.lm_head.weight[3].cpu(), torch.full((configurations.HIDDEN,), 2.0))


def test_tied_weights_take_memory_once(device: str):
    before = allocated()
    model = configurations.gpt2().to(device)
    tied = allocated() - before
    parameters = len(list(model.parameters()))
    assert parameters == len(list(configurations.gpt2().parameters()))
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert allocated() - before > tied


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_state_round_trip(family: Family, device: str):
    """float32 comes back bit for bit; the model takes its own state and gives the same logits."""
    reference = family.build("sdpa")
    model = family.build("sdpa").to(device)
    assert_states_equal(model, reference)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    other.load_state_dict(model.state_dict())
    assert_states_equal(other, reference)
    assert_states_equal(model.cpu(), reference)


def test_float16_is_rounded_once(device: str):
    """DL16 numbers are float16 numbers: a second round trip changes nothing."""
    reference = configurations.llama().half()
    once = copy.deepcopy(reference).to(device).cpu()
    twice = copy.deepcopy(once).to(device).cpu()
    assert_states_equal(twice, once)
    for rounded, original in zip(once.parameters(), reference.parameters(), strict=True):
        assert torch.all((rounded - original).abs() <= DL16 * original.abs())


def test_state_through_a_file(device: str):
    model = configurations.gpt2().to(device)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    on_cpu = torch.load(file, map_location="cpu")
    file.seek(0)
    on_device = torch.load(file)
    fresh = configurations.gpt2().to(device)
    fresh.load_state_dict(on_device)
    assert_states_equal(fresh, model)
    assert all(value.device.type == "cpu" for value in on_cpu.values())
    assert all(value.device.type == device for value in on_device.values())
    assert torch.equal(on_cpu["lm_head.weight"], model.lm_head.weight.cpu())


def test_deep_copy_keeps_the_tie_and_shares_nothing(device: str):
    model = configurations.gpt2().to(device)
    twin = copy.deepcopy(model)
    assert twin.lm_head.weight is twin.transformer.wte.weight
    with torch.no_grad():
        twin.transformer.wte.weight.zero_()
    assert model.transformer.wte.weight.abs().sum().item() > 0


def test_made_on_the_device(device: str):
    with torch.device(device):
        model = configurations.gpt2()
    assert {parameter.device.type for parameter in model.parameters()} == {device}
    assert model.device == torch.device(device, 0)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_made_on_meta_and_filled(device: str):
    with torch.device("meta"):
        model = TRANSFORMER.build()
    reference = TRANSFORMER.build()
    model = model.to_empty(device=device)
    model.load_state_dict(reference.state_dict())
    assert_states_equal(model, reference)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_memory_of_a_forward_pass_is_given_back(family: Family, device: str):
    before = allocated()
    model = family.build("sdpa").to(device, HALF)
    held = in_use()
    assert held - before >= 2 * sum(p.numel() for p in model.parameters())
    inputs = {
        name: value.to(device, HALF) if value.is_floating_point() else value.to(device)
        for name, value in family.inputs().items()
    }
    output = model(**inputs)
    assert in_use() > held
    del model, inputs, output
    assert allocated() == before


def test_memory_of_generate_is_given_back(device: str):
    before = allocated()
    model = configurations.llama().to(device, HALF)
    ids = configurations.token_inputs()["input_ids"].to(device)
    found = model.generate(ids, max_new_tokens=4, return_dict_in_generate=True)
    del model, ids, found
    assert allocated() == before


@pytest.mark.parametrize("task", [MLP, TRANSFORMER], ids=str)
def test_memory_of_training_is_given_back(task: Task, device: str):
    before = allocated()
    model = task.build().to(device)
    batch = {name: value.to(device) for name, value in task.batch().items()}
    optimizer = torch.optim.AdamW(model.parameters())
    loss = task.loss(model, batch)
    loss.backward()
    optimizer.step()
    assert in_use() > before
    del model, batch, optimizer, loss
    assert allocated() == before


def test_fifty_forward_passes_leak_nothing(device: str):
    model = configurations.llama().to(device, HALF)
    ids = configurations.token_inputs()["input_ids"].to(device)

    def step() -> int:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)
        return in_use()

    step()
    after_one = allocated()
    peaks = [step() for _ in range(50)]
    assert max(peaks) == min(peaks)
    assert allocated() == after_one


def test_fifty_training_steps_leak_nothing(device: str):
    model = MLP.build().to(device)
    batch = {name: value.to(device) for name, value in MLP.batch().items()}
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> int:
        optimizer.zero_grad()
        MLP.loss(model, batch).backward()
        optimizer.step()
        return in_use()

    step()
    after_one = allocated()
    assert len({step() for _ in range(50)}) == 1
    assert allocated() == after_one
