"""Causes and fixes of SPY810-819: copies between host and device."""

from __future__ import annotations

from spyre.codes.record import Explanation

DMA_EXPLANATIONS: dict[str, Explanation] = {}
