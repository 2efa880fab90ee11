"""The engines of a card: what can be busy at the same time."""

from __future__ import annotations

from enum import IntEnum


class Engine(IntEnum):
    """Who does a step: the host's CPU, the DMA engine, or the cores.

    The cores run one compute control block at a time: it has all 32 of them and their scratchpads.
    """

    HOST = 0
    DMA = 1
    COMPUTE = 2
