"""Random numbers: one CPU generator per card, seeded by ``torch.manual_seed``.

Random operations run on the CPU with the generator of their tensor's card, so that equal seeds give
equal numbers, independently of other random numbers in the process. Threads that draw from one card
share its sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from spyre.torch_backend.compat import CpuGenerator, schema_of
from spyre.torch_backend.device.cards import card_of, current_device, device_count, index_of

_generators: dict[int, torch.Generator] = {}
_default_seed: int | None = None


def cpu_generator(device_index: int = -1) -> torch.Generator:
    """Return the generator of a card; -1: of the current card."""
    index = device_index if device_index >= 0 else current_device()
    if index not in _generators:
        generator = torch.Generator("cpu")
        generator.manual_seed(torch.initial_seed() if _default_seed is None else _default_seed)
        _generators[index] = generator
    return _generators[index]


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all cards, including cards that are not used yet."""
    global _default_seed
    _default_seed = int(seed)
    for generator in _generators.values():
        generator.manual_seed(_default_seed)


@contextmanager
def drawing_from_card(device_index: int) -> Iterator[None]:
    """Let torch's default CPU generator continue a card's sequence within the block, for operations
    that take no generator. Other threads must not draw from the default generator meanwhile.
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
    """Return True if an operation draws random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags or any(
        argument.name == "generator" for argument in schema_of(op).arguments
    )


def manual_seed(seed: int) -> None:
    """Seed the current card."""
    cpu_generator().manual_seed(int(seed))


def seed() -> int:
    """Seed the current card with a random number, and return it."""
    return int(cpu_generator().seed())


def seed_all() -> None:
    """Seed all cards with one random number."""
    manual_seed_all(torch.Generator("cpu").seed())


def initial_seed() -> int:
    """Return the current card's seed."""
    return int(cpu_generator().initial_seed())


def get_rng_state(device: Any = "spyre") -> torch.Tensor:
    """Return the state of a card's generator, a byte tensor on the CPU."""
    return cpu_generator(index_of(device)).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the generator states of all cards."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state(new_state: torch.Tensor, device: Any = "spyre") -> None:
    """Set the state of a card's generator."""
    cpu_generator(index_of(device)).set_state(new_state.cpu())


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the generator states of all cards."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


class SpyreGenerator(CpuGenerator):  # type: ignore[misc]
    """A separate generator for one card, which `torch.manual_seed` does not seed."""

    card_index: int

    def __new__(cls, device: Any = "spyre") -> SpyreGenerator:
        """Return a generator for ``device``, seeded like torch's new generators."""
        generator = CpuGenerator.__new__(cls, "cpu")
        generator.card_index = card_of(device).index
        return cast(SpyreGenerator, generator)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device("spyre", self.card_index)

    def clone_state(self) -> SpyreGenerator:
        """Return another generator for the same card, with the same state."""
        clone = SpyreGenerator(self.device)
        clone.set_state(self.get_state())
        return clone
