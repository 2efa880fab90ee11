"""Built operations, findings and programs equal those read from their files."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from spyre.mlir.builder.bundles import BuiltBundle
from spyre.mlir.builder.operations import OperationSpec, build_inspected
from spyre.mlir.operation.operation import Operation
from spyre.mlir.sdsc.inspection import inspect_operation, inspect_sdsc
from spyre.mlir.sdsc.writer import write_operation
from tests.examples import examples
from tests.hw.division_strategies import lookups, shuffles
from tests.hw.golden_cases import GOLDEN
from tests.hw.movement_strategies import (
    conversion_specs,
    copy_specs,
    gathers,
    paged,
    restickify_specs,
)
from tests.hw.packed_strategies import convolutions, packed_matmuls
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs
from tests.mlir.round_trip import check_bundle, check_operation
from tests.mlir.sample_bundles import SAMPLES

SPECS = st.one_of(
    elementwise_specs("add", 2),
    reduction_specs("sum"),
    matmul_specs(),
    copy_specs(),
    conversion_specs("dl16tofp32", True),
    restickify_specs(),
)
OPERATIONS = st.one_of(
    shuffles(),
    lookups(),
    gathers().map(lambda drawn: drawn[0]),
    gathers(scatter=True).map(lambda drawn: drawn[0]),
    paged().map(lambda drawn: drawn[0]),
    packed_matmuls("fp8"),
    convolutions("fp8"),
)


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_bundles(name: str) -> None:
    bundle = SAMPLES[name]()
    assert isinstance(bundle, BuiltBundle)
    check_bundle(bundle)


@pytest.mark.parametrize("name", GOLDEN)
def test_every_operation(name: str) -> None:
    for case in GOLDEN[name].cases:
        check_operation(build_inspected(case.spec))


@examples(60)
@given(SPECS)
def test_random_descriptions(spec: OperationSpec) -> None:
    check_operation(build_inspected(spec))


@examples(60)
@given(OPERATIONS)
def test_random_operations(op: Operation) -> None:
    built, read = inspect_operation(op), inspect_sdsc(write_operation(op), op.file)
    assert built.findings == read.findings
    assert (built.operation is None) == (read.operation is None)
