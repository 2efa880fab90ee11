"""Verifying: right programs agree, a wrong reference or engine is found, and said where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import spyre
from spyre.dtypes import find_stored_format
from spyre.errors import DeviceLocation, MismatchError
from spyre.hw.ops.elementwise import Family
from spyre.hw.reference import run_reference
from spyre.hw.reference.agreement import (
    AGREEMENTS,
    NOT_COMPARABLE,
    agreement_of,
    ordered_codes,
    ulp_distance,
)
from spyre.runtime.compare import executes
from spyre.runtime.run.session import RunOptions, Session
from tests.runtime.bundles import abs_of_sum, add_in_place, scratch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("name", ["softmax", "matmul", "add_loop"])
def test_examples_agree(name):
    result = spyre.run(EXAMPLES / name, verify=True)
    assert result.verification is not None
    assert result.verification.not_verified == 0
    assert result.verification.verified == sum(e.executions for e in result.executes)
    plain = spyre.run(EXAMPLES / name)
    assert np.array_equal(result.outputs[0], plain.outputs[0])
    assert plain.verification is None


@pytest.mark.parametrize("make", [abs_of_sum, add_in_place, scratch])
def test_places_of_all_kinds(make, tmp_path):
    result = spyre.run(make(tmp_path), verify=True, seed=3)
    assert "agree with the reference implementation" in str(result.verification)


def wrong_reference(monkeypatch: pytest.MonkeyPatch, execute: str, change: int) -> None:
    """A reference whose result of ``execute`` is off by ``change`` codes in one element."""

    def run(op, memory, starts, *rest):
        run_reference(op, memory, starts, *rest)
        if op.name == execute:
            at = int(starts[-1, 2]) + 128 + 6
            code = memory.view(at, 2).view(np.uint16)
            code += np.uint16(change)

    monkeypatch.setattr(executes, "run_reference", run)


def test_a_wrong_element_is_named(monkeypatch):
    wrong_reference(monkeypatch, "realdiv", 2)
    with pytest.raises(MismatchError) as caught:
        spyre.run(EXAMPLES / "softmax", verify=True)
    finding = caught.value.finding
    place = finding.location
    assert isinstance(place, DeviceLocation)
    assert (caught.value.code, caught.value.exit_code) == ("SPY620", 1)
    assert (place.execute, place.core, place.loop_indices) == (4, 2, ())
    assert place.sdsc.endswith("sdsc_4.json")
    assert place.source is not None
    assert place.source.line > 1
    assert place.tensor
    assert finding.message.endswith("at mb 33, out 3")
    assert "within 1 ulp" in finding.expected
    assert finding.found.endswith("2 ulp away; 1 elements differ")


def test_one_ulp_is_allowed_to_computed_numbers(monkeypatch):
    wrong_reference(monkeypatch, "realdiv", 1)
    assert spyre.run(EXAMPLES / "softmax", verify=True).verification is not None


def test_a_place_in_the_scratchpad(monkeypatch):
    """Addresses count from the start of the core's LX."""
    wrong_reference(monkeypatch, "exp", 0x4000)
    with pytest.raises(MismatchError) as caught:
        spyre.run(EXAMPLES / "softmax", verify=True)
    place = caught.value.location
    assert isinstance(place, DeviceLocation)
    assert place.core == 2
    assert place.address_bytes is not None
    assert place.address_bytes < 2 << 20


def test_the_tile_of_a_loop(monkeypatch):
    calls = []

    def run(op, memory, starts, *rest):
        run_reference(op, memory, starts, *rest)
        calls.append(starts)
        if len(calls) == 3:
            memory.view(int(starts[-1, 0]), 2)[:] ^= 0x10

    monkeypatch.setattr(executes, "run_reference", run)
    with pytest.raises(MismatchError, match=r"loop indices \(2,\)"):
        spyre.run(EXAMPLES / "add_loop", verify=True)
    assert len(calls) == 3


def test_a_changed_input_is_found(monkeypatch):
    def run(op, memory, starts, *rest):
        run_reference(op, memory, starts, *rest)
        memory.view(int(starts[0, 0]), 1)[:] ^= 1

    monkeypatch.setattr(executes, "run_reference", run)
    with pytest.raises(MismatchError, match="the engine changed an input"):
        spyre.run(EXAMPLES / "add_loop", verify=True)


def test_nothing_is_left_out_silently():
    options = RunOptions(verify=True, verify_points=1000)
    result = Session().run(EXAMPLES / "add_loop", None, options)
    assert result.verification is not None
    assert (result.verification.verified, result.verification.not_verified) == (0, 4)
    (finding,) = [f for f in result.findings if f.code == "SPY621"]
    assert finding.message == "add was not verified (4 times)"
    assert finding.found == "32768 points"


def test_every_family_has_an_allowance():
    assert set(AGREEMENTS) >= set(Family)
    assert agreement_of("a family of tomorrow").ulps == 1


def test_integers_must_be_equal():
    agreement = agreement_of(Family.ELEMENTWISE)
    assert agreement.ulps_of(find_stored_format("IEEE_INT32")) == 0
    assert agreement.ulps_of(find_stored_format("IEEE_FP32")) == agreement.wide_ulps


class TestDistance:
    @pytest.mark.parametrize(
        ("name", "a", "b", "ulps"),
        [
            ("SEN169_FP16", 0x0000, 0x8000, 0),
            ("SEN169_FP16", 0x0001, 0x8001, 2),
            ("SEN169_FP16", 0x3C00, 0x3C05, 5),
            ("IEEE_FP32", 0x7FC00000, 0x7FC00001, 0),
            ("IEEE_FP32", 0x7F800001, 0x7F800000, NOT_COMPARABLE),
            ("IEEE_INT32", 0xFFFFFFFF, 1, 2),
            ("SENUINT32", 0xFFFFFFFF, 0, 0xFFFFFFFF),
            ("SENINT4", 0x12, 0x13, 1),
        ],
    )
    def test_of_two_codes(self, name, a, b, ulps):
        stored = find_stored_format(name)
        size = max(stored.bits // 8, 1)
        sides = [np.frombuffer(c.to_bytes(size, "little"), np.uint8) for c in (a, b)]
        assert ulp_distance(*sides, stored, "dl16").tolist() == [ulps]

    def test_half_has_nan_in_ieee_mode_only(self):
        stored = find_stored_format("SEN169_FP16")
        a, b = (np.array([c], np.uint16).view(np.uint8) for c in (0x7E00, 0x7E10))
        assert ulp_distance(a, b, stored, "ieee").tolist() == [0]
        assert ulp_distance(a, b, stored, "dl16").tolist() == [16]

    def test_order_is_that_of_the_values(self):
        codes = np.array([0xC000, 0xBC00, 0x8000, 0x0000, 0x3C00], np.uint16)
        ordered = ordered_codes(codes.view(np.uint8), find_stored_format("SEN169_FP16"))
        assert ordered.tolist() == sorted(ordered.tolist())
