"""The first wrong execute of compiled functions, of calls that are recorded while a test runs."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from spyre.torch_backend import recorded_calls
from spyre.torch_backend.inductor.bundles import kernels
from spyre.torch_backend.recorded_calls import explanation, recording

AGREE = "every call of a compiled function gave the results of the CPU"


@pytest.fixture(autouse=True)
def new_functions():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def abs_for_exp(monkeypatch):
    """Kernels compute abs where the function has exp."""
    made = kernels.generate_bundle

    def exchanged(name, kernel, *args, **named):
        ops = [replace(op, name="abs") if op.name == "exp" else op for op in kernel]
        return made(name, tuple(ops), *args, **named)

    monkeypatch.setattr(kernels, "generate_bundle", exchanged)


def ran(function, *tensors, times=1, **options):
    """The explanation of calls of a compiled function."""
    compiled = torch.compile(function, **options)
    with recording() as recorder:
        for _ in range(times):
            compiled(*[each.to("spyre") for each in tensors])
    assert len(recorder.calls) == times
    return explanation(recorder.calls)


def rows(*shape):
    return torch.linspace(-1.0, 2.0, torch.Size(shape).numel()).reshape(shape).half()


def test_the_execute_is_named(abs_for_exp):
    text = ran(lambda x: torch.softmax(x * 2, -1), rows(64, 192))
    assert text.startswith("call 1 of 1 of compiled functions:\nerror[SPY622]: the first wrong")
    assert "the tile that abs writes" in text
    assert " --> bundle.mlir:" in text


def test_right_results():
    function = lambda x, w: torch.softmax(x @ w, -1) + torch.zeros(64, device=x.device)  # noqa: E731
    assert ran(function, rows(64, 128) / 16, rows(128, 64) / 16) == AGREE
    assert ran(lambda x: x.sum(0), rows(3, 70), times=2, dynamic=True) == AGREE


def test_the_second_kernel_of_a_graph(abs_for_exp):
    """A cumulative product runs on the CPU, between two kernels."""
    text = ran(lambda x: torch.exp(torch.cumprod(x * 2, 0)) + 1, rows(2, 128))
    assert "the tile that abs writes" in text


def test_a_module_and_sizes_of_launches(abs_for_exp):
    layer = torch.nn.Linear(64, 64).half().to("spyre")
    text = ran(lambda x: torch.exp(layer(x)), rows(10, 64), dynamic=True)
    assert "the tile that abs writes" in text


def test_calls_beyond_the_limit_are_not_recorded(monkeypatch):
    monkeypatch.setattr(recorded_calls, "MOST_BYTES", 1000)
    compiled = torch.compile(lambda x: x + 1)
    with recording() as recorder:
        compiled(rows(8, 64).to("spyre"))
    assert recorder.calls == []


def test_functions_compiled_without_a_recording_are_not_recorded():
    compiled = torch.compile(lambda x: x + 1)
    compiled(rows(8, 64).to("spyre"))
    with recording() as recorder:
        compiled(rows(8, 64).to("spyre"))
    assert recorder.calls == []
