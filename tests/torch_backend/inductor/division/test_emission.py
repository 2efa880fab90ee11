"""SDSCs take the divisions: writer and checker of the format accept them, cores agree."""

from __future__ import annotations

from hypothesis import given, strategies as st

from spyre.mlir.builder.operations import build_inspected
from spyre.mlir.builder.recipes import (
    HostOperand,
    matmul as matmul_sdsc,
    pointwise as pointwise_sdsc,
)
from spyre.torch_backend.inductor.division import core_slices, divide_op, with_division
from tests.examples import examples
from tests.torch_backend.inductor.division.specs import bmm, matmul, order_of, pointwise

SEGMENT = 1 << 34
SIZE = st.sampled_from([1, 3, 8, 60, 64, 96, 100, 128, 256, 1000, 4096])
CORES = st.integers(1, 32)


def check(recipe, names, spec, division):
    """The SDSC's slices are those of the division; the checker finds nothing."""
    built = build_inspected(recipe)
    assert [str(finding) for finding in built.inspection.findings] == []
    operation = built.inspection.operation
    assert operation is not None
    slices = core_slices(order_of(with_division(spec, division)), division.splits)
    assert len(operation.cores) == division.cores
    for symbol, name in names.items():
        assert [row[name] for row in operation.core_slices] == slices[symbol].tolist()


def named(spec, names):
    return dict(zip(spec.symbols, names, strict=True))


@examples(40)
@given(SIZE, SIZE, SIZE, st.sampled_from([1, 6]), CORES)
def test_matmuls(m, k, n, b, cores):
    batched = b > 1
    spec = bmm(b, m, k, n) if batched else matmul(m, k, n)
    division = divide_op(spec, cores)
    names = named(spec, ("x", "mb", "out", "in") if batched else ("mb", "out", "in"))
    splits = {names[symbol]: count for symbol, count in division.splits.items()}
    operands = [HostOperand(SEGMENT * place) for place in (1, 2, 3)]
    recipe = matmul_sdsc(m, k, n, *operands, batch=[b] if batched else [], splits=splits)
    check(recipe, names, spec, division)


@examples(40)
@given(SIZE, SIZE, CORES, st.sampled_from([(16, "dl16tofp32", 32), (32, "fp32todl16", 16)]))
def test_conversions_take_whole_sticks_of_both_formats(rows, columns, cores, conversion):
    source_bits, op, target_bits = conversion
    spec = pointwise(rows, columns, bits=(source_bits, target_bits), op=op)
    division = divide_op(spec, cores)
    names = named(spec, ("mb", "out"))
    splits = {names[symbol]: count for symbol, count in division.splits.items()}
    formats = {16: "SEN169_FP16", 32: "IEEE_FP32"}
    source = HostOperand(SEGMENT, data_format=formats[source_bits])
    target = HostOperand(2 * SEGMENT, data_format=formats[target_bits])
    recipe = pointwise_sdsc(op, (rows, columns), [source], target, splits)
    check(recipe, names, spec, division)
