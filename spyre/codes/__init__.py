"""Every diagnostic code with its title, cause and fix: the table ``codes.toml``.

1xx bundle.mlir · 2xx SDSC JSON and bundle directory · 3xx arguments, launch, command line ·
4xx faults on the device · 5xx not simulated · 6xx comparison of results · 7xx sanitizer ·
8xx the runtime · 9xx the PyTorch device.

Errors carry code and message only, so the table is read on demand: by ``spyre explain CODE``, docs
and the tests, which also check that every code in the sources is listed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

EXAMPLES = "examples.toml"
"""Made from the test corpus by ``python -m tools.docs``."""


class DiagnosticCode(msgspec.Struct, frozen=True):
    """``cause``: the condition that raises the code, and why it matters. ``fix``: the remedy.
    ``example``: a finding of the test corpus, "" where no case provokes one.
    """

    code: str
    title: str
    cause: str
    fix: str
    example: str = ""


@cache
def diagnostic_codes() -> Mapping[str, DiagnosticCode]:
    """All codes, in rising order. Texts are one line each, however the table breaks them."""
    here = files(__package__)
    table = tomllib.loads(here.joinpath("codes.toml").read_text("utf-8"))
    examples = tomllib.loads(here.joinpath(EXAMPLES).read_text("utf-8"))
    texts = {
        code: {name: " ".join(text.split()) for name, text in row.items()}
        for code, row in table.items()
    }
    return {
        code: DiagnosticCode(code, example=examples.get(code, ""), **row)
        for code, row in texts.items()
    }
