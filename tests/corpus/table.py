"""The corpus: all its cases, and the codes that have none."""

from __future__ import annotations

from tests.corpus import check, launch, parse, run, sanitize, windows
from tests.corpus.making import CorpusCase

CASES: tuple[CorpusCase, ...] = (
    *parse.CASES,
    *check.CASES,
    *launch.CASES,
    *run.CASES,
    *windows.CASES,
    *sanitize.CASES,
)

WITHOUT_CASE: dict[str, str] = {
    "SPY156": "only check_module(strict=True) of Python asks for constant bounds",
    "SPY170": "the runtime finds a parameter without value first (SPY362)",
    "SPY172": "values given to the command line and in cases are integers already",
    "SPY174": "the runtime gives one address per allocation; for callers of LoopProgram.schedule",
    "SPY176": "needs gigabytes of addresses: tests/mlir/test_program.py lowers the limit",
    "SPY282": "the checker finds it first (SPY232, SPY234); for programs run with check=False",
    "SPY290": "raised by the SDSC builder of Python",
    "SPY291": "raised by the bundle builder of Python",
    "SPY301": "needs a file that this process may not read",
    "SPY321": "host sizes and dim orders are given in Python only",
    "SPY324": "buffers are given in Python only",
    "SPY360": "memory is freed in Python only",
    "SPY402": "needs a host that refuses address space",
    "SPY403": "device addresses are chosen in Python only; the runtime's lie in one region",
    "SPY410": "the checker finds it first (SPY229); for programs run with check=False",
    "SPY601": "raised by raise_on_mismatch of Python; spyre-run prints the same report without it",
    "SPY620": "needs a bug in the engine: tests/cli/test_dump.py runs with a wrong twin",
    "SPY736": "the checker finds it first (SPY235); for programs run with check=False",
    "SPY737": "an SDSC has nine dims at most, which fit",
    "SPY738": "needs 67 million records: tests/sanitizer/test_sanitizer.py begins at the last one",
    "SPY811": "spyre-run copies to contiguous host tensors",
    "SPY812": "views of device tensors are copied in Python only",
}
"""Codes that no file and no command line provokes, or not here, with the reason."""
