"""torch.spyre.graph: replays of a block's launches."""

from __future__ import annotations

import pytest
import torch

from spyre.errors import LaunchError, UnsupportedError


def on_card(*shape):
    return torch.randn(shape).half().to("spyre")


def product(x, w, state):
    state.add_(1)
    return torch.softmax(x @ w, -1) * torch.arange(w.shape[1], device=x.device) + state


def warm(*inputs):
    product(*inputs)


def captured(x, w, state):
    warm(x, w, state)
    with torch.spyre.graph() as step:
        result = product(x, w, state)
    return step, result


def test_a_replay_is_what_the_block_does():
    x, w, state = on_card(3, 70), on_card(70, 130), torch.zeros(130).half().to("spyre")
    step, result = captured(x, w, state)
    assert torch.equal(state.cpu(), torch.full((130,), 2.0).half())
    for count in range(3):
        x.copy_(torch.randn(3, 70).half())
        again = state.clone()
        step.replay()
        assert torch.equal(result.cpu(), product(x, w, again).cpu())
        assert torch.equal(state.cpu(), torch.full((130,), 3.0 + count).half())


def test_the_block_runs_and_its_memory_is_kept():
    x, w, state = on_card(2, 64), on_card(64, 64), on_card(64)
    step, result = captured(x, w, state)
    first = result.cpu()
    del result
    others = [on_card(2, 64) for _ in range(8)]
    kept = [other.cpu() for other in others]
    step.replay()
    assert all(torch.equal(a.cpu(), b) for a, b in zip(others, kept, strict=True))
    assert first.isfinite().all()


def test_results_are_there_for_the_stream_that_goes_on():
    x = on_card(2, 64)
    with torch.spyre.graph() as step:
        doubled = x * 2
    result = doubled + 1
    assert torch.equal(result.cpu(), (x * 2 + 1).cpu())
    with torch.spyre.stream(torch.spyre.Stream()):
        step.replay()
        assert torch.equal(doubled.cpu(), x.cpu() * 2)


def test_a_replay_is_recorded_launch_by_launch():
    x, w, state = on_card(2, 64), on_card(64, 64), torch.zeros(64).half().to("spyre")
    step, result = captured(x, w, state)
    with torch.spyre.counting() as block:
        product(x, w, state)
    with torch.spyre.counting() as counted:
        step.replay()
        torch.spyre.synchronize()
    assert counted.launches == block.launches > 3
    assert torch.equal(state.cpu(), torch.full((64,), 4.0).half())
    assert result.cpu().isfinite().all()


def read(x):
    return x.sum().item()


def wait(x):
    torch.spyre.current_stream().synchronize()


def event(x):
    torch.spyre.current_stream().record_event()


def draw(x):
    torch.nn.functional.dropout(x)


def nest(x):
    with torch.spyre.graph(stream=torch.spyre.current_stream()):
        pass


@pytest.mark.parametrize("what", [read, wait, event, draw, nest, torch.Tensor.cpu])
def test_what_cannot_be_repeated_is_refused(what):
    x = on_card(2, 64)
    step = torch.spyre.SpyreGraph()
    with (
        pytest.raises(UnsupportedError, match=r"SPY888]: .*cannot be captured"),
        torch.spyre.graph(step),
    ):
        what(x)
    with pytest.raises(LaunchError, match="SPY908"):
        step.replay()
    assert x.cpu().shape == (2, 64)


def test_what_operations_write_beyond_the_elements_of_an_input_is_not_read():
    x, w = on_card(2, 3), on_card(3, 64)
    with torch.spyre.graph() as step:
        results = x.sum(1), x @ w, x.amax(0)
    for _ in range(2):
        x.copy_(on_card(2, 64)[:, :3] + 1)
        step.replay()
        for found, expected in zip(results, (x.sum(1), x @ w, x.amax(0)), strict=True):
            assert torch.equal(found.cpu(), expected.cpu())


def test_an_input_that_lies_elsewhere_is_refused():
    x = on_card(2, 64)
    with torch.spyre.graph() as step:
        total = x.sum(1)
    expected = total.cpu()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(256)
    x.copy_(on_card(2, 64))
    with pytest.raises(LaunchError, match="SPY907"):
        step.replay()
    assert torch.equal(total.cpu(), expected)


def test_an_empty_block_and_a_graph_that_was_reset():
    with torch.spyre.graph() as step:
        pass
    step.replay()
    step.reset()
    with pytest.raises(LaunchError, match="SPY908"):
        step.replay()
