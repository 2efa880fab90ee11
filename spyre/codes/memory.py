"""Causes and fixes of SPY800-809: device memory of the runtime."""

from __future__ import annotations

from spyre.codes.record import Explanation

MEMORY_EXPLANATIONS: dict[str, Explanation] = {}
