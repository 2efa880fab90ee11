"""Packed matmuls, convolutions, windowed and recoding operations: engine against reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.dtypes import decode_device, decode_dl16, encode_device, encode_dl16
from spyre.errors import DeviceFault, UnsupportedError
from spyre.hw.linking.binding import Allocation
from spyre.hw.ops.elementwise import Family, OpDefinition
from spyre.hw.ops.table import OPS
from spyre.hw.plans.requantize import _FORMATS
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.operation.operation import MASK_CONSTANT, OVERFLOW_CONSTANT, Operation
from tests.examples import examples
from tests.hw.harness import (
    Array,
    Fill,
    Trial,
    any_numbers,
    compare,
    engine,
    link,
    map_tensors,
    move_lx,
    normals,
    region,
    small_numbers,
)
from tests.hw.packed_cases import a_stick, b_stick, build, operand, whole_numbers
from tests.hw.packed_strategies import convolutions, packed_matmuls, recodings, windowings
from tests.hw.strategies import modes, seeds, thread_counts

unchunked = modes.filter(lambda mode: not mode.startswith("dl16-chunk"))
"""Number modes in which these operations run in every format."""

FILLS: dict[str, Fill] = {
    "": small_numbers,
    "fp8": small_numbers,
    "int8": whole_numbers(-128, 128),
    "int4": whole_numbers(-8, 8),
}


def rows_of(family: Family) -> list[OpDefinition]:
    return [spec for spec in OPS.values() if spec.family is family]


def fills_of(kind: str) -> list[Fill]:
    return [FILLS[kind], FILLS[kind], small_numbers]


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
@examples(40)
@given(data=st.data(), seed=seeds, mode=unchunked, threads=thread_counts)
def test_packed_matmul(kind: str, data: st.DataObject, seed: int, mode: str, threads: int):
    compare(data.draw(packed_matmuls(kind)), Trial(fills_of(kind), mode, threads, seed=seed))


@pytest.mark.parametrize("kind", ["", "fp8", "int8", "int4"])
@examples(40)
@given(data=st.data(), seed=seeds, mode=unchunked, threads=thread_counts)
def test_convolution(kind: str, data: st.DataObject, seed: int, mode: str, threads: int):
    compare(data.draw(convolutions(kind)), Trial(fills_of(kind), mode, threads, seed=seed))


@pytest.mark.parametrize("spec", rows_of(Family.WINDOWING), ids=lambda s: s.name)
@examples(40)
@given(data=st.data(), seed=seeds, mode=unchunked, threads=thread_counts)
def test_windowing(spec: OpDefinition, data: st.DataObject, seed: int, mode: str, threads: int):
    constants = dict.fromkeys(spec.constants, 0x3800)
    op = data.draw(windowings(spec.name, spec.inputs, constants))
    fill = any_numbers if spec.kernel_op == "max" else small_numbers
    compare(op, Trial(fill, mode, threads, ulps=0, seed=seed))


CONSTANTS = {"scaleact": 0x4300, "shiftact": 0x3C00}
"""DL16 codes: 6, 0.5."""


@st.composite
def masked_lanes(draw: st.DrawFn, op: Operation) -> Operation:
    """Elements of the first input that count as 0, from one of its stick dim on."""
    (lane,) = op.inputs[0].stick_dims
    first = draw(st.integers(0, op.extents[lane] - 1))
    return replace(
        op,
        masks={lane: ((first, op.extents[lane] - first),)},
        constants={**op.constants, MASK_CONSTANT: 0},
        constant_formats={**op.constant_formats, MASK_CONSTANT: "IEEE_FP32"},
    )


@pytest.mark.parametrize("spec", rows_of(Family.REQUANTIZE), ids=lambda s: s.name)
@examples(30)
@given(data=st.data(), seed=seeds, mode=modes, threads=thread_counts)
def test_recoding(spec: OpDefinition, data: st.DataObject, seed: int, mode: str, threads: int):
    constants = {name: CONSTANTS[name] for name in spec.constants}
    formats = _FORMATS[spec.kernel_op]
    op = data.draw(recodings(spec.name, formats, spec.inputs, constants))
    if OVERFLOW_CONSTANT in spec.optional_constants and data.draw(st.booleans()):
        op = data.draw(masked_lanes(op))
    fill = any_numbers if data.draw(st.booleans()) else normals
    fills = [
        whole_numbers(-(2**31), 2**31) if "INT32" in t.data_format else fill for t in op.tensors
    ]
    compare(op, Trial(fills, mode, threads, seed=seed))


@examples(40)
@given(data=st.data(), seed=seeds)
def test_scattered_scratchpads(data: st.DataObject, seed: int):
    """Every core has its tensors elsewhere in its LX, in any order of core numbers."""
    family = data.draw(st.sampled_from(["matmul", "convolution", "pooling", "quantising"]))
    op = {
        "matmul": packed_matmuls("int8"),
        "convolution": convolutions("int8"),
        "pooling": windowings("avgpoolnmapfwd", 2, {}),
        "quantising": recodings("csqint4wt", _FORMATS["quantize4"], 1, CONSTANTS),
    }[family]
    op = data.draw(op)
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(32)[: len(op.cores)]
    op = move_lx(replace(op, cores=tuple(int(n) for n in numbers)), rng, 1 << 16)
    fills = [FILLS["int8"] if "INT8" in t.data_format else small_numbers for t in op.tensors]
    try:
        compare(op, Trial(fills, ulps=0, seed=seed))
    except UnsupportedError as error:
        assert error.code == "SPY523"  # noqa: PT017
        assert family in ("matmul", "convolution")


def test_replicated_cores():
    """Several cores with the same work slice do the same work."""
    spec = OperationSpec(
        "batchmatmulint8",
        {"mb": 6, "out": 64, "in": 128},
        [
            operand(0, ("mb", "in"), a_stick("int8", "in", "mb"), "SENINT8", lx=True),
            operand(1, ("in", "out"), b_stick("int8", "in", "out"), "SENINT8", lx=True),
        ],
        [operand(2, ("mb", "out"), (("out", 64),), lx=True)],
        {"mb": 3},
        unit="pt",
    )
    op = build(spec)
    twice = map_tensors(op, lambda t: replace(t, starts=t.starts * 2))
    twice = replace(twice, core_slices=op.core_slices * 2, cores=tuple(range(6)))
    compare(twice, Trial(fills_of("int8")))


ROWS = 3
OUTSIDE = 0x5A5A
"""Contents of memory behind an argument, which must not change."""


def conversion(name: str, formats: tuple[str, str], sizes: tuple[int, int]) -> Operation:
    """``name`` over 3 rows of 128 columns, one core per row, rows next to each other."""
    operands = [
        OperandSpec(("mb", "out"), (("out", size),), region(k), data_format=data_format, role=role)
        for k, (data_format, size, role) in enumerate(zip(formats, sizes, "IO", strict=True))
    ]
    return build_operation(
        OperationSpec(
            name, {"mb": ROWS, "out": 128}, operands[:1], operands[1:], {"mb": ROWS},
            data_format=formats[0],
        )
    )  # fmt: skip


def run_cut(op: Operation, sizes: tuple[int, int], source: Array) -> Array:
    """Bytes of the output and behind it, where the arguments have ``sizes`` and others the rest."""
    memory = engine().memory
    for k in range(2):
        memory.write(region(k), np.full(1 << 11, OUTSIDE, np.uint16).view(np.uint8))
    memory.write(region(0), source.view(np.uint8).reshape(-1))
    allocations = [Allocation(f"t{k}", region(k), size) for k, size in enumerate(sizes)]
    engine().executor.run(link(engine(), [op], allocations))
    return memory.read(region(1), 1 << 11)


def test_a_second_stick_behind_the_argument_is_read_as_zero():
    """To fp8, 64 of 128 columns: other tensors behind are not quantised into the result."""
    op = conversion("qfp8ch", ("SEN169_FP16", "SEN143_FP8"), (64, 128))
    values = np.arange(ROWS * 64, dtype=np.float32).reshape(ROWS, 64) - 64
    found = run_cut(op, (ROWS * 128, ROWS * 128), encode_dl16(values))[: ROWS * 128]
    sticks = decode_device(found.view(np.uint8), "SEN143_FP8").reshape(ROWS, 8, 2, 8)
    expected = decode_device(encode_device(values, "SEN143_FP8"), "SEN143_FP8")
    np.testing.assert_array_equal(sticks[:, :, 0].reshape(ROWS, 64), expected)
    np.testing.assert_array_equal(sticks[:, :, 1], 0)


def test_a_second_stick_behind_the_argument_is_not_written():
    """From fp8, 64 of 128 columns: memory of other tensors does not change."""
    op = conversion("fp8todl16", ("SEN143_FP8", "SEN169_FP16"), (128, 64))
    values = np.arange(ROWS * 128, dtype=np.float32).reshape(ROWS, 8, 2, 8) % 16
    found = run_cut(op, (ROWS * 128, ROWS * 128), encode_device(values, "SEN143_FP8"))
    sticks = found.view(np.uint16).reshape(-1, 64)
    np.testing.assert_array_equal(decode_dl16(sticks[:ROWS]), values[:, :, 0].reshape(ROWS, 64))
    assert (sticks[ROWS:] == OUTSIDE).all()


def test_a_first_stick_outside_is_a_fault():
    op = conversion("qfp8ch", ("SEN169_FP16", "SEN143_FP8"), (64, 128))
    with pytest.raises(DeviceFault, match="SPY411]: qfp8ch touches memory outside"):
        link(engine(), [op], [Allocation("t1", region(1), ROWS * 128)])
