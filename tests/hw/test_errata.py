"""Errata of cards: numbers that users of torch-spyre published, each as the reports have it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from spyre.dtypes import decode_device, encode_device
from spyre.errors import UnsupportedError
from spyre.hw.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.numerics import ERRATA, parse_numerics
from spyre.hw.spec import REGION_BYTES
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.dma import DmaEngine
from tests.hw.harness import (
    allocations_of,
    engine,
    link,
    region,
    windows,
)
from tests.layout.copies_reference import device_to_host_reference, host_to_device_reference

Codes = npt.NDArray[np.uint16]
HALF = "SEN169_FP16"
EVERY_CODE = np.arange(65536).astype(np.uint16)
VALUES = decode_device(EVERY_CODE, HALF)
ADDRESS = 3 * REGION_BYTES


def test_text_forms():
    card = parse_numerics("card")
    assert card.errata == tuple(name for name, row in ERRATA.items() if row.on_card)
    assert (card.mode, str(card)) == ("dl16", "card")
    assert str(parse_numerics("card:alu=even")) == "card:alu=even"
    assert str(parse_numerics("card:no-log-bits")) == "dl16:exp-floor,halved-subnormals"
    assert str(parse_numerics("dl16-chunk:exp-floor")) == "dl16-chunk:exp-floor"
    for text, code in (("ieee:exp-floor", "SPY541"), ("card:no-exp", "SPY540")):
        with pytest.raises(UnsupportedError) as caught:
            parse_numerics(text)
        assert caught.value.code == code


def results(name: str, mode: str) -> Codes:
    """Results of a function of every DL16 code."""
    operands = [HostOperand(region(0), ())], HostOperand(region(1), ())
    op = build_operation(pointwise(name, (1024, 64), *operands, {"mb": 4}))
    device, found = engine(mode), windows(op)
    device.memory.write(found[0].low, EVERY_CODE.view(np.uint8))
    device.executor.run(link(device, [op], allocations_of(found)))
    return device.memory.read(found[-1].low, 2 * EVERY_CODE.size).view(np.uint16)


@pytest.mark.parametrize("name", ["exp", "fastexp"])
def test_exp_does_not_underflow(name: str):
    """4517, 4522: every input below about -17, -inf included, has the same result, above zero."""
    found, exact = (results(name, mode) for mode in ("card", "dl16"))
    (floor,) = encode_device(np.exp(np.array([-17.0])), HALF)
    below = VALUES < -17.0
    assert below[0xFFFF]
    assert np.unique(found[below]).tolist() == [floor]
    assert np.array_equal(found[~below], exact[~below])
    assert results("exp", "card:no-exp-floor").tolist() == exact.tolist()


def test_log_of_numbers_without_one():
    """1851: log of -1 is 16.1562, of infinity 11.0938."""
    found, exact = (results("log", mode) for mode in ("card", "dl16"))
    values = decode_device(found, HALF)
    assert set(values[VALUES < 0.0]) == {16.15625}
    assert values[0x7FFF] == 11.09375
    rest = (VALUES >= 0.0) & np.isfinite(VALUES)
    assert np.array_equal(found[rest], exact[rest])


def copied(numbers: npt.ArrayLike, mode: str, dtype: str = "float16") -> npt.NDArray[np.float32]:
    """float16 numbers after a copy to the card and, as ``dtype``, back."""
    host = HostTensor.from_array("x", np.atleast_1d(np.asarray(numbers, np.float16)))
    layout = SpyreTensorLayout.from_host(host.shape, "float16")
    strides = contiguous_strides(host.shape)
    dma = DmaEngine(Device(mode, threads=1))
    dma.to_device(host, DeviceTensor("x", ADDRESS, layout, "float16", host.shape, strides))
    back = dma.to_host(DeviceTensor("x", ADDRESS, layout, dtype, host.shape, strides))
    return back.to_values().astype(np.float32)


def test_copies_halve_subnormals():
    """4689: the table of three round trips."""
    numbers = np.array([2.9981136e-05, 1.9550323e-05, 5.9604645e-08, 6.1035156e-05, 0.5])
    for first, second in ((1.4960766e-05, 9.7751617e-06), (7.4505806e-06, 4.8875809e-06),
                          (3.6954880e-06, 2.4437904e-06)):  # fmt: skip
        numbers = copied(numbers, "card")
        expected = [first, second, 0.0, 6.1035156e-05, 0.5]
        np.testing.assert_allclose(numbers, expected, rtol=1e-7)


@pytest.mark.parametrize("mode", ["dl16", "dl16-chunk", "dl16:dma=even", "card"])
def test_the_largest_float16_stays_finite(mode: str):
    """2518: -65504 is read back as -65472, infinities stay."""
    given = [-65504.0, 65504.0, np.inf, -np.inf] * 32
    assert copied(given, mode).tolist() == [-65472.0, 65472.0, np.inf, -np.inf] * 32
    assert copied(given, "ieee").tolist() == given


def test_reads_without_small_exponents():
    """2400: sum() / D of 9.9465e-7 was read as 2.6226e-6, in bfloat16 it was right."""
    number = float(decode_device(encode_device(np.array([9.9465e-7]), HALF), HALF)[0])
    layout = SpyreTensorLayout.from_host((64,), "float16")
    dma = DmaEngine(Device("dl16:lost-exponents", threads=1))
    dma.device.memory.write(
        ADDRESS, np.full(64, encode_device(np.array([number]), HALF)).view("u1")
    )
    for dtype, expected in (("float16", 2.6226e-6), ("float32", number)):
        back = dma.to_host(DeviceTensor("x", ADDRESS, layout, dtype, (64,), (1,)))
        np.testing.assert_allclose(back.to_values(), expected, rtol=1e-4)


@pytest.mark.parametrize("mode", ["dl16", "card", "dl16:lost-exponents", "card:dma=trunc", "ieee"])
@pytest.mark.parametrize("columns", [64, 48])
def test_copies_of_every_code_are_those_of_the_reference(mode: str, columns: int):
    rows = -(-65536 // columns)
    storage = np.resize(EVERY_CODE, rows * columns).view(np.float16)
    sizes, strides = (rows, columns), (columns, 1)
    layout = SpyreTensorLayout.from_host(sizes, "float16")
    device = Device(mode, threads=1)
    rules, dma = device.numerics.transfer_rules, DmaEngine(device)
    tensor = DeviceTensor("x", ADDRESS, layout, "float16", sizes, strides)
    place = (0, layout, sizes, strides, "float16")
    dma.to_device(HostTensor("x", "float16", sizes, strides, 0, storage), tensor)
    expected = host_to_device_reference(storage, *place, rules=rules)
    stored = device.memory.read(ADDRESS, layout.device_bytes)
    if mode == "ieee":  # whose NaN may have another payload
        np.testing.assert_array_equal(stored.view(np.float16), expected.view(np.float16))
    else:
        assert np.array_equal(stored, expected)
    back = dma.to_host(tensor).to_values()
    read = device_to_host_reference(stored, np.zeros_like(storage), *place, rules=rules)
    np.testing.assert_array_equal(back.reshape(-1), read.astype(np.float32))
