"""The calibrated model against measured kernels, and its constants against the fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from spyre.hw.cost.fit import fit
from spyre.hw.cost.machine import default_machine
from spyre.hw.cost.measured import MeasuredKernel, measured_kernels, predictions
from tools.cost_tables import group_errors, rms

BARS = {
    "pointwise": 0.05,
    "transpose": 0.05,
    "reduction": 0.06,
    "matmul": 0.15,
    "softmax tiled": 0.05,
    "matmul row tiled": 0.15,
    "matmul, all rows": 0.15,
}
"""Root mean square of the relative errors of the rows nothing was fitted on."""


Times = list[tuple[MeasuredKernel, float]]


def times(kernel: str, rows: int, columns: int, depth: int = 0) -> Times:
    """Measured kernels of one shape, and what the model says, microseconds."""
    return [
        (p.row, p.us)
        for p in predictions(default_machine())
        if (p.row.kernel, p.row.rows, p.row.columns, p.row.depth) == (kernel, rows, columns, depth)
    ]


def test_errors_of_the_rows_that_were_not_fitted():
    found = {line.group: line for line in group_errors(predictions(default_machine()))}
    for group, bar in BARS.items():
        assert found[group].reported_rms is not None
        assert found[group].reported_rms <= bar, found[group]


def test_halves():
    rows = measured_kernels()
    assert len(rows) == 76
    assert sum(row.fitted for row in rows) == 40
    assert [row.fitted for row in rows if row.group == "transpose"] == [True, False, True]
    assert [row.title for row in rows if not row.explained] == [
        "mm 2048x2048x1536, cores 4x8",
        "mm 2048x2048x3072, cores 4x8",
        "mm 2048x2048x6144, cores 4x8",
    ]


def test_the_file_is_sorted_as_the_rule_says():
    keys = [(r.group.replace(" ", "_"), r.kernel) for r in measured_kernels()]
    assert keys == sorted(keys)


def test_shipped_constants_are_the_fitted_ones():
    machine = default_machine()
    for name, value in fit(machine, measured_kernels()).items():
        assert machine.constants[name].value == pytest.approx(value, rel=5e-3), name
        assert "fitted" in machine.constants[name].source


def test_the_halves_may_change_places():
    rows = [replace(row, fitted=not row.fitted) for row in measured_kernels()]
    machine = default_machine().with_values(fit(default_machine(), rows))
    found = {line.group: line for line in group_errors(predictions(machine, rows=rows))}
    for group, bar in BARS.items():
        reported = found[group].reported_rms
        assert reported is not None
        assert reported <= bar, found[group]


@pytest.mark.parametrize("columns", [2048, 4096])
def test_best_row_tiles_of_softmax(columns: int):
    found = sorted(times("softmax", 16384, columns), key=lambda pair: pair[0].tiles)
    tiles = [row.tiles for row, _ in found]
    assert tiles == [1, 2, 4, 8, 16, 32]
    measured = min(range(6), key=lambda k: found[k][0].us)
    modelled = min(range(6), key=lambda k: found[k][1])
    assert abs(measured - modelled) <= 1


@pytest.mark.parametrize("shape", [(2048, 2048, 2048), (4096, 2048, 2048)])
def test_splits_of_products_are_ordered_as_measured(shape: tuple[int, int, int]):
    m, k, n = shape
    found = [pair for pair in times("mm", m, n, k) if pair[0].tiles == 1]
    assert len(found) > 1
    assert order([row.us for row, _ in found]) == order([us for _, us in found])


def order(values: Sequence[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda k: values[k])


def test_rms():
    assert rms([3.0, -4.0]) == pytest.approx(12.5**0.5)
    assert rms([]) is None
