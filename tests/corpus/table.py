"""The corpus: all its cases, and the codes that have none."""

from __future__ import annotations

from tests.corpus import check, launch, parse, run, sanitize, tiles, windows
from tests.corpus.making import CorpusCase

CASES: tuple[CorpusCase, ...] = (
    *parse.CASES,
    *check.CASES,
    *launch.CASES,
    *run.CASES,
    *windows.CASES,
    *sanitize.CASES,
    *tiles.CASES,
)

WITHOUT_CASE: dict[str, str] = {
    "SPY402": "needs a host that refuses address space",
    "SPY405": "a warning about the cache, not the bundle: tests/test_trust.py",
    "SPY406": "a warning about the cache, not the bundle: tests/test_trust.py",
    "SPY876": "jobs and streams are used from Python only: tests/runtime/flex",
    "SPY884": "jobs and streams are used from Python only: tests/runtime/flex",
    "SPY885": "jobs and streams are used from Python only: tests/runtime/flex",
    "SPY959": "collectives are called in Python: tests/runtime/comms",
    "SPY979": "DTensors are made in Python: tests/torch_backend/distributed",
    "SPY990": "torch-spyre is used from Python only: tests/frontend",
    "SPY991": "torch-spyre is used from Python only: tests/frontend",
    "SPY992": "torch-spyre is used from Python only: tests/frontend",
}
"""Codes without an example, with the reason."""
