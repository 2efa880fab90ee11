"""The calibrated model against measured kernels, and its constants against the fit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.hw.cost.estimate import Choice, Estimates, estimate_rows
from spyre.hw.cost.fit import FitRow, cross_validated, fit, fit_rows, rounded, start_of, steps_of
from spyre.hw.cost.machine import MachineConstant, default_machine
from spyre.hw.cost.rows import KernelRow, measured_rows

BARS = {
    "product": (0.10, 0.30),
    "batched_product": (0.25, 0.75),
    "product_8_bit": (0.20, 0.45),
    "few_cores": (0.10, 0.20),
    "chain": (0.06, 0.12),
    "pointwise": (0.04, 0.20),
    "reduction": (0.03, 0.06),
    "transpose": (0.03, 0.06),
    "broadcast": (0.06, 0.25),
    "concatenation": (0.10, 0.20),
    "tiled": (0.03, 0.06),
    "copy": (0.20, 0.60),
    "memset": (0.20, 0.75),
}
"""Bounds of the median and 90th percentile of errors of rows cross-validated by shape."""


@cache
def estimates() -> Estimates:
    return estimate_rows(measured_rows())


def pairs() -> list[tuple[KernelRow, float, float]]:
    """Rows with both times."""
    return [(each.row, each.us or 0.0, each.row.us or 0.0) for each in estimates().compared]


@cache
def fitted() -> dict[str, MachineConstant]:
    return fit(default_machine(), measured_rows())


@cache
def rows() -> list[FitRow]:
    return fit_rows(measured_rows())


def errors(kind: str) -> np.ndarray:
    """Errors of the rows of a class by constants that did not see their shapes."""
    machine = default_machine()
    steps = {step: names for step, names in steps_of(machine).items() if kind in step.split(", ")}
    step, names = next(iter(steps.items()), (kind, []))
    chosen = [row for row in rows() if row.kind in step.split(", ")]
    found = cross_validated(machine, start_of(machine, names, chosen), chosen)
    return np.abs(found[[row.kind == kind for row in chosen]])


@pytest.mark.parametrize("kind", BARS)
def test_cross_validated_errors(kind: str):
    found = errors(kind)
    median, tenth = BARS[kind]
    assert np.median(found) <= median
    assert np.quantile(found, 0.9) <= tenth


def test_shipped_constants_are_the_fitted_ones():
    known = default_machine().constants
    for name, constant in fitted().items():
        shipped = known[name]
        assert constant.rows == shipped.rows, name
        if name.startswith("spread."):
            assert constant.value == pytest.approx(shipped.value, rel=0.02), name
        else:
            pairs = zip(np.ravel(constant.value), np.ravel(shipped.value), strict=True)
            assert all(a == pytest.approx(b, rel=0.01) for a, b in pairs), name
            assert constant.spread == pytest.approx(shipped.spread, abs=2e-3), name
    assert {f"spread.{kind}" for kind in default_machine().spread} <= fitted().keys()


def test_a_card_that_is_slower_by_a_tenth_has_other_constants():
    """Rows of one class change the constants of that class only."""
    slower = [row for row in rows() if row.kind == "transpose"]
    measured = [row.row for row in slower]
    found = fit(default_machine(), [replace(row, us=1.1 * (row.us or 0)) for row in measured])
    assert found["calibration.transpose_gbps"].value == pytest.approx(
        rounded(default_machine().calibration.transpose_gbps / 1.1), rel=0.01
    )
    assert set(found) == {"calibration.transpose_gbps", "spread.transpose"}


def choices(words: str) -> list[Choice]:
    return [each for each in estimates().choices if words in each.title and each.rows > 2]


def test_choice_of_granites_linears():
    found = choices("matmul B1 M")
    assert len(found) == 5
    assert max(each.cost for each in found) <= 0.05
    assert np.mean([each.cost for each in found]) <= 0.02
    ordered = sum(each.ordered for each in found) / sum(each.pairs for each in found)
    assert ordered > 0.85


def test_the_fastest_layouts_are_named():
    for each in choices("bmm A:"):
        assert each.chosen == each.best
        assert each.rows == 8
        assert "A:batch B:batch C:batch" in each.chosen


GRANITE = {"qo": 2, "kv": 2, "up": 2, "down": 1}


@pytest.mark.parametrize("count", [512, 1024, 2048])
def test_sums_of_granites_linears(count: int):
    """All linears of a layer: gate and up are alike."""
    times = np.zeros(2)
    for row, us, measured_us in pairs():
        _, _, name = row.kernel.partition("linear ")
        if name in GRANITE and row.dtype == "fp16" and (row.sizes or {})["M"] == count:
            times += GRANITE[name] * np.array([us, measured_us])
    assert times[0] / times[1] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("count", "shapes"),
    [
        (1, {"N4096 K4096": 2, "N1024 K4096": 2}),
        (64, {"N4096 K4096": 2, "N1024 K4096": 2, "N12800 K4096": 2, "N4096 K12800": 1}),
    ],
)
def test_sums_of_few_rows(count: int, shapes: dict[str, int]):
    """The fastest measured division of each; no source has all four for 1 row."""
    times = np.zeros(2)
    for shape, number in shapes.items():
        measured = [
            (us, measured_us)
            for row, us, measured_us in pairs()
            if f"M{count} {shape}" in row.cells["shapes"]
            and (row.split is not None, row.dtype, row.lx_fraction == 0.2) == (True, "fp16", False)
        ]
        times += number * np.array(min(measured, key=lambda pair: pair[1]))
    assert times[0] / times[1] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("columns", [2048, 4096])
def test_best_row_tiles_of_softmax(columns: int):
    found = {
        row.tiles: (us, measured_us)
        for row, us, measured_us in pairs()
        if (row.kernel, row.cells["shapes"]) == ("softmax", f"16384x{columns}")
    }
    tiles = sorted(found)
    assert tiles == [1, 2, 4, 8, 16, 32]
    modelled, measured = (min(tiles, key=lambda k: found[k][place]) for place in (0, 1))
    assert abs(tiles.index(measured) - tiles.index(modelled)) <= 1
