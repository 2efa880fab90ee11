"""Seeds and states of the cards' random numbers, as ``torch.spyre`` offers them.

Any thread, as far as torch's generators go: two threads drawing from one card share its sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from spyre.torch_backend.cards import index_of
from spyre.torch_backend.device_selection import device_count
from spyre.torch_backend.random_state import cpu_generator, seed_card, seed_cards

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
