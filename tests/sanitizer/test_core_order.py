"""Shuffled cores: right programs give the same bits, wrong ones may not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.errors import LaunchError
from spyre.hw.device.device import Device, parse_core_order
from spyre.hw.linking.linker import Linker
from spyre.hw.plans.core_plan import plan_operation, reduction_groups
from spyre.hw.reference import run_reference
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul
from spyre.runtime.run.session import run
from tests.examples import examples
from tests.hw import harness
from tests.hw.harness import (
    Trial,
    allocations_of,
    fill_window,
    literal_starts,
    reference_memory,
    windows,
)
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs, seeds
from tests.sanitizer.programs import RIGHT, shifted_in_place

specs = st.one_of(elementwise_specs("add", 2), reduction_specs("sum"), matmul_specs())


def test_parse():
    assert parse_core_order(None) is None
    assert parse_core_order("random") == 0
    assert parse_core_order("random:17") == 17
    for wrong in ("", "reverse", "random:", "random:x", "random17"):
        if wrong != "random:":
            with pytest.raises(LaunchError, match="SPY739"):
                parse_core_order(wrong)


def test_combining_cores_stay_together():
    a, b, c = (HostOperand(k << 34) for k in range(3))
    op = build_operation(matmul(8, 256, 64, a, b, c, (), {"mb": 4, "in": 2}))
    assert sorted(len(share) for share in reduction_groups(op)) == [2, 2, 2, 2]


def test_another_seed_is_another_order():
    a, b, c = (HostOperand(k << 34) for k in range(3))
    op = build_operation(matmul(32, 64, 64, a, b, c, (), {"mb": 32}))
    starts = literal_starts(op)
    relative = starts - starts[:, :1]
    one, other, same = (plan_operation(op, relative, core_order=s).tables for s in (1, 2, 1))
    assert len(one) >= 32
    assert (one == same).all()
    assert (one != other).any()


@examples(60)
@given(data=st.data(), seed=seeds, order=st.integers(0, 99))
def test_against_the_twin(data: st.DataObject, seed: int, order: int):
    op = build_operation(data.draw(specs))
    device, twin, trial = harness.engine(), reference_memory(), Trial(seed=seed)
    rng = np.random.default_rng(seed)
    found = windows(op)
    for window in found:
        fill_window(window, trial.fill_of(window.operand), "dl16", rng, (device.memory, twin))
    program = harness.make_program(1)
    linker = Linker(program, {"sdsc_0.json": op}, device.numerics, 1, core_order=order)
    ordered = sorted(allocations_of(found), key=lambda a: a.address_bytes)
    device.executor.run(linker.link(harness.Binding(allocations=tuple(ordered))))
    run_reference(op, twin, literal_starts(op), device.numerics)
    for window in found:
        harness.assert_equal(op, window, device.memory, twin, trial)


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_do_not_notice(name: str, tmp_path: Path):
    path = RIGHT[name](tmp_path)
    plain = run(path).outputs[0]
    shuffled = run(path, device=Device(core_order="random:5")).outputs[0]
    assert np.array_equal(plain, shuffled)


def test_a_program_that_depends_on_the_order_shows_it(tmp_path: Path):
    path = shifted_in_place(tmp_path)
    results = {
        run(path, device=Device(core_order=f"random:{seed}")).outputs[0].tobytes()
        for seed in range(8)
    }
    assert len(results) > 1
