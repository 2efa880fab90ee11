"""Comparison of results: counts, special values, tolerances, and the place on the card."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as npst

from spyre.dtypes import decode_dl16, encode_dl16
from spyre.errors import MismatchError
from spyre.layout import SpyreTensorLayout
from spyre.runtime.compare.outputs import (
    EXACT,
    OutputLocation,
    StickWriter,
    Tolerance,
    compare,
    default_tolerance,
    format_comparison,
)

LOOSE = Tolerance(rtol=0.01, atol=0.001)
DL16_TOLERANCE = default_tolerance("float16", "SEN169_FP16")


class TestCompare:
    def test_equal(self):
        values = np.arange(6.0).reshape(2, 3)
        result = compare(values, values, EXACT)
        assert result.ok
        assert (result.mismatched, result.total) == (0, 6)
        assert result.max_abs == (0.0, (0, 0))

    def test_numbers_and_places(self):
        expected = np.array([[1.0, 2.0], [100.0, 0.0]])
        found = np.array([[1.5, 2.0], [103.0, 0.0005]])
        result = compare(found, expected, LOOSE)
        assert (result.mismatched, result.total) == (2, 4)
        assert result.max_abs == (3.0, (1, 0))
        assert result.max_rel == (math.inf, (1, 1))
        assert result.worst_index == (1, 0)
        assert (result.expected_worst, result.found_worst) == (100.0, 103.0)

    def test_limits_are_inclusive(self):
        expected = np.array([8.0])
        limits = Tolerance(rtol=0.25, atol=1.0)
        assert compare(np.array([11.0]), expected, limits).ok
        assert not compare(np.array([np.nextafter(11.0, 12)]), expected, limits).ok

    def test_half_precision_is_compared_as_float64(self):
        found, expected = np.array([60000.0], np.float16), np.array([-60000.0], np.float16)
        assert compare(found, expected, EXACT).max_abs == (120000.0, (0,))

    def test_infinities(self):
        expected = np.array([np.inf, -np.inf, np.inf, 1.0, np.inf])
        found = np.array([np.inf, -np.inf, -np.inf, np.inf, 1e38])
        result = compare(found, expected, Tolerance(rtol=1.0, atol=1e9))
        assert result.mismatched == 3
        assert result.worst_index == (2,)
        assert result.max_abs == (math.inf, (2,))

    def test_nan(self):
        found, expected = np.array([np.nan, np.nan, 1.0]), np.array([np.nan, 1.0, np.nan])
        assert compare(found, expected, LOOSE).mismatched == 2

    def test_dl16_keeps_nan_and_infinity_in_one_code(self):
        found, expected = np.array([np.inf, np.nan, 1.0]), np.array([np.nan, np.nan, np.nan])
        assert compare(found, expected, DL16_TOLERANCE).mismatched == 1
        reverse = compare(np.array([np.nan]), np.array([np.inf]), DL16_TOLERANCE)
        assert not reverse.ok

    def test_booleans(self):
        result = compare(np.array([True, False]), np.array([True, True]), EXACT)
        assert result.mismatched == 1
        assert (result.expected_worst, result.found_worst) == (True, False)

    def test_integers_beyond_float64(self):
        found, expected = np.array([2**60 + 1]), np.array([2**60])
        assert not compare(found, expected, EXACT).ok

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
    def test_scalars_and_empty_tensors(self, shape):
        result = compare(np.ones(shape), np.ones(shape), EXACT)
        assert result.ok
        assert result.total == math.prod(shape)
        assert "agree" in format_comparison(result)

    def test_wrong_scalar(self):
        result = compare(np.array(2.0), np.array(1.0), EXACT)
        assert (result.mismatched, result.worst_index) == (1, ())

    def test_shapes(self):
        with pytest.raises(MismatchError, match="SPY602"):
            compare(np.ones((2, 3)), np.ones((3, 2)), EXACT)

    @given(
        npst.arrays(np.float32, (4, 3), elements=st.floats(width=32)),
        npst.arrays(np.float32, (4, 3), elements=st.floats(width=32)),
    )
    def test_counts_as_numpy_does(self, found, expected):
        result = compare(found, expected, LOOSE)
        close = np.isclose(
            found.astype(float), expected.astype(float), LOOSE.rtol, LOOSE.atol, equal_nan=True
        )
        assert result.mismatched == np.count_nonzero(~close)
        if not result.ok:
            assert not close[result.worst_index]


class TestTolerances:
    def test_torch_defaults(self):
        torch = pytest.importorskip("torch")
        for name in ("float16", "bfloat16", "float32", "float64", "int64", "bool"):
            rtol, atol = torch.testing._comparison.default_tolerances(getattr(torch, name))
            assert default_tolerance(name) == Tolerance(rtol, atol)

    def test_dl16_outputs(self):
        assert DL16_TOLERANCE.merged_nan
        assert default_tolerance("bfloat16", "SEN169_FP16").rtol == 1.6e-2
        assert default_tolerance("float32", "IEEE_FP32") == default_tolerance("float32")
        assert default_tolerance("bool", "SEN169_FP16") == EXACT
        assert default_tolerance("int64", "IEEE_INT32") == EXACT

    @given(st.floats(-1e6, 1e6))
    def test_one_rounding_passes_either_way(self, value):
        code = int(encode_dl16(value))
        code = max(code & 0x7FFF, 1) | (code & 0x8000)
        for neighbour in (code - 1, code, code + 1):
            expected, found = decode_dl16([code]), decode_dl16([neighbour])
            assert compare(found, expected, DL16_TOLERANCE).ok

    def test_two_units_do_not(self):
        assert not compare(np.array([1 + 4 * 2.0**-9]), np.array([1.0]), DL16_TOLERANCE).ok


class TestReport:
    layout = SpyreTensorLayout.from_host([4, 128], "float16")
    expected = np.ones((4, 128))

    def place(self, writer=lambda stick: None, strides=()):
        return OutputLocation(self.layout, (4, 128), (128, 1), 0x400000000, writer, strides)

    def comparison(self):
        found = self.expected.copy()
        found[2, 70] = 3.0
        found[0, 0] = 1.5
        return compare(found, self.expected, LOOSE)

    def test_text(self):
        text = format_comparison(self.comparison(), "out0")
        assert text.splitlines() == [
            "out0: 2 of 512 elements differ (0.4 %)",
            "  greatest absolute difference: 2 at index (2, 70) (atol 0.001)",
            "  greatest relative difference: 2 at index (2, 70) (rtol 0.01)",
            "  worst element (2, 70): expected 1.0, found 3.0",
        ]

    def test_success_is_one_line(self):
        found = self.expected.copy()
        found[3, 1] = 1.001
        text = format_comparison(compare(found, self.expected, LOOSE), "out0")
        assert text == (
            "out0: all 512 elements agree (rtol 0.01, atol 0.001), "
            "greatest absolute difference 0.001 at index (3, 1)"
        )

    def test_place_on_the_card(self):
        place = self.place(lambda stick: StickWriter(stick[1], (5,)), (128, 1))
        text = format_comparison(self.comparison(), "out0", place)
        address = 0x400000000 + 128 * (4 + 2) + 2 * 6
        assert text.endswith(
            f"on the card: core 2, tile (5,), stick (1, 2), lane 6, address {address:#x}"
        )

    def test_place_without_cores(self):
        text = format_comparison(self.comparison(), "out0", self.place(strides=(128, 1)))
        assert text.endswith("on the card: stick (1, 2), lane 6, address 0x40000030c")

    def test_place_of_a_view(self):
        """Element (70, 2) of the transpose is element (2, 70) of the tensor."""
        place = self.place(strides=(1, 128))
        found = self.expected.T.copy()
        found[70, 2] = 3.0
        text = format_comparison(compare(found, self.expected.T, LOOSE), "out0", place)
        assert "stick (1, 2), lane 6" in text
