"""The comparison of values: a slow twin, and the cases the rules exist for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from qa.opinfo.compare import EXPLAINED, Expected, compare
from qa.opinfo.tolerances import DEFAULTS, Tolerance, limit_of

HALF, SINGLE = torch.float16, torch.float32
INF, NAN = float("inf"), float("nan")
VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1.001, 65504.0, 70000.0, INF, -INF, NAN]),
    st.floats(-10, 10, width=32),
)


def error_of(
    found: list[float],
    wanted: list[float],
    dtype: torch.dtype = SINGLE,
    native: list[float] | None = None,
    movement: list[float] | None = None,
    tolerance: Tolerance | None = None,
) -> float:
    expected = Expected(
        torch.tensor(wanted),
        torch.tensor(native if native is not None else wanted).to(dtype),
        None if movement is None else torch.tensor(movement, dtype=torch.float64),
    )
    return compare(torch.tensor(found).to(dtype), expected, tolerance or DEFAULTS[dtype]).error


def twin(
    found: float,
    wanted: float,
    native: float,
    movement: float,
    dtype: torch.dtype,
    tolerance: Tolerance,
) -> bool:
    """Return True if one element passes, by a slow reference."""
    limit = limit_of(dtype)

    def same_class(one: float, other: float) -> bool:
        if dtype is HALF:
            return not math.isfinite(one) and (not math.isfinite(other) or abs(other) >= limit)
        return (math.isnan(one) and math.isnan(other)) or (math.isinf(one) and one == other)

    def near(one: float, other: float, bound: float) -> bool:
        if not (math.isfinite(one) and math.isfinite(other)):
            return False
        off = abs(one - max(-limit, min(limit, other)))
        return off == 0 or off <= bound

    bound = tolerance.atol + tolerance.rtol * abs(wanted) + tolerance.condition * movement
    off = abs(native - wanted)
    if math.isfinite(off) and off <= EXPLAINED * abs(wanted):
        bound += tolerance.native * off
    own = tolerance.atol + tolerance.rtol * abs(native)
    if same_class(found, wanted) or same_class(found, native):
        return True
    return near(found, wanted, bound) or near(found, native, own)


@given(
    st.lists(st.tuples(VALUES, VALUES, VALUES, st.floats(0, 1)), min_size=1, max_size=6),
    st.sampled_from([HALF, SINGLE]),
    st.sampled_from([0.0, 2.0]),
)
def test_it_agrees_with_the_slow_twin(
    elements: list[tuple[float, float, float, float]], dtype: torch.dtype, condition: float
) -> None:
    tolerance = Tolerance(2**-9, 1e-6, native=2.0, condition=condition)
    found, wanted, native, movement = (list(column) for column in zip(*elements, strict=True))
    error = error_of(found, wanted, dtype, native, movement, tolerance)
    stored = torch.tensor(found).to(dtype).double().tolist()
    own = torch.tensor(native).to(dtype).double().tolist()
    wide = torch.tensor(wanted).double().tolist()
    passes = [
        twin(*element, dtype, tolerance)
        for element in zip(stored, wide, own, movement, strict=True)
    ]
    assert (error <= 1.0) == all(passes)


@pytest.mark.parametrize(
    ("found", "wanted", "dtype", "passes"),
    [
        (INF, NAN, HALF, True),
        (-INF, INF, HALF, True),
        (INF, NAN, SINGLE, False),
        (-INF, INF, SINGLE, False),
        (NAN, NAN, SINGLE, True),
        (1.0, NAN, HALF, False),
        (NAN, 1.0, HALF, False),
        (INF, 65500.0, HALF, True),
        (INF, 60000.0, HALF, False),
        (1 + 2**-9, 1.0, HALF, True),
        (1 + 2**-8, 1.0, HALF, False),
        (1 + 2**-9, 1.0, SINGLE, False),
    ],
)
def test_one_element(found: float, wanted: float, dtype: torch.dtype, passes: bool) -> None:
    assert (error_of([found], [wanted], dtype) <= 1.0) is passes


def test_what_the_cpu_is_off_itself_widens_the_bound_up_to_a_quarter() -> None:
    assert error_of([1.18], [1.0], HALF, native=[1.1]) <= 1.0
    assert error_of([1.18], [1.0], HALF, native=[1.0]) > 1.0
    assert error_of([1.8], [1.0], HALF, native=[1.5]) > 1.0
    assert error_of([1.5], [1.0], HALF, native=[1.5]) <= 1.0


def test_the_message_names_the_worst_element() -> None:
    wanted = torch.tensor([1.0, 2.0, 3.0])
    found = torch.tensor([1.0, 2.5, 3.001])
    message = compare(found, Expected(wanted, wanted), DEFAULTS[SINGLE]).message
    assert "2 of 3 elements" in message
    assert "flat index 1: 2.5 instead of 2.0" in message


@pytest.mark.parametrize(
    ("found", "wanted", "passes"),
    [
        ([1, 2], [1, 2], True),
        ([1, 3], [1, 2], False),
        ([-1], [2**32 - 1], True),
        ([2**31 - 1], [2**40], True),
        ([5], [2**40], False),
    ],
)
def test_integers_are_equal_or_cut_to_int32(
    found: list[int], wanted: list[int], passes: bool
) -> None:
    expected = Expected(torch.tensor(wanted), torch.tensor(wanted))
    assert (compare(torch.tensor(found), expected, DEFAULTS[SINGLE]).error <= 1.0) is passes


def test_booleans_are_exact() -> None:
    right = torch.tensor([True, False])
    assert compare(right, Expected(right, right), DEFAULTS[HALF]).error == 0.0
    assert compare(~right, Expected(right, right), DEFAULTS[HALF]).error > 1.0


def test_complex_numbers_by_their_parts() -> None:
    right = torch.tensor([1 + 2j])
    assert compare(right, Expected(right, right), DEFAULTS[SINGLE]).error == 0.0
    assert compare(right.conj(), Expected(right, right), DEFAULTS[SINGLE]).error > 1.0


def test_no_elements_differ_by_nothing() -> None:
    assert error_of([], []) == 0.0
