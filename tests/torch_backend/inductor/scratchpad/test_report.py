"""The text of a plan, which people read."""

from __future__ import annotations

from spyre.torch_backend.inductor.scratchpad import (
    ScratchpadPlan,
    plan_scratchpad,
    report_text,
)
from spyre.torch_backend.program.builder import pack
from tests.torch_backend.inductor.scratchpad.kernels import named, softmax
from tests.torch_backend.inductor.scratchpad.test_plan import CAPACITY
from tests.torch_backend.program.test_packing import FOUR


def test_text_of_a_plan():
    assert report_text(plan_scratchpad(named(*softmax()), CAPACITY)) == SOFTMAX


SOFTMAX = """\
LX plan: 4 of 6 buffers in LX
peak 1,114,112 of 1,677,721 bytes per core
0 bytes did not fit

 buffer   bytes per core   offset   alive   why
 ─────────────────────────────────────────────────────────────────────────
 max              65,536        0   0-1
 sub           1,048,576   65,536   1-2
 exp           1,048,576   65,536   2-4     in place of sub
 sum              65,536        0   3-4
 x                            HBM           max reads it before it is made
 y                            HBM           is used by one operation only
"""


def test_text_says_what_does_not_fit():
    text = report_text(ScratchpadPlan(tuple(FOUR), pack(FOUR, CAPACITY), {}, CAPACITY))
    assert "1,228,800 bytes did not fit" in text
    row = next(line for line in text.splitlines() if line.startswith(" C "))
    assert row.endswith("does not fit")


def test_text_of_an_empty_plan():
    text = report_text(plan_scratchpad((), CAPACITY))
    assert "0 of 0 buffers in LX" in text
    assert " buffer " not in text


def test_text_keeps_its_width():
    text = report_text(plan_scratchpad(named(*softmax()), CAPACITY), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
