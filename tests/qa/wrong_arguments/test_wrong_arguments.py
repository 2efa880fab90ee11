"""Wrong arguments by seed: the same call for a seed, and the CPU's error on the card."""

from __future__ import annotations

import pytest
import torch

from qa.wrong_arguments.calls import Call, described, random_call
from qa.wrong_arguments.comparison import FINDS, compared, counted, error_of, outcome_of

SEEDS = range(40)


def test_a_seed_is_one_call():
    calls = [str(random_call(seed)) for seed in range(6)]
    assert calls == [str(random_call(seed)) for seed in range(6)]
    assert len({*calls}) > 3


def test_the_card_refuses_what_the_cpu_refuses(monkeypatch):
    monkeypatch.setenv("SPYRE_FALLBACK", "silent")
    outcomes = [outcome_of(seed) for seed in SEEDS]
    assert not [outcome for outcome in outcomes if outcome.kind in FINDS]
    assert sum(outcome.kind == "same" for outcome in outcomes) > 5, counted(outcomes)


@pytest.mark.parametrize(
    ("cpu", "card", "kind"),
    [
        (None, None, "taken"),
        (RuntimeError("sizes"), RuntimeError("sizes"), "same"),
        (RuntimeError("on cpu"), RuntimeError("on spyre:0"), "same"),
        (RuntimeError("sizes"), IndexError("sizes"), "other"),
        (RuntimeError("sizes"), RuntimeError("zip()"), "other"),
        (RuntimeError("sizes"), None, "computed"),
        (None, RuntimeError("zip()"), "uncoded"),
        (RuntimeError("not implemented for 'Half'"), None, "wider"),
    ],
)
def test_how_errors_compare(cpu, card, kind):
    assert compared(0, Call("f", torch.add, (), {}), cpu, card).kind == kind


def test_an_error_of_all_devices_but_the_cpu_is_right():
    call = Call("narrow_copy", torch.narrow_copy, (torch.zeros(10, 5), 3, 0, 0), {})
    cpu, card = error_of(call, "cpu"), error_of(call, "spyre")
    assert (type(cpu), type(card)) == (RuntimeError, IndexError)
    assert compared(0, call, cpu, card).kind == "same"


def test_a_call_gets_copies_of_its_arguments():
    x = torch.zeros(2)
    call = Call("fill_", torch.Tensor.fill_, (x, 1.0), {})
    assert error_of(call, "cpu") is error_of(call, "spyre") is None
    assert described(x) == "float32[2]"
    assert (x == 0).all()
