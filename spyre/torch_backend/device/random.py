"""Random numbers: one CPU generator per card, seeded by ``torch.manual_seed``.

Random operations run on the CPU with the generator of the card their tensor is on, so that the
same seed gives the same numbers whatever else the process draws. Any thread, as far as torch's
generators go: two threads drawing from one card share its sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from spyre.torch_backend.compat import CpuGenerator, schema_of
from spyre.torch_backend.device.cards import card_of, device_count, index_of

_generators: dict[int, torch.Generator] = {}
_default_seed: int | None = None


def cpu_generator(device_index: int = -1) -> torch.Generator:
    """The generator of a card; -1: the current one."""
    index = _resolved(device_index)
    if index not in _generators:
        generator = torch.Generator("cpu")
        generator.manual_seed(torch.initial_seed() if _default_seed is None else _default_seed)
        _generators[index] = generator
    return _generators[index]


def _resolved(device_index: int) -> int:
    if device_index >= 0:
        return device_index
    from spyre.torch_backend.device.cards import current_device

    return current_device()


def seed_card(seed: int, device_index: int = -1) -> None:
    """Seed one card's generator."""
    cpu_generator(device_index).manual_seed(seed)


def seed_cards(seed: int) -> None:
    """Seed the generators of all cards, also of those not used yet."""
    global _default_seed
    _default_seed = int(seed)
    for generator in _generators.values():
        generator.manual_seed(_default_seed)


@contextmanager
def drawing_from_card(device_index: int) -> Iterator[None]:
    """Within, torch's default CPU generator goes on from where a card's is, and the card's from
    there: for operations that take no generator. Other threads must not draw from the former.
    """
    default, card = torch.default_generator, cpu_generator(device_index)
    before = default.get_state()
    default.set_state(card.get_state())
    try:
        yield
    finally:
        card.set_state(default.get_state())
        default.set_state(before)


def is_random(op: Any) -> bool:
    """True for operations that draw random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags or any(
        argument.name == "generator" for argument in schema_of(op).arguments
    )


manual_seed_all = seed_cards


def manual_seed(seed: int) -> None:
    """Seed the current card."""
    seed_card(int(seed))


def seed() -> int:
    """Seed the current card with a number nobody can know; returns it."""
    return int(cpu_generator().seed())


def seed_all() -> None:
    """Seed all cards with one number nobody can know."""
    manual_seed_all(torch.Generator("cpu").seed())


def initial_seed() -> int:
    """The current card's seed."""
    return int(cpu_generator().initial_seed())


def get_rng_state(device: Any = "spyre") -> torch.Tensor:
    """State of a card's random numbers, a byte tensor on the CPU."""
    return cpu_generator(index_of(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all cards."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "spyre") -> None:
    """Continue a card's random numbers from ``new_state``."""
    cpu_generator(index_of(device)).set_state(new_state.cpu())


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Continue the random numbers of all cards."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


class SpyreGenerator(CpuGenerator):  # type: ignore[misc]
    """A generator of its own for one card; `torch.manual_seed` does not touch it."""

    card_index: int

    def __new__(cls, device: Any = "spyre") -> SpyreGenerator:
        """A generator for ``device``, seeded as torch seeds new ones."""
        generator = CpuGenerator.__new__(cls, "cpu")
        generator.card_index = card_of(device).index
        return cast(SpyreGenerator, generator)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device("spyre", self.card_index)

    def clone_state(self) -> SpyreGenerator:
        """Another generator for the same card that goes on from the same state."""
        clone = SpyreGenerator(self.device)
        clone.set_state(self.get_state())
        return clone
