"""Elementwise operations on every 16-bit code and on all pairs of special ones."""

from __future__ import annotations

import numpy as np
import pytest

from spyre.dtypes import NumericRules, decode_device, encode_device
from spyre.hw.ops.elementwise import Family, OpDefinition
from spyre.hw.reference.definitions import define
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from tests.hw.harness import (
    allocations_of,
    engine,
    fill_window,
    link,
    order_key,
    region,
    windows,
)
from tests.hw.kernels.test_kernels import CONSTANTS, ROUNDED, constants_of, rows_of


def at(k: int, absent: tuple[int, ...] = ()) -> HostOperand:
    return HostOperand(region(k), absent)


@pytest.mark.parametrize("mode", ["dl16", "ieee"])
@pytest.mark.parametrize(
    "spec", [s for s in rows_of(Family.ELEMENTWISE) if s.inputs == 1], ids=lambda s: s.name
)
def test_unary_of_every_code(spec: OpDefinition, mode: str):
    """65,536 codes in, the definition out; a NaN may have either sign."""
    absent = (1,) if spec.kernel_op == "layernormscale" else ()
    operation = pointwise(
        spec.name, (1024, 64), [at(0, absent)], at(1), {"mb": 4}, constants_of(spec)
    )
    op = build_operation(operation)
    device = engine(mode)
    found = windows(op)
    codes = np.arange(65536).astype(np.uint16)
    for window in found:
        fill_window(
            window,
            lambda rng, n: np.zeros(n, np.int64),
            mode,
            np.random.default_rng(),
            [device.memory],
        )
    device.memory.write(found[0].low, codes.view(np.uint8))
    device.executor.run(link(device, [op], allocations_of(found)))
    result = device.memory.read(found[-1].low, 2 * codes.size).view(np.uint16)
    rules = NumericRules(numerics=mode)
    x = decode_device(codes, "SEN169_FP16", rules)
    operands = [x]
    if absent:
        pairs = x.reshape(-1, 64)
        operands = [np.repeat(pairs[:, lane], 64) for lane in (0, 1)]
    constants = [decode_device(np.array([CONSTANTS[c]]), "SEN169_FP16")[0] for c in spec.constants]
    with np.errstate(all="ignore"):
        exact = np.asarray(define(spec.kernel_op, *operands, *constants)).astype(np.float32)
    expected = encode_device(exact, "SEN169_FP16", rules)
    wrong = result != expected
    wrong &= ~(np.isnan(exact) & ((result & 0x7FFF) >= (0x7FFF if mode == "dl16" else 0x7C01)))
    if spec.kernel_op in ROUNDED:
        wrong &= np.abs(order_key(result) - order_key(expected)) > 1
    bad = np.flatnonzero(wrong)
    assert not bad.size, [(hex(codes[i]), hex(result[i]), hex(expected[i])) for i in bad[:8]]


SPECIAL = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x0002, 0x3DFF, 0x3E00, 0x3E01, 0xBE00, 0xBE01, 0x7FFE, 0xFFFE,
     0x7FFF, 0xFFFF, 0x5DFF, 0x1FFF, 0x2000, 0x9FFF, 0x4645, 0xC645], np.uint16,
)  # fmt: skip


@pytest.mark.parametrize(
    "spec", [s for s in rows_of(Family.ELEMENTWISE) if s.inputs == 2], ids=lambda s: s.name
)
@pytest.mark.parametrize("lane", [False, True], ids=["stick", "lane"])
def test_binary_of_special_codes(spec: OpDefinition, lane: bool):
    """All pairs of special codes; infinities behave as such, a NaN may have either sign."""
    count = SPECIAL.size
    first = np.zeros((count, 64), np.uint16)
    first[:, :count] = SPECIAL
    second = np.repeat(SPECIAL[:, None], 64, axis=1)
    absent = (1,) if lane else ()
    op = build_operation(pointwise(spec.name, (count, 64), [at(0), at(1, absent)], at(2)))
    device = engine()
    found = windows(op)
    for window, codes in zip(found, (first, second, np.zeros_like(first)), strict=True):
        device.memory.write(window.low, codes.view(np.uint8).ravel())
    device.executor.run(link(device, [op], allocations_of(found)))
    result = device.memory.read(found[2].low, first.nbytes).view(np.uint16).reshape(first.shape)
    a, b = (decode_device(c, "SEN169_FP16") for c in (first, second))
    with np.errstate(all="ignore"):
        exact = define(spec.kernel_op, a, b).astype(np.float32)
    expected = encode_device(exact, "SEN169_FP16")
    nan = np.isnan(exact) & ((result & 0x7FFF) == 0x7FFF)
    bad = np.argwhere((result != expected) & ~nan)
    assert not bad.size, [
        (hex(first[i, j]), hex(second[i, j]), hex(result[i, j]), hex(expected[i, j]))
        for i, j in bad[:8]
    ]
