"""Random numbers: seeds, states, generators."""

from __future__ import annotations

import pytest
import torch


def draw():
    return torch.randn(5, device="spyre").cpu()


def test_manual_seed_is_reproducible():
    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)


def test_cpu_and_card_have_separate_numbers():
    torch.manual_seed(3)
    expected = draw()
    torch.manual_seed(3)
    torch.randn(100)
    assert torch.equal(draw(), expected)


@pytest.mark.parametrize("seed", [torch.spyre.manual_seed, torch.spyre.manual_seed_all])
def test_seeds_of_the_card(seed):
    torch.manual_seed(1)
    on_host = torch.initial_seed()
    seed(17)
    expected = draw()
    assert torch.spyre.initial_seed() == 17
    seed(17)
    assert torch.equal(draw(), expected)
    assert torch.initial_seed() == on_host


def test_seed_nobody_knows():
    first = torch.spyre.seed()
    a = draw()
    torch.spyre.seed_all()
    assert torch.spyre.initial_seed() != first
    assert not torch.equal(draw(), a)


def test_zero_is_a_seed():
    torch.spyre.manual_seed_all(0)
    assert torch.spyre.initial_seed() == 0


def test_state_can_be_kept():
    state = torch.spyre.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    expected = draw()
    torch.spyre.set_rng_state(state)
    assert torch.equal(draw(), expected)
    torch.spyre.set_rng_state_all([state])
    assert torch.equal(draw(), expected)
    torch.spyre.set_rng_state(state.to("spyre"), "spyre:0")
    assert torch.equal(draw(), expected)
    assert len(torch.spyre.get_rng_state_all()) == 1


def test_fork_rng():
    torch.manual_seed(5)
    before = torch.spyre.get_rng_state()
    with torch.random.fork_rng(device_type="spyre"):
        draw()
        assert not torch.equal(torch.spyre.get_rng_state(), before)
    assert torch.equal(torch.spyre.get_rng_state(), before)
    with torch.random.fork_rng(devices=["spyre:0"]):
        draw()
    assert torch.equal(torch.spyre.get_rng_state(), before)


def test_generator_of_the_card():
    g = torch.Generator(device="spyre")
    assert g.device == torch.device("spyre:0")
    assert isinstance(g, torch.Generator)
    g.manual_seed(7)
    first = torch.rand(4, generator=g, device="spyre")
    again = g.clone_state()
    more = torch.rand(4, generator=g, device="spyre")
    assert torch.equal(torch.rand(4, generator=again, device="spyre").cpu(), more.cpu())
    g.manual_seed(7)
    x = torch.empty(4, device="spyre").uniform_(generator=g)
    assert torch.equal(x.cpu(), first.cpu())
    assert torch.randperm(5, generator=g, device="spyre").sort().values.tolist() == [0, 1, 2, 3, 4]
    assert not torch.equal(more.cpu(), first.cpu())


def test_generator_does_not_touch_the_cards_numbers():
    torch.manual_seed(3)
    expected = draw()
    torch.manual_seed(3)
    torch.rand(4, generator=torch.Generator("spyre"), device="spyre")
    assert torch.equal(draw(), expected)


def test_generators_of_the_cpu_stay_torchs():
    g = torch.Generator()
    assert type(g) is torch._C.Generator
    assert isinstance(g, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator("cpu").manual_seed(3).initial_seed() == 3


def test_dropout_follows_the_seed():
    x = torch.ones(64, device="spyre")
    torch.manual_seed(11)
    first = torch.nn.functional.dropout(x, 0.5).cpu()
    torch.manual_seed(11)
    assert torch.equal(torch.nn.functional.dropout(x, 0.5).cpu(), first)
    assert 0 < first.count_nonzero() < 64


def test_random_in_place_operations():
    torch.manual_seed(2)
    for name in ("normal_", "uniform_", "exponential_", "random_", "bernoulli_"):
        x = torch.zeros(32, device="spyre")
        if name == "random_":
            assert (x.random_(0, 10).cpu() < 10).all()
        else:
            assert getattr(x, name)() is x
        assert x.cpu().count_nonzero() > 0
    assert torch.bernoulli(torch.full((8,), 0.5, device="spyre")).device.type == "spyre"
    assert torch.multinomial(torch.ones(4, device="spyre"), 2).dtype == torch.int64
