"""The command that runs models on the device: its measurements and its output."""

from __future__ import annotations

from qa.models.__main__ import FORWARD, Outcome, run_model, table
from qa.models.cases import CASES


def test_a_model_is_close_and_stays_on_the_card():
    (case,) = (c for c in CASES if c.name == "GPT-2")
    outcome = run_model(case, ("forward", "backward"))
    assert outcome.is_close(FORWARD)
    assert outcome.fallbacks == {"forward": {}, "backward": {}}
    assert outcome.fault == ""
    assert table([outcome]).splitlines()[-1].endswith("| nothing |")


def test_the_table_names_what_stays_on_the_cpu():
    calls = {"forward": {"aten.a": (2, 0.25)}}
    outcome = Outcome("X", {"forward": 0.5}, fallbacks=calls, seconds={"forward": 1.0})
    assert not outcome.is_close(FORWARD)
    assert table([outcome]).endswith("| X | 5.0e-01 |  |  |  |  | forward: `aten.a` 2 × 25% |")
