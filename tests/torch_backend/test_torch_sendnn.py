"""`torch_sendnn`: graphs of CPU tensors that run on the card."""

from __future__ import annotations

import pytest

from spyre.errors import UnsupportedError
from tests.torch_backend.processes import run

torch = pytest.importorskip("torch")
import torch_sendnn  # noqa: E402 - found after torch is imported


def halves(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="sendnn", **options)


def close(found, expected):
    assert found.device.type == "cpu"
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.02, atol=0.02)


@pytest.fixture
def layers():
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64), torch.nn.LayerNorm(64)
    )
    return made.half().requires_grad_(False)


def test_a_graph_runs_on_the_card(layers):
    function, x = compiled(layers, options={"sendnn.dynamic": True}), halves(5, 64)
    with torch.spyre.profile() as profile:
        found = function(x)
    close(found, layers(x))
    assert "batchmatmul" in str(profile)


def test_parameters_are_copied_again_once_they_change(layers):
    function, x = compiled(layers), halves(5, 64)
    first = function(x)
    layers[3].weight.mul_(2)
    close(function(x), layers(x))
    layers[0].weight.data = halves(128, 64, seed=1)
    close(function(x), layers(x))
    assert not torch.allclose(first, function(x), atol=0.1)


@torch.inference_mode()
def test_tensors_of_inference_mode_may_change():
    layer, x, state = torch.nn.Linear(64, 64).half(), halves(2, 64), halves(2, 64)
    function = compiled(lambda x, state: layer(x) + state.mul_(2))
    expected = layer(x) + state * 2
    close(function(x, state), expected)
    layer.weight.neg_()
    close(function(x, state), layer(x) + state)


def test_arguments_are_written_and_returned_as_the_same_tensors():
    def step(x, state, untouched):
        state.add_(x)
        return state, untouched, state[1:], torch.arange(64, device=x.device).half() + x

    x, state, untouched = halves(3, 64), halves(3, 64, seed=1), halves(3, 64, seed=2)
    expected = state + x
    same, kept, part, sums = compiled(step)(x, state, untouched)
    assert same is state
    assert kept is untouched
    close(state, expected)
    close(part, expected[1:])
    close(sums, x + torch.arange(64))


def test_a_written_argument_may_not_share_memory_with_another():
    x = halves(4, 64)
    with pytest.raises(UnsupportedError, match="shares memory") as caught:
        compiled(lambda a, b: a.add_(1) + b)(x[:3], x[1:])
    assert caught.value.code == "SPY998"


def test_constants_of_a_graph_are_on_the_card():
    table = halves(64)
    x = halves(3, 64, seed=1)
    close(compiled(lambda x: x * table + torch.tensor([0.5], device="cpu"))(x), x * table + 0.5)


def test_dims_marked_dynamic_remain_symbols(layers):
    function = compiled(layers)
    torch._dynamo.utils.counters.clear()
    for rows in (64, 128, 192):
        x = halves(rows, 64)
        torch._dynamo.mark_dynamic(x, 0)
        close(function(x), layers(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_callers_may_wrap_the_end_of_warming_up(monkeypatch, layers):
    """vLLM-spyre replaces the method of the class before it enters the context."""
    ended = []
    monkeypatch.setattr(torch_sendnn.warmup_mode, "__exit__", lambda *args: ended.append(args))
    x = halves(5, 64)
    with torch_sendnn.warmup_mode():
        found = compiled(layers)(x)
    close(found, layers(x))
    assert len(ended) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "computes no gradients"), ({"sendnn.other": 1}, "has no option 'sendnn.other'")],
)
def test_what_it_does_not_do_is_refused(options, words):
    x = halves(2, 64).requires_grad_(not options)
    with pytest.raises(Exception, match=f"SPY998.*{words}"):
        compiled(torch.exp, options=options)(x)


def test_an_installed_package_is_preferred(tmp_path):
    (tmp_path / "torch_sendnn.py").write_text("name = 'installed'\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import torch_sendnn as s; print(s.name)"
    )
    assert run(code) == "installed\n"
