"""Causes and fixes of SPY820-849: SpyreCode directories and kept plans."""

from __future__ import annotations

from spyre.codes.record import Explanation

SPYRECODE_EXPLANATIONS: dict[str, Explanation] = {}
