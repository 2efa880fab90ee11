"""Causes and fixes of SPY870-899: jobs, streams, events, scheduler."""

from __future__ import annotations

from spyre.codes.record import Explanation

STREAM_EXPLANATIONS: dict[str, Explanation] = {}
