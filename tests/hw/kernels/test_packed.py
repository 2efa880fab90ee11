"""Packed matmuls, convolutions, windowed and recoding operations: engine against reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.errors import UnsupportedError
from spyre.hw.ops.table import OPS, Family, OpDefinition
from spyre.hw.plans.requantize import _FORMATS
from spyre.mlir.builder.operations import OperationSpec
from tests.hw.harness import (
    Fill,
    Trial,
    any_numbers,
    compare,
    map_tensors,
    move_lx,
    normals,
    small_numbers,
)
from tests.hw.packed_cases import a_stick, b_stick, build, operand, whole_numbers
from tests.hw.packed_strategies import convolutions, packed_matmuls, recodings, windowings
from tests.hw.strategies import examples, modes, seeds, thread_counts

unchunked = modes.filter(lambda mode: not mode.startswith("dl16-chunk"))
"""Number modes in which these operations run whatever their format."""

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


@pytest.mark.parametrize("spec", rows_of(Family.REQUANTIZE), ids=lambda s: s.name)
@examples(30)
@given(data=st.data(), seed=seeds, mode=modes, threads=thread_counts)
def test_recoding(spec: OpDefinition, data: st.DataObject, seed: int, mode: str, threads: int):
    constants = {name: CONSTANTS[name] for name in spec.constants}
    formats = _FORMATS[spec.kernel_op]
    op = data.draw(recodings(spec.name, formats, spec.inputs, constants))
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
