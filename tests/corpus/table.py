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
    "SPY291": "raised by the bundle builder of Python",
    "SPY321": "host sizes and dim orders are given in Python only",
    "SPY383": "raised for an option of spyre check, which spyre-run lacks: tests/cli/test_commands",
    "SPY402": "needs a host that refuses address space",
    "SPY405": "a warning about the cache, not the bundle: tests/test_trust.py",
    "SPY812": "jobs and streams are used from Python only: tests/runtime/flex",
    "SPY876": "jobs and streams are used from Python only: tests/runtime/flex",
    "SPY884": "jobs and streams are used from Python only: tests/runtime/flex",
    "SPY885": "jobs and streams are used from Python only: tests/runtime/flex",
    "SPY904": "the PyTorch device is used from Python only: tests/torch_backend",
    "SPY905": "memory is freed in Python only: tests/torch_backend/tensors",
    "SPY959": "collectives are called in Python: tests/runtime/comms",
    "SPY967": "torch.compile is used from Python only: tests/torch_backend/inductor",
    "SPY972": "torch.compile is used from Python only: tests/torch_backend/inductor",
    "SPY975": "torch.compile is used from Python only: tests/torch_backend/inductor",
    "SPY979": "DTensors are made in Python: tests/torch_backend/distributed",
    "SPY980": "torch.compile is used from Python only: tests/torch_backend/inductor",
    "SPY985": "torch.compile is used from Python only: tests/torch_backend/inductor",
    "SPY987": "torch.compile is used from Python only: tests/torch_backend/inductor",
    "SPY990": "torch-spyre is used from Python only: tests/frontend",
    "SPY991": "torch-spyre is used from Python only: tests/frontend",
    "SPY992": "torch-spyre is used from Python only: tests/frontend",
    "SPY995": "the PyTorch device is used from Python only: tests/torch_backend",
    "SPY996": "the PyTorch device is used from Python only: tests/torch_backend",
}
"""Codes without an example, with the reason."""
