"""Interpreted kernels leave the bits of compiled ones: real programs, and every code."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from qa.conformance.cases import find_cases
from spyre.hw.device.device import Device, Executor
from spyre.hw.device.threads import shared_pool
from spyre.hw.device.transfer import _run, plan_transfer
from spyre.hw.interpreter.background import transfer
from spyre.hw.interpreter.machine import multiply_add
from spyre.hw.numerics import parse_numerics
from spyre.hw.ops.elementwise import Family, OpDefinition
from spyre.hw.ops.table import OPS
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.runtime.cases import read_case
from spyre.runtime.run.session import Session, session_of
from tests.hw.golden_cases import GOLDEN, VECTORS
from tests.hw.harness import allocations_of, engine, fill_window, link, region, windows
from tests.hw.interpreter.both_ways import differing_kernels, equal_halves
from tests.hw.kernels.test_kernels import constants_of, rows_of
from tests.hw.test_golden_ops import run_case

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
EVERY = 1 if os.environ.get("SPYRE_TEST_EXAMPLES") else 8


@pytest.mark.shared
def test_real_programs(shared_dir: Path):
    device = engine()
    for directory in find_cases(shared_dir / "bundles")[::EVERY]:
        session = session_of(device)
        with session.placed(session.describe(read_case(directory))) as placement:
            placement.fill()
            for number in range(len(placement.launches)):
                assert not differing_kernels(device, placement.link(number)), directory


@pytest.mark.parametrize("example", ["add_loop", "matmul_tile", "softmax"])
@pytest.mark.parametrize("mode", ["dl16", "ieee"])
def test_examples(example: str, mode: str):
    session = Session(Device(mode, threads=1))
    linked = session.run(EXAMPLES / example).launches[0].linked
    assert not differing_kernels(session.device, linked)


@pytest.mark.parametrize("mode", ["dl16", "dl16:alu=even", "ieee"])
@pytest.mark.parametrize(
    "spec",
    [s for s in rows_of(Family.ELEMENTWISE) if s.kernel_op != "layernormscale"],
    ids=lambda s: s.name,
)
def test_operations_on_every_code(spec: OpDefinition, mode: str):
    """65,536 codes in the first operand, in another order in those behind it."""
    *inputs, output = [HostOperand(region(k)) for k in range(spec.inputs + 1)]
    operation = pointwise(spec.name, (1024, 64), inputs, output, {"mb": 4}, constants_of(spec))
    op = build_operation(operation)
    device, found = engine(mode), windows(op)
    for k, window in enumerate(found[:-1]):
        codes = np.random.default_rng(k).permutation(1 << 16) if k else np.arange(1 << 16)
        fill_window(window, lambda rng, n: np.zeros(n), mode, np.random.default_rng(), [])
        device.memory.write(window.low, codes.astype(np.uint16).view(np.uint8))
    linked = link(device, [op], allocations_of(found))
    assert not differing_kernels(device, linked, equal_halves if mode == "ieee" else np.array_equal)


CASES = [
    (name, mode)
    for name, row in OPS.items()
    for mode in {
        Family.ELEMENTWISE: (),
        Family.REDUCTION: ("dl16", "dl16-chunk"),
        Family.MATMUL: ("dl16", "dl16-chunk"),
    }.get(row.family, ("dl16",))
]


@pytest.mark.parametrize(("name", "mode"), CASES, ids=lambda value: value)
def test_operations_of_other_families(
    name: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On golden vectors."""
    case = GOLDEN[name].cases[0]
    with np.load(VECTORS / f"{name}.npz") as stored:
        inputs = [stored[f"{case.name}.in{k}"] for k in range(len(case.operands) - 1)]
    expected = run_case(case, inputs, tmp_path, 1, mode)
    monkeypatch.setattr(Executor, "_call", Executor._interpret)
    assert np.array_equal(run_case(case, inputs, tmp_path, 1, mode), expected)


COPIES = ["float16", "float32", "bfloat16", "bool", "int64", "int32", "int16", "int8", "uint8"]


@pytest.mark.parametrize("dtype", COPIES)
@pytest.mark.parametrize("mode", ["dl16", "ieee", "dl16:dma=even,ninf=nan,saturate"])
def test_copies(dtype: str, mode: str):
    """To the card and back, with rows that end inside of a stick."""
    numerics, sizes, strides = parse_numerics(mode), (37, 3, 70), (210, 70, 1)
    layout = SpyreTensorLayout.from_host(sizes, dtype)
    rng = np.random.default_rng(1)
    host = rng.integers(0, 2 if dtype == "bool" else 256, (2, 37 * 210 * 8), np.uint8)
    there = np.stack([rng.integers(0, 256, layout.device_bytes, np.uint8)] * 2)
    host[1] = host[0]
    for to_device in (True, False):
        plan = plan_transfer(layout, sizes, strides, strides, dtype, numerics, to_device)
        _run(plan, host[0].ctypes.data, there[0].ctypes.data, shared_pool(1))
        transfer(plan.table, host[1].ctypes.data, there[1].ctypes.data, plan.units)
        assert np.array_equal(*(there if to_device else host))
        there[:] = rng.integers(0, 256, layout.device_bytes, np.uint8)


def test_fused_arithmetic_rounds_once():
    """Where a product of two 24-bit numbers and an addend meet half way between two numbers."""
    from spyre.hw.kernels.intrinsics import multiply_add as compiled
    from spyre.hw.kernels.jit import kernel

    @kernel
    def fused(a, b, c, out):
        for i in range(out.size):
            out[i] = compiled(a[i], b[i], c[i])

    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 32, (3, 1 << 18), np.uint32)
    a, b, c = bits.view(np.float32)
    near = rng.integers(-2, 3, c.size).astype(np.float32)
    with np.errstate(all="ignore"):
        c[::2] = (-(a * b) * (1 + near * np.float32(2.0**-24)))[::2]
        found = multiply_add(a, b, c)
    expected = np.empty_like(found)
    fused(a, b, c, expected)
    several_nan = np.isnan(bits.view(np.float32)).sum(axis=0) > 1
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert np.all(same | several_nan)
