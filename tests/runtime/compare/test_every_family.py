"""Operations of every family verify; windows cover all memory of engine and reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.operation.operation import Operation
from tests.examples import examples
from tests.hw.division_strategies import lookups, shuffles
from tests.hw.harness import (
    Fill,
    allocations_of,
    engine,
    fill_window,
    link,
    normals,
    small_numbers,
    windows,
)
from tests.hw.packed_cases import whole_numbers
from tests.hw.packed_strategies import convolutions, packed_matmuls, recodings, windowings
from tests.hw.plans.test_uneven import uneven_specs
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs, seeds
from tests.runtime.compare.verified import verify_program

DEVICE = engine()

SPECS = {
    "elementwise": (elementwise_specs("sub", 2, fp32=False), normals),
    "reduction": (reduction_specs("max", mask_bits=0xFFFE, fp32=False), normals),
    "sum": (reduction_specs("sum", mask_bits=0, fp32=False), normals),
    "matmul": (matmul_specs(), normals),
    "packed matmul": (packed_matmuls("int8"), whole_numbers(-128, 128)),
    "convolution": (convolutions(""), small_numbers),
    "quantising": (recodings("qfp8ch", ("SEN169_FP16", "SEN143_FP8"), 1, {}), normals),
    "windowing": (windowings("maxpoolfwd", 1, {}), normals),
    "shorter last slices": (uneven_specs(), small_numbers),
    "shuffle": (shuffles(), normals),
    "lookup": (lookups(), normals),
}


def verify(spec: OperationSpec | Operation, fill: Fill, seed: int) -> None:
    op = build_operation(spec) if isinstance(spec, OperationSpec) else spec
    found = windows(op)
    rng = np.random.default_rng(seed)
    for window in found:
        chosen = fill if window.operand < len(op.inputs) else small_numbers
        fill_window(window, chosen, "dl16", rng, (DEVICE.memory,))
    allocations = allocations_of(found)
    linked = link(DEVICE, [op], allocations)
    assert verify_program(DEVICE, linked, limit_points=1 << 40).verified == 1


@pytest.mark.parametrize("kind", SPECS)
@examples(6)
@given(data=st.data(), seed=seeds)
def test_family(kind: str, data: st.DataObject, seed: int) -> None:
    strategy, fill = SPECS[kind]
    verify(data.draw(strategy), fill, seed)
