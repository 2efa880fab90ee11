"""Causes and fixes of SPY850-869: tiled launches."""

from __future__ import annotations

from spyre.codes.record import Explanation

TILING_EXPLANATIONS: dict[str, Explanation] = {}
