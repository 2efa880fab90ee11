"""``torch.Generator(device="spyre")``: a CPU generator that says it belongs to a card.

Random operations of the device draw on the CPU, so such a generator works wherever one is taken.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from spyre.torch_backend.cards import card_of
from spyre.torch_backend.compat import CpuGenerator


class SpyreGenerator(CpuGenerator):  # type: ignore[misc]
    """A generator of its own for one card; `torch.manual_seed` does not touch it."""

    card_index: int

    def __new__(cls, device: Any = "spyre") -> SpyreGenerator:
        """A generator for ``device``, seeded as torch seeds new ones."""
        found = CpuGenerator.__new__(cls, "cpu")
        found.card_index = card_of(device).index
        return cast(SpyreGenerator, found)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:
        """The card."""
        return torch.device("spyre", self.card_index)

    def clone_state(self) -> SpyreGenerator:
        """Another generator for the same card that goes on from the same state."""
        found = SpyreGenerator(self.device)
        found.set_state(self.get_state())
        return found
