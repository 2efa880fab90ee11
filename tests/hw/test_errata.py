"""Errata of cards: numbers that users of torch-spyre published, each as the reports have it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from spyre.dtypes import decode_device, encode_copied, encode_device
from spyre.errors import UnsupportedError
from spyre.hw.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.numerics import ERRATA, parse_numerics
from spyre.hw.spec import REGION_BYTES
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise, reduction
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
HOST_OPERANDS = (HostOperand(region(0)), HostOperand(region(1)))


def test_text_forms():
    card = parse_numerics("card")
    assert card.errata == tuple(ERRATA)
    assert (card.mode, str(card)) == ("dl16", "card")
    assert str(parse_numerics("card:alu=even")) == "card:alu=even"
    assert str(parse_numerics("card:no-log-below-zero,no-scaled-means")) == (
        "dl16:exp-floor,float16-copies"
    )
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
    """1851: log of -1 is 16.1562, of infinity 11.0938, of NaN 11.5: copies keep both as numbers."""
    found, exact = (results("log", mode) for mode in ("card", "dl16"))
    values = decode_device(found, HALF)
    assert set(values[VALUES < 0.0]) == {16.15625}
    assert np.array_equal(found[VALUES >= 0.0], exact[VALUES >= 0.0])
    rules = parse_numerics("card").transfer_rules
    special = encode_copied(np.array([np.inf, np.nan], np.float32), "float16", HALF, rules)
    assert values[special].tolist() == [11.09375, 11.5]


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


def test_copies_keep_infinities_and_nan():
    """Upstream's test of a transpose: NaN and infinities are read back as they were."""
    given = np.array([np.nan, np.inf, -np.inf, 1.0] * 16)
    np.testing.assert_array_equal(copied(given, "card"), given)
    assert not np.array_equal(copied(given, "dl16"), given, equal_nan=True)  # one symbol for both


@pytest.mark.parametrize("mode", ["dl16", "dl16-chunk", "dl16:dma=even", "card"])
def test_the_largest_float16_stays_finite(mode: str):
    """2518: -65504 is read back as -65472, infinities stay."""
    given = [-65504.0, 65504.0, np.inf, -np.inf] * 32
    assert copied(given, mode).tolist() == [-65472.0, 65472.0, np.inf, -np.inf] * 32
    assert copied(given, "ieee").tolist() == given


def read_back(codes: Codes, dtype: str, mode: str) -> npt.NDArray[np.float32]:
    """DL16 codes after a copy to host numbers of ``dtype``."""
    layout = SpyreTensorLayout.from_host(codes.shape, "float16")
    dma = DmaEngine(Device(mode, threads=1))
    dma.device.memory.write(ADDRESS, codes.view("u1"))
    tensor = DeviceTensor("x", ADDRESS, layout, dtype, codes.shape, (1,))
    return dma.to_host(tensor).to_values().astype(np.float32)


def test_reads_without_small_exponents():
    """2400: sum() / D of 9.9465e-7 was read as 2.6226e-6, in bfloat16 it was right."""
    codes = np.repeat(encode_device(np.array([9.9465e-7]), HALF), 64)
    number = decode_device(codes, HALF)
    for dtype, expected in (("float16", 2.6226e-6), ("float32", number)):
        np.testing.assert_allclose(read_back(codes, dtype, "card"), expected, rtol=1e-4)


def test_mean_of_small_squares():
    """2400: the mean of 4,096 squares of about 1e-6 was read as 1.8120e-5, by 32 cores."""
    torch = pytest.importorskip("torch", reason="the report's numbers are those of its generator")
    generator = torch.Generator().manual_seed(42)
    given = (torch.randn(4096, generator=generator) * 0.001).half().float().numpy()
    rules = parse_numerics("card").transfer_rules
    copied = decode_device(encode_copied(given, "float16", HALF, rules), HALF)
    squares = encode_device(copied**2, HALF)
    scale = {"scaling_factor": int(encode_device(np.array([2.0**-12]), HALF)[0])}
    op = build_operation(
        reduction("mean", (1, 4096), (1,), *HOST_OPERANDS, {"out": 32}, constants=scale)
    )
    device, found = engine("card"), windows(op)
    device.memory.write(found[0].low, squares.view(np.uint8))
    device.executor.run(link(device, [op], allocations_of(found)))
    codes = device.memory.read(found[-1].low, 128).view(np.uint16)
    np.testing.assert_allclose(read_back(codes, "float16", "card")[0], 1.8120e-05, rtol=1e-4)
    # bfloat16, of other inputs: 0.62 of the exact mean
    np.testing.assert_allclose(decode_device(codes, HALF)[0] / np.mean(given**2), 0.62, rtol=0.01)


@pytest.mark.parametrize("mode", ["dl16", "card", "card:dma=trunc", "ieee"])
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
