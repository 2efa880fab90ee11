"""Maximum and minimum: one rule for zeros and NaN on every path that computes them.

+0 is above -0, and a NaN loses against every number. Fused, staged, in place, one lane for a stick,
masked, reductions of either kind in every number mode: all against the one definition.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.hw.reference.definitions import maximum, minimum
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise, reduction
from tests.examples import examples
from tests.hw.harness import Array, Trial, allocations_of, compare, engine, link, region, windows
from tests.hw.strategies import elementwise_specs, reduction_specs, seeds

MODES = ("dl16", "dl16:alu=trunc", "dl16-chunk", "ieee")


def zeros_and_nans(rng: np.random.Generator, count: int) -> Array:
    """Mostly zeros of either sign, NaN (DL16: NINF), infinities; long stretches without numbers."""
    choices = np.array([0.0, -0.0, 0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0], np.float32)
    found = rng.choice(choices, count)
    quiet = np.repeat(rng.random(-(-count // 256)) < 0.5, 256)[:count]
    return np.where(quiet, rng.choice(choices[:5], count), found).astype(np.float32)


def at(k: int, absent: tuple[int, ...] = (), data_format: str = "SEN169_FP16") -> HostOperand:
    return HostOperand(region(k), absent, data_format=data_format)


def test_the_definition():
    nan = np.float32(np.nan)
    a = np.array([0.0, -0.0, -0.0, nan, 1.0, nan, -np.inf], np.float32)
    b = np.array([-0.0, 0.0, -0.0, -1.0, nan, nan, np.inf], np.float32)
    for x, y in ((a, b), (b, a)):
        found = maximum(x, y)
        np.testing.assert_array_equal(found, [0, 0, -0.0, -1, 1, nan, np.inf])
        assert np.signbit(found[:3]).tolist() == [False, False, True]
        found = minimum(x, y)
        np.testing.assert_array_equal(found, [0, 0, 0, -1, 1, nan, -np.inf])
        assert np.signbit(found[:3]).tolist() == [True, True, True]


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data_format", ["SEN169_FP16", "IEEE_FP32"])
def test_two_operands(name: str, mode: str, data_format: str):
    a, b, c = (at(k, (), data_format) for k in range(3))
    fused = pointwise(name, (24, 256), [a, b], c)
    lane = pointwise(name, (24, 256), [a, at(1, (1,), data_format)], c)
    row = pointwise(name, (24, 256), [a, at(1, (0,), data_format)], c)
    masked = replace(fused, masks={"out": [(100, 156)]}, constants={"samv-maskvalue": 0x8000})
    for spec in (fused, lane, row, masked):
        compare(spec, Trial(zeros_and_nans, mode, ulps=None, seed=3))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@examples(15)
@given(data=st.data(), seed=seeds, mode=st.sampled_from(MODES))
def test_two_operands_of_any_layout(name: str, data: st.DataObject, seed: int, mode: str):
    compare(data.draw(elementwise_specs(name, 2, {})), Trial(zeros_and_nans, mode, seed=seed))


@pytest.mark.parametrize("name", ["max", "min", "absmax"])
@examples(40)
@given(data=st.data(), seed=seeds, mode=st.sampled_from(MODES))
def test_reductions(name: str, data: st.DataObject, seed: int, mode: str):
    mask = data.draw(st.sampled_from([0x0000, 0x8000, 0xFFFF]))
    compare(
        data.draw(reduction_specs(name, mask_bits=mask)), Trial(zeros_and_nans, mode, seed=seed)
    )


def result_of(spec: OperationSpec, inputs: list[Array]) -> Array:
    op = build_operation(spec)
    device, found = engine(), windows(op)
    for window, numbers in zip(found, inputs, strict=False):
        device.memory.write(window.low, numbers.view(np.uint8).ravel())
    device.executor.run(link(device, [op], allocations_of(found)))
    return device.memory.read(found[-1].low, found[-1].high - found[-1].low)


@pytest.mark.parametrize("name", ["max", "min"])
def test_one_column_on_every_path(name: str):
    """64 rows of -0 and NaN with one +0: a reduction over rows, over lanes, and pair by pair."""
    rows = np.full((64, 32), -0.0, np.float32)
    rows[1::3] = np.nan
    rows[40] = 0.0
    wide = [at(k, (), "IEEE_FP32") for k in range(2)]
    over_rows = result_of(reduction(name, (64, 32), (0,), *wide), [rows]).view(np.float32)
    lanes = np.ascontiguousarray(rows.T)  # 32 rows of 64: two sticks each
    sticks = np.ascontiguousarray(lanes.reshape(32, 2, 32).swapaxes(0, 1))
    over_lanes = result_of(reduction(name, (32, 64), (1,), *wide), [sticks]).view(np.float32)
    expected = name == "min"  # -0 for min, +0 for max
    assert (over_rows[:32] == 0).all()
    assert (over_lanes == 0).all()
    assert (np.signbit(over_rows[:32]) == expected).all()
    assert (np.signbit(over_lanes) == expected).all()


def test_only_nans_give_nan():
    rows = np.full((8, 32), np.nan, np.float32)
    wide = [at(k, (), "IEEE_FP32") for k in range(2)]
    for name in ("max", "min", "absmax"):
        for axis in (0, 1):
            found = result_of(reduction(name, (8, 32), (axis,), *wide), [rows]).view(np.float32)
            assert np.isnan(found[:32]).all(), (name, axis)
