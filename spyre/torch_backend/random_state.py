"""Random numbers: one CPU generator per card, seeded by ``torch.manual_seed``.

Random operations run on the CPU with the generator of the card their tensor is on, so that the
same seed gives the same numbers whatever else the process draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from spyre.torch_backend.compat import schema_of

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
    from spyre.torch_backend.device_selection import current_device

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
    own, card = torch.default_generator, cpu_generator(device_index)
    before = own.get_state()
    own.set_state(card.get_state())
    try:
        yield
    finally:
        card.set_state(own.get_state())
        own.set_state(before)


def is_random(op: Any) -> bool:
    """True for operations that draw random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags or any(
        argument.name == "generator" for argument in schema_of(op).arguments
    )
