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


def test_drawing_is_no_fallback(monkeypatch):
    monkeypatch.setenv("SPYRE_FALLBACK", "error")
    torch.spyre.reset_fallbacks()
    x = torch.randn(4, 64, device="spyre").normal_().uniform_()
    assert torch.spyre.fallbacks() == {}
    assert 0 <= x.cpu().min() < x.cpu().max() <= 1


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


@pytest.mark.parametrize("bounds", [(), (5, None), (5,), (2, 9)])
def test_int64_numbers_are_those_of_int32(bounds):
    """The card holds int64 as int32; torch draws 63 bits without an upper bound."""
    drawn = []
    for dtype, given in ((torch.int32, bounds or (0, None)), (torch.int64, bounds)):
        torch.manual_seed(2)
        drawn.append(torch.empty(100, dtype=dtype, device="spyre").random_(*given).cpu().long())
    low = bounds[0] if len(bounds) == 2 else 0
    assert torch.equal(*drawn)
    assert low <= drawn[1].min() < drawn[1].max() < 2**31
    if not bounds or bounds[-1] is None:
        assert drawn[1].max() > 2**30


def test_a_seed_is_drawn_on_the_card():
    """Data loaders and samplers do this if the card is the default device."""
    torch.manual_seed(2)
    seeds = [torch.empty((), dtype=torch.int64, device="spyre").random_().item() for _ in range(3)]
    torch.Generator().manual_seed(seeds[0])
    assert len(set(seeds)) == 3
    own = torch.Generator("spyre").manual_seed(4)
    first = torch.empty((), dtype=torch.int64, device="spyre").random_(generator=own).item()
    own.manual_seed(4)
    assert torch.empty((), dtype=torch.int64, device="spyre").random_(generator=own).item() == first


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_data_loaders_where_the_card_is_the_default_device(shuffle, workers):
    data = torch.utils.data.TensorDataset(torch.arange(8.0, device="cpu"))
    torch.manual_seed(1)
    with torch.device("spyre"):
        loader = torch.utils.data.DataLoader(data, 3, shuffle=shuffle, num_workers=workers)
        rounds = [torch.cat([batch for (batch,) in loader]).tolist() for _ in range(2)]
    assert [sorted(numbers) for numbers in rounds] == [[*range(8)]] * 2
    assert (rounds[0] != rounds[1]) == shuffle
