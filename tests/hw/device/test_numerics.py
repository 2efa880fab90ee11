"""Number modes: their text form, and every rounding of the compiled codecs, bit for bit.

Copies to and from the device and an operation that only stores (`fp32todl16`) are run over every
code, every tie, the floats next to both and four million random patterns; the slow codecs of
`spyre.dtypes` say what each must give.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from spyre.dtypes import (
    decode_bfloat16,
    decode_dl16,
    decode_ieee_half,
    encode_bfloat16,
    encode_dl16,
    encode_ieee_half,
)
from spyre.dtypes.codecs import float16_for_dl16
from spyre.errors import UnsupportedError
from spyre.hw.device.device import Device
from spyre.hw.device.threads import shared_pool
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from tests.dtypes.test_dtypes import VECTORS
from tests.hw.device.host_views import HostView, copy_to_device, copy_to_host
from tests.hw.harness import Array, allocations_of, engine, link, region, windows
from tests.hw.kernels.test_codec import float_patterns

ROUNDINGS = ("away", "trunc", "even")
CODES = np.arange(65536).astype(np.uint16)
ROW = 4096


# --- the text form ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("dl16", Numerics()),
        ("dl16-chunk", Numerics("dl16-chunk")),
        ("ieee", Numerics("ieee")),
        ("ieee:bf16=even", Numerics("ieee", bfloat16_rounding="even")),
        ("dl16:dma=trunc,alu=even,saturate",
         Numerics(dma_rounding="trunc", alu_rounding="even", saturate=True)),
        ("dl16-chunk:ninf=nan", Numerics("dl16-chunk", ninf_to_host="nan")),
    ],
)  # fmt: skip
def test_text_form(text: str, value: Numerics):
    assert parse_numerics(text) == value
    assert parse_numerics(str(value)) == value


def test_spaces_and_defaults_in_the_text_form():
    assert parse_numerics(" dl16: dma=away , alu=trunc ") == Numerics(alu_rounding="trunc")
    assert str(Numerics(alu_rounding="trunc")) == "dl16:alu=trunc"


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("fp64", "SPY530", "dl16, dl16-chunk, ieee, card; after"),
        ("", "SPY530", "dl16, dl16-chunk, ieee, card; after"),
        ("dl16:", "SPY540", "dma=away|trunc|even"),
        ("dl16:saturate=yes", "SPY540", "saturate"),
        ("dl16:rounding=even", "SPY540", "dma=away|trunc|even"),
        ("dl16:dma=up", "SPY540", "away or trunc or even"),
        ("dl16:ninf=0", "SPY540", "inf or nan"),
        ("ieee:alu=even", "SPY541", "ieee alone"),
        ("ieee:saturate", "SPY541", "ieee alone"),
    ],
)
def test_wrong_text_says_what_is_allowed(text: str, code: str, expected: str):
    with pytest.raises(UnsupportedError) as caught:
        parse_numerics(text)
    assert caught.value.code == code
    assert expected in str(caught.value)


def test_the_environment_takes_the_same_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPYRE_NUMERICS", "dl16:dma=even")
    assert Device(threads=1).numerics == Numerics(dma_rounding="even")
    assert Device("ieee", threads=1).numerics == Numerics("ieee")


def test_default_tables_are_those_of_plain_dl16():
    assert Numerics().half_format == Numerics("dl16-chunk").half_format == 0
    assert len({Numerics(alu_rounding=r).half_format for r in ROUNDINGS}) == 3  # type: ignore[arg-type]


# --- every code and four million patterns -----------------------------------------------------


@cache
def patterns() -> Array:
    """Float32 bit patterns, padded to whole rows with zeros."""
    values = float_patterns()
    return np.concatenate([values, np.zeros(-values.size % ROW, np.float32)])


def transfer(source: Array, dtype: str, numerics: Numerics, lanes_apart: int = 1) -> Array:
    """Codes that a copy of host numbers leaves on the device; its stick lanes may be strided."""
    size = source.size // lanes_apart
    layout = SpyreTensorLayout.from_host((size // 64, 64), "float16")
    strides = (64 * lanes_apart, lanes_apart)
    device = np.zeros(layout.device_bytes, np.uint8)
    view = HostView(source, dtype, (size // 64, 64), (64, 1), strides)
    copy_to_device(view, layout, device, numerics, shared_pool(2))
    return device.view(np.uint16)


def fetch(codes: Array, dtype: str, storage: str, numerics: Numerics) -> Array:
    """Host numbers that a copy of device codes gives."""
    layout = SpyreTensorLayout.from_host((codes.size // 64, 64), "float16")
    target = np.zeros(codes.size, storage)
    view = HostView.dense(target, dtype, (codes.size // 64, 64), (64, 1))
    copy_to_host(view, layout, codes.view(np.uint8), numerics, shared_pool(2))
    return target


def assert_codes(found: Array, expected: Array, values: Array) -> None:
    bad = np.flatnonzero(found != expected)
    assert not bad.size, [
        (hex(values.view(np.uint32)[i]), hex(found[i]), hex(expected[i])) for i in bad[:5]
    ]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("mode", ["dl16", "dl16-chunk"])
def test_transfers_of_float_patterns(rounding: str, saturate: bool, mode: str):
    values = patterns()
    numerics = Numerics(mode, dma_rounding=rounding, saturate=saturate)  # type: ignore[arg-type]
    expected = encode_dl16(values, rounding, saturate)  # type: ignore[arg-type]
    assert values.size > 4_000_000
    assert_codes(transfer(values, "float32", numerics), expected, values)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("saturate", [False, True])
def test_transfers_of_every_half(rounding: str, saturate: bool):
    """Every float16, as neighbours and with a stride."""
    numerics = Numerics(dma_rounding=rounding, saturate=saturate)  # type: ignore[arg-type]
    halves = CODES.view(np.float16)
    copied = float16_for_dl16(decode_ieee_half(CODES))
    expected = encode_dl16(copied, rounding, saturate)  # type: ignore[arg-type]
    for apart in (1, 2):
        found = transfer(np.repeat(halves, apart), "float16", numerics, apart)
        assert_codes(found, expected, decode_ieee_half(CODES))


@pytest.mark.parametrize("dma", ROUNDINGS)
def test_transfers_of_every_bfloat16(dma: str):
    numerics = Numerics(dma_rounding=dma)  # type: ignore[arg-type]
    values = decode_bfloat16(CODES)
    found = transfer(CODES, "bfloat16", numerics)
    assert_codes(found, encode_dl16(values, dma), values)  # type: ignore[arg-type]


@pytest.mark.parametrize("alu", ROUNDINGS)
@pytest.mark.parametrize("name", ["fp32todl16"])
def test_stores_of_float_patterns(alu: str, name: str):
    """An operation that does nothing but store, over every code, tie and neighbour."""
    values = patterns()
    wide = HostOperand(region(0), data_format="IEEE_FP32")
    op = build_operation(pointwise(name, (values.size // 64, 64), [wide], HostOperand(region(1))))
    device, found = engine(f"dl16:alu={alu}"), windows(op)
    device.memory.write(region(0), two_sticks_apart(values).view(np.uint8).ravel())
    device.executor.run(link(device, [op], allocations_of(found)))
    result = device.memory.read(region(1), 2 * values.size).view(np.uint16)
    assert_codes(result, encode_dl16(values, alu), values)  # type: ignore[arg-type]
    device.memory.clear(region(0), 4 * values.size)
    device.memory.clear(region(1), 2 * values.size)


def two_sticks_apart(values: Array) -> Array:
    """Rows of 64 as the device keeps float32: all first halves, then all second ones."""
    return np.ascontiguousarray(values.reshape(-1, 2, 32).swapaxes(0, 1))


@pytest.mark.parametrize("text", ["dl16", "dl16:alu=trunc", "dl16:alu=even", "ieee"])
def test_loads_of_every_code(text: str):
    device = engine(text)
    wide = HostOperand(region(1), data_format="IEEE_FP32")
    op = build_operation(pointwise("dl16tofp32", (1024, 64), [HostOperand(region(0))], wide))
    device.memory.write(region(0), CODES.view(np.uint8))
    device.executor.run(link(device, [op], allocations_of(windows(op))))
    raw = device.memory.read(region(1), 4 * CODES.size).view(np.float32)
    result = np.ascontiguousarray(raw.reshape(2, -1, 32).swapaxes(0, 1)).reshape(-1)
    expected = (decode_ieee_half if text == "ieee" else decode_dl16)(CODES)
    number = ~np.isnan(expected)
    assert np.array_equal(result[number].view(np.uint32), expected[number].view(np.uint32))
    assert np.isnan(result[~number]).all()


@pytest.mark.parametrize("ninf", ["inf", "nan"])
@pytest.mark.parametrize("dma", ["away", "trunc"])
def test_fetches_of_every_code(ninf: str, dma: str):
    numerics = Numerics(ninf_to_host=ninf, dma_rounding=dma)  # type: ignore[arg-type]
    expected = decode_dl16(CODES, ninf)  # type: ignore[arg-type]
    found = fetch(CODES, "float32", "float32", numerics)
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    number = ~np.isnan(expected)
    assert np.array_equal(found[number].view(np.uint32), expected[number].view(np.uint32))
    halves = fetch(CODES, "float16", "float16", numerics).view(np.uint16)
    assert np.array_equal(halves[number], encode_ieee_half(expected)[number])


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_fetches_of_every_code_as_bfloat16(rounding: str):
    for ninf in ("inf", "nan"):
        numerics = Numerics(bfloat16_rounding=rounding, ninf_to_host=ninf)  # type: ignore[arg-type]
        expected = encode_bfloat16(decode_dl16(CODES, ninf), rounding)  # type: ignore[arg-type]
        found = fetch(CODES, "bfloat16", "uint16", numerics)
        magnitude_of_nan = (found & 0x7FFF) > 0x7F80
        assert np.array_equal(found[~magnitude_of_nan], expected[~magnitude_of_nan])
        assert np.array_equal(magnitude_of_nan, (expected & 0x7FFF) > 0x7F80)


@pytest.mark.parametrize(
    ("column", "numerics"),
    [
        (1, Numerics()),
        (2, Numerics(dma_rounding="even")),
        (3, Numerics(dma_rounding="trunc")),
        (4, Numerics(saturate=True)),
    ],
    ids=str,
)
def test_published_vectors_in_transfers(column: int, numerics: Numerics):
    assert len(VECTORS) == 27
    bits = np.zeros(64, np.uint32)
    bits[:27] = [vector[0] for vector in VECTORS]
    found = transfer(bits.view(np.float32), "float32", numerics)
    assert [hex(c) for c in found[:27]] == [hex(vector[column]) for vector in VECTORS]


# --- NINF in operations -----------------------------------------------------------------------

PLUS, MINUS = 0x7FFF, 0xFFFF


def run_codes(name: str, *operands: Array, mode: str = "dl16") -> Array:
    """Codes of an elementwise operation on one stick of codes per operand."""
    inputs = [HostOperand(region(k)) for k in range(len(operands))]
    op = build_operation(pointwise(name, (1, 64), inputs, HostOperand(region(5))))
    device = engine(mode)
    for k, codes in enumerate(operands):
        device.memory.write(region(k), np.resize(codes, 64).astype(np.uint16).view(np.uint8))
    device.executor.run(link(device, [op], allocations_of(windows(op))))
    return device.memory.read(region(5), 128).view(np.uint16)


@pytest.mark.parametrize("mode", ["dl16", "dl16:alu=trunc", "dl16-chunk"])
def test_ninf_is_ordered_and_sticky(mode: str):
    one, largest = 0x3E00, 0x7FFE
    numbers = np.array([0, 0x8000, one, 0xBE00, largest, 0xFFFE])
    plus, minus = np.full(6, PLUS), np.full(6, MINUS)
    shown = slice(0, 6)
    assert (run_codes("maximum", numbers, plus, mode=mode)[shown] == PLUS).all()
    assert (run_codes("minimum", numbers, minus, mode=mode)[shown] == MINUS).all()
    assert (run_codes("maximum", numbers, minus, mode=mode)[shown] == numbers).all()
    assert (run_codes("greaterthan", plus, numbers, mode=mode)[shown] == one).all()
    assert (run_codes("lesserthan", minus, numbers, mode=mode)[shown] == one).all()
    assert (run_codes("exp", minus, mode=mode)[shown] == 0).all()
    for name in ("add", "sub", "mul"):
        for ninf in (plus, minus):
            result = run_codes(name, ninf, numbers, mode=mode)[shown]
            assert (result & 0x7FFF == 0x7FFF).all(), (name, result)
    assert (run_codes("sub", plus, plus, mode=mode)[shown] & 0x7FFF == 0x7FFF).all()
    assert (run_codes("realdiv", numbers, plus, mode=mode)[shown] & 0x7FFF == 0).all()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "realdiv"])
def test_the_sign_of_a_ninf_does_not_depend_on_the_path(name: str):
    """Infinity minus infinity and the like: fused, one lane, and staged give one code."""
    special = np.array([0, 0x8000, 0x3E00, 0xBE00, 0x7FFE, 0xFFFE, PLUS, MINUS])
    for code in special:
        second = np.full(8, code)
        fused = run_codes(name, special, second)[:8]
        for mode in ("dl16:alu=even", "dl16-chunk:alu=even"):
            assert np.array_equal(run_codes(name, special, second, mode=mode)[:8], fused)
        lane = pointwise(name, (1, 64), [HostOperand(region(0)), HostOperand(region(1), (1,))],
                         HostOperand(region(5)))  # fmt: skip
        op, device = build_operation(lane), engine("dl16")
        device.executor.run(link(device, [op], allocations_of(windows(op))))
        result = device.memory.read(region(5), 128).view(np.uint16)[:8]
        assert result.tolist() == fused.tolist()
