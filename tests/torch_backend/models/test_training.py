"""Training on the device: gradients, optimizers, autocast and loss scaling against the CPU."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from qa.models import configurations
from qa.models.configurations import MIXTURES
from tests.torch_backend.models.comparison import DL16
from tests.torch_backend.models.tasks import LLAMA, MLP, TASKS, Batch, Task

OptimizerOf = Callable[..., torch.optim.Optimizer]
# A large eps makes AdamW's first updates a smooth function of the gradient, not its sign.
OPTIMIZERS: dict[str, OptimizerOf] = {
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "adamw": partial(torch.optim.AdamW, lr=0.005, eps=1e-3),
}
FLOAT32_TOLERANCE = 1e-4
"""Relative to the largest number of a tensor: sums in float32 in any order, over ten steps."""


def on(device: str, batch: Batch) -> Batch:
    return {name: value.to(device) for name, value in batch.items()}


def assert_close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    difference = (found.detach().cpu().float() - expected.detach()).abs().max().item()
    assert difference <= tolerance * expected.abs().max().item()


def assert_parameters_close(found: nn.Module, expected: nn.Module, tolerance: float) -> None:
    for ours, theirs in zip(found.parameters(), expected.parameters(), strict=True):
        assert_close(ours, theirs, tolerance)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(found) == len(list(model.parameters()))
    return found


def trained(
    task: Task, make: OptimizerOf, device: str, steps: int
) -> tuple[nn.Module, nn.Module, list[float]]:
    """The model after the first step and after ``steps`` steps, and the loss before each of them.

    The first is on the CPU.
    """
    model, batch = task.build().to(device), on(device, task.batch())
    optimizer, once = make(model.parameters()), task.build()
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
        if not losses:
            once.load_state_dict(model.state_dict())
        losses.append(loss.item())
    return once, model, losses


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_gradients(task: Task, device: str):
    model, reference = task.build().to(device), task.build()
    loss = task.loss(model, on(device, task.batch()))
    expected = task.loss(reference, task.batch())
    loss.backward()
    expected.backward()
    assert_close(loss, expected, FLOAT32_TOLERANCE)
    expected_gradients = gradients(reference)
    for name, gradient in gradients(model).items():
        assert gradient.device.type == device
        assert_close(gradient, expected_gradients[name], FLOAT32_TOLERANCE)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_steps(task: Task, optimizer: str, device: str):
    """The first one, and three more; ten in all of a small network, and in the long form."""
    make = OPTIMIZERS[optimizer]
    steps = 10 if task is MLP or "SPYRE_TEST_EXAMPLES" in os.environ else 4
    *models, losses = trained(task, make, device, steps)
    *references, expected = trained(task, make, "cpu", steps)
    assert losses == pytest.approx(expected, rel=FLOAT32_TOLERANCE)
    assert losses[-1] < (0.9 if steps == 10 else 1.0) * losses[0]
    for model, reference in zip(models, references, strict=True):
        assert_parameters_close(model, reference, FLOAT32_TOLERANCE)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_one_by_one(optimizer: str, device: str):
    make = OPTIMIZERS[optimizer]
    _, model, _ = trained(MLP, partial(make, foreach=False), device, 3)
    _, reference, _ = trained(MLP, make, "cpu", 3)
    assert_parameters_close(model, reference, FLOAT32_TOLERANCE)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_autocast(task: Task, device: str):
    model, reference = task.build().to(device), task.build()
    seen: list[torch.dtype] = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _module, _inputs, out: seen.append(out.dtype))
    with torch.autocast(device, dtype=torch.float16):
        loss = task.loss(model, on(device, task.batch()))
    loss.backward()
    expected = task.loss(reference, task.batch())
    expected.backward()
    assert set(seen) == {torch.float16}
    assert loss.dtype == torch.float32
    assert_close(loss, expected, 8 * DL16)
    expected_gradients = gradients(reference)
    for name, gradient in gradients(model).items():
        assert gradient.dtype == torch.float32
        found, wanted = gradient.cpu().flatten(), expected_gradients[name].flatten()
        assert torch.cosine_similarity(found, wanted, dim=0) > 0.999


def test_float16_weights(device: str):
    model, batch = MLP.build().to(device, torch.float16), on(device, MLP.batch())
    batch["x"] = batch["x"].half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = MLP.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert all(parameter.dtype == torch.float16 for parameter in model.parameters())


def test_gradient_scaler(device: str):
    """torch inverts the scale in float64, which the card has not; steps are those without it."""
    models = [MLP.build().to(device) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    scaler.scale(MLP.loss(models[0], on(device, MLP.batch()))).backward()
    scaler.step(optimizers[0])
    scaler.update()
    MLP.loss(models[1], on(device, MLP.batch())).backward()
    optimizers[1].step()
    for scaled, plain in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(scaled.cpu(), plain.cpu(), rtol=1e-4, atol=1e-6)


def test_clipped_gradients(device: str):
    model, reference = MLP.build().to(device), MLP.build()
    MLP.loss(model, on(device, MLP.batch())).backward()
    MLP.loss(reference, MLP.batch()).backward()
    norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.01) for m in (model, reference)]
    assert_close(norms[0], norms[1], FLOAT32_TOLERANCE)
    for name, gradient in gradients(model).items():
        assert_close(gradient, gradients(reference)[name], FLOAT32_TOLERANCE)


def test_dropout_follows_the_seed(device: str):
    model = configurations.bert().train().to(device)
    batch = on(device, configurations.padded_inputs())

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return model(**batch, labels=batch["input_ids"]).loss.item()

    assert loss(0) == loss(0)
    assert loss(0) != loss(1)


def test_gradient_checkpointing(device: str):
    model, reference = configurations.llama().train().to(device), configurations.llama().train()
    model.gradient_checkpointing_enable()
    LLAMA.loss(model, on(device, LLAMA.batch())).backward()
    LLAMA.loss(reference, LLAMA.batch()).backward()
    for name, gradient in gradients(model).items():
        assert_close(gradient, gradients(reference)[name], FLOAT32_TOLERANCE)


def test_checkpointing_repeats_random_numbers(device: str):
    """With weights of one the gradient is the noise that the forward pass drew."""
    weight = torch.ones(64, device=device, requires_grad=True)
    result = checkpoint(lambda x: x * torch.rand_like(x), weight, use_reentrant=False)
    result.sum().backward()
    assert torch.equal(weight.grad.cpu(), result.detach().cpu())


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts(name: str, device: str):
    """Tokens are sorted and counted by expert, and multiplied by groups."""
    model = MIXTURES[name]()
    ids = torch.randint(0, 64, (2, 9))
    loss = model(ids, labels=ids).loss
    loss.backward()
    wanted = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    found = model.to(device)(ids.to(device), labels=ids.to(device)).loss
    found.backward()
    torch.testing.assert_close(found.cpu(), loss, rtol=1e-5, atol=1e-5)
    grads = {k: p.grad.cpu() for k, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(grads, wanted, rtol=1e-3, atol=1e-5)


def test_traced_models_are_checked(device: str) -> None:
    """torch compares results of the trace, of the model and of a second trace in float64."""
    model = nn.Linear(4, 3).to(device)
    x = torch.ones(2, 4, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        traced = torch.jit.trace(model, x)
    assert torch.equal(traced(x).cpu(), model(x).cpu())
    with pytest.warns(torch.jit.TracerWarning, match="does not match"):
        torch.jit.trace(lambda a: a + torch.rand_like(a), x)
    with pytest.raises(RuntimeError, match="SPY311"):
        x.double()
