"""Number formats: every DL16 code, the published test vectors, and torch for the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.dtypes import (
    FORMATS,
    HOST_DTYPES,
    STICK_BYTES,
    NumericRules,
    bytes_to_codes,
    canonical_dtype_name,
    codes_to_bytes,
    decode_bfloat16,
    decode_device,
    decode_dl16,
    decode_e4m3fn,
    decode_e5m2fnuz,
    decode_host,
    decode_ieee_half,
    encode_bfloat16,
    encode_device,
    encode_dl16,
    encode_e4m3fn,
    encode_e5m2fnuz,
    encode_host,
    encode_ieee_half,
    find_format,
    find_host_dtype,
    find_stored_format,
)
from spyre.errors import LaunchError, UnsupportedError

ALL_CODES = np.arange(1 << 16, dtype=np.uint16)

# float32 bits, DL16 with ties away, ties to even, truncated, saturated (infinities: left alone).
VECTORS = [
    (0x00000000, 0x0000, 0x0000, 0x0000, 0x0000),
    (0x80000000, 0x8000, 0x8000, 0x8000, 0x8000),
    (0x3F800000, 0x3E00, 0x3E00, 0x3E00, 0x3E00),
    (0xBF800000, 0xBE00, 0xBE00, 0xBE00, 0xBE00),
    (0x3DCCCCCD, 0x3733, 0x3733, 0x3733, 0x3733),
    (0x3EAAAAAB, 0x3AAB, 0x3AAB, 0x3AAA, 0x3AAB),
    (0x3F804000, 0x3E01, 0x3E01, 0x3E01, 0x3E01),
    (0x3F802000, 0x3E01, 0x3E00, 0x3E00, 0x3E01),
    (0x3F806000, 0x3E02, 0x3E02, 0x3E01, 0x3E02),
    (0xC0002000, 0xC001, 0xC000, 0xC000, 0xC001),
    (0x3F172000, 0x3C5D, 0x3C5C, 0x3C5C, 0x3C5D),
    (0x3E2AE000, 0x38AC, 0x38AC, 0x38AB, 0x38AC),
    (0x3E402000, 0x3901, 0x3900, 0x3900, 0x3901),
    (0x477FE000, 0x5E00, 0x5E00, 0x5DFF, 0x5E00),
    (0x40490FDB, 0x4124, 0x4124, 0x4124, 0x4124),
    (0x3727C5AC, 0x1C9F, 0x1C9F, 0x1C9F, 0x1C9F),
    (0x30000000, 0x0000, 0x0000, 0x0000, 0x0000),
    (0x30004000, 0x0001, 0x0001, 0x0001, 0x0001),
    (0x2FDBE6FF, 0x0000, 0x0000, 0x0000, 0x0000),
    (0x43E00000, 0x4F80, 0x4F80, 0x4F80, 0x4F80),
    (0x4190C000, 0x4643, 0x4643, 0x4643, 0x4643),
    (0x4FFF8000, 0x7FFE, 0x7FFE, 0x7FFE, 0x7FFE),
    (0x4FFFC000, 0x7FFF, 0x7FFF, 0x7FFF, 0x7FFE),
    (0x7E967699, 0x7FFF, 0x7FFF, 0x7FFF, 0x7FFE),
    (0x7F800000, 0x7FFF, 0x7FFF, 0x7FFF, 0x7FFF),
    (0xFF800000, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF),
    (0x7FC00000, 0x7FFF, 0x7FFF, 0x7FFF, 0x7FFF),
]


def float32_of_bits(bits: object) -> np.ndarray:
    return np.asarray(bits, dtype=np.uint32).view(np.float32)


def slow_dl16_value(code: int) -> float:
    """(−1)^s · 2^(e−31) · (1 + f/512), with zero and the merged symbol apart."""
    sign = -1.0 if code & 0x8000 else 1.0
    exponent, fraction = (code >> 9) & 0x3F, code & 0x1FF
    if exponent == 0 and fraction == 0:
        return sign * 0.0
    if exponent == 0x3F and fraction == 0x1FF:
        return sign * math.inf
    return sign * 2.0 ** (exponent - 31) * (1 + fraction / 512)


class TestDl16:
    def test_every_code_decodes_to_its_formula(self):
        expected = np.array([slow_dl16_value(int(c)) for c in ALL_CODES])
        found = decode_dl16(ALL_CODES).astype(np.float64)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))

    def test_strict_view_reads_the_merged_symbol_as_nan(self):
        values = decode_dl16(ALL_CODES, ninf="nan")
        assert list(np.flatnonzero(np.isnan(values))) == [0x7FFF, 0xFFFF]

    @pytest.mark.parametrize("rounding", ["away", "even", "trunc"])
    def test_every_code_survives_a_round_trip(self, rounding):
        np.testing.assert_array_equal(encode_dl16(decode_dl16(ALL_CODES), rounding), ALL_CODES)

    @pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v[0]:08X}")
    def test_published_vectors(self, vector):
        bits, away, even, trunc, saturated = vector
        value = float32_of_bits(bits)
        found = (
            encode_dl16(value),
            encode_dl16(value, "even"),
            encode_dl16(value, "trunc"),
            encode_dl16(value, saturate=True),
        )
        assert tuple(int(c) for c in found) == (away, even, trunc, saturated)

    def test_ties_and_their_neighbours(self):
        """Half way between neighbouring codes, and one float32 step to either side."""
        low = np.arange(1, 0x7FFD, dtype=np.uint16)
        below, above = decode_dl16(low), decode_dl16(low + 1)
        tie = ((below.astype(np.float64) + above) / 2).astype(np.float32)
        for sign, bit in ((1, 0), (-1, 0x8000)):
            np.testing.assert_array_equal(encode_dl16(sign * tie), (low + 1) | bit)
            np.testing.assert_array_equal(encode_dl16(sign * tie, "trunc"), low | bit)
            np.testing.assert_array_equal(encode_dl16(sign * tie, "even"), (low + (low & 1)) | bit)
            for rounding in ("away", "even"):
                under = np.nextafter(tie, np.float32(0))
                over = np.nextafter(tie, np.float32(np.inf))
                np.testing.assert_array_equal(encode_dl16(sign * under, rounding), low | bit)
                np.testing.assert_array_equal(encode_dl16(sign * over, rounding), (low + 1) | bit)

    @given(st.floats(width=32, allow_nan=False, min_value=-(2.0**32), max_value=2.0**32))
    def test_error_is_at_most_half_an_ulp(self, value):
        found = float(decode_dl16(encode_dl16(value)))
        assert abs(found - value) <= max(2.0**-10 * abs(value), 2.0**-31)

    @given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
    def test_order_is_kept(self, a, b):
        low, high = min(a, b), max(a, b)
        assert decode_dl16(encode_dl16(low)) <= decode_dl16(encode_dl16(high))

    def test_shape_is_kept(self):
        assert encode_dl16(np.zeros((2, 3))).shape == (2, 3)
        assert encode_dl16(1.0).shape == ()


class TestMinifloats:
    def test_e4m3fn_landmarks(self):
        codes = np.array([0x00, 0x01, 0x08, 0x38, 0x7E, 0x80, 0xFE], dtype=np.uint8)
        values = [0.0, 2.0**-9, 2.0**-6, 1.0, 448.0, -0.0, -448.0]
        np.testing.assert_array_equal(decode_e4m3fn(codes), values)
        assert np.isnan(decode_e4m3fn([0x7F, 0xFF])).all()

    def test_e5m2fnuz_landmarks(self):
        codes = np.array([0x00, 0x01, 0x40, 0x7F, 0xFF], dtype=np.uint8)
        values = [0.0, 2.0**-17, 1.0, 57344.0, -57344.0]
        np.testing.assert_array_equal(decode_e5m2fnuz(codes), values)
        assert np.isnan(decode_e5m2fnuz(0x80))

    @pytest.mark.parametrize(
        ("encode", "decode"),
        [(encode_e4m3fn, decode_e4m3fn), (encode_e5m2fnuz, decode_e5m2fnuz)],
    )
    def test_every_code_survives_a_round_trip(self, encode, decode):
        codes = np.arange(256, dtype=np.uint8)
        np.testing.assert_array_equal(encode(decode(codes)), codes)

    def test_saturation(self):
        values = [449.0, 1e30, -1e30, np.inf, -np.inf]
        np.testing.assert_array_equal(
            decode_e4m3fn(encode_e4m3fn(values, saturate=True)), [448, 448, -448, 448, -448]
        )
        assert np.isnan(decode_e4m3fn(encode_e4m3fn(values[1:]))).all()
        assert np.isnan(decode_e4m3fn(encode_e4m3fn(np.nan, saturate=True)))

    def test_e5m2fnuz_has_no_negative_zero(self):
        assert encode_e5m2fnuz(-0.0) == 0
        assert encode_e5m2fnuz(-1e-9) == 0

    def test_all_finite_fp8_values_are_exact_in_dl16(self):
        for values in (decode_e4m3fn(np.arange(256)), decode_e5m2fnuz(np.arange(256))):
            finite = values[np.isfinite(values)]
            np.testing.assert_array_equal(decode_dl16(encode_dl16(finite)), finite)


@pytest.fixture(scope="module")
def values():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32)
    random_bits = float32_of_bits(bits)
    halves = np.array([decode_e4m3fn(np.arange(0x7F)), decode_e4m3fn(np.arange(1, 0x80))])
    ties = halves[:, :-1].mean(axis=0).astype(np.float32)
    near = [448.0, 463.9, 464.0, 464.1, 480.0, 57344.0, 61439.0, 61440.0, 61441.0, 65536.0]
    normal = rng.standard_normal(50_000).astype(np.float32) * 100
    edges = np.array([*near, 0.0, -0.0, np.inf, -np.inf, np.nan, 1e-9, -1e-9], np.float32)
    return np.concatenate([random_bits, ties, -ties, normal, edges])


class TestAgainstTorch:
    @pytest.mark.parametrize(
        ("name", "encode", "decode", "saturate"),
        [
            ("float8_e4m3fn", encode_e4m3fn, decode_e4m3fn, True),
            ("float8_e5m2fnuz", encode_e5m2fnuz, decode_e5m2fnuz, False),
        ],
    )
    def test_fp8(self, values, name, encode, decode, saturate):
        """Torch 2.13 saturates e4m3fn, infinities too, and lets e5m2fnuz overflow to NaN."""
        torch = pytest.importorskip("torch")
        cast = torch.from_numpy(values).to(getattr(torch, name))
        codes = encode(values, saturate)
        np.testing.assert_array_equal(decode(codes), cast.float().numpy())
        number = ~np.isnan(values)
        np.testing.assert_array_equal(codes[number], cast.view(torch.uint8).numpy()[number])

    def test_bfloat16(self, values):
        torch = pytest.importorskip("torch")
        cast = torch.from_numpy(values).to(torch.bfloat16)
        np.testing.assert_array_equal(
            decode_bfloat16(encode_bfloat16(values)), cast.float().numpy()
        )

    def test_ieee_half(self, values):
        torch = pytest.importorskip("torch")
        cast = torch.from_numpy(values).to(torch.float16)
        np.testing.assert_array_equal(
            decode_ieee_half(encode_ieee_half(values)), cast.float().numpy()
        )


class TestBfloat16:
    def test_the_card_truncates(self):
        assert decode_bfloat16(encode_bfloat16(18.09375, "trunc")) == 18.0
        assert decode_bfloat16(encode_bfloat16(18.09375, "even")) == 18.125

    def test_nan_never_becomes_infinity(self):
        low_payload = float32_of_bits([0x7F800001, 0xFF800001])
        codes = encode_bfloat16(low_payload, "trunc")
        assert [int(c) for c in codes] == [0x7FC0, 0xFFC0]


class TestTables:
    def test_elements_per_stick(self):
        per_stick = {n: f.elements_per_stick for n, f in FORMATS.items() if f.stored}
        assert per_stick["SEN169_FP16"] == 64
        assert per_stick["IEEE_FP32"] == per_stick["SENUINT32"] == per_stick["IEEE_INT32"] == 32
        assert per_stick["SEN143_FP8"] == per_stick["SENINT8"] == 128
        assert per_stick["SENINT4"] == 256
        assert all(n * FORMATS[k].bits == 8 * STICK_BYTES for k, n in per_stick.items())

    def test_formats_without_storage_are_refused(self):
        for name in ("SEN153_FP9", "SEN18F_FP24", "SENINT24", "SENINT2", "SENUINT2"):
            assert not find_format(name).stored
            with pytest.raises(UnsupportedError, match=name):
                find_stored_format(name)

    def test_unknown_format(self):
        with pytest.raises(LaunchError, match=r"SPY310.*SEN170"):
            find_format("SEN170")

    def test_host_dtypes(self):
        pairs = {n: (d.device_format, d.item_bytes) for n, d in HOST_DTYPES.items()}
        assert pairs["float16"] == pairs["bfloat16"] == ("SEN169_FP16", 2)
        assert pairs["bool"] == ("SEN169_FP16", 1)
        assert pairs["int64"] == ("IEEE_INT32", 8)
        assert pairs["uint8"] == ("SENUINT32", 1)
        assert all(np.dtype(d.storage_dtype).itemsize == d.item_bytes for d in HOST_DTYPES.values())

    @pytest.mark.parametrize("name", ["float64", "complex64", "quint4x2", "nonsense"])
    def test_unsupported_dtype(self, name):
        with pytest.raises(UnsupportedError, match=f"does not support dtype {name}"):
            find_host_dtype(name)

    def test_aliases(self):
        for alias in ("fp16", "torch.float16", "half", " float16"):
            assert canonical_dtype_name(alias) == "float16"
        assert find_host_dtype("bf16").name == "bfloat16"


class TestConversion:
    @pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.stored])
    def test_bytes_are_one_stick_and_come_back(self, name):
        data_format = FORMATS[name]
        rng = np.random.default_rng(1)
        memory = rng.integers(0, 256, STICK_BYTES, dtype=np.uint8)
        codes = bytes_to_codes(memory, name)
        assert codes.dtype == data_format.code_dtype
        assert codes.size == data_format.elements_per_stick
        np.testing.assert_array_equal(codes_to_bytes(codes, name), memory)

    def test_int4_low_nibble_first(self):
        assert bytes_to_codes(np.array([0x8F], np.uint8), "SENINT4").tolist() == [-1, -8]

    @pytest.mark.parametrize(
        ("name", "low", "high"),
        [("SENINT4", -8, 7), ("SENINT8", -128, 127), ("SENUINT32", 0, 2**32 - 1)],
    )
    def test_floats_into_integers_are_cut_and_clamped(self, name, low, high):
        values = np.array([2.9, -2.9, 1e30, -1e30, np.inf, -np.inf, np.nan])
        codes = encode_device(values, name)
        inside = [2, max(low, -2), high, low, high, low, 0]
        assert codes.tolist() == inside

    def test_floats_into_int64_do_not_wrap(self):
        values = np.array([1e30, -1e30, 2.0**62], dtype=np.float64)
        assert encode_device(values, "IEEE_INT64").tolist() == [2**63 - 1, -(2**63), 2**62]

    def test_integers_keep_their_low_bits(self):
        values = np.array([2**32 + 5, -1], dtype=np.int64)
        assert encode_device(values, "IEEE_INT32").tolist() == [5, -1]
        assert encode_device(values, "SENUINT32").tolist() == [5, 2**32 - 1]

    def test_bool_is_one_or_zero_on_the_card(self):
        codes = encode_device(decode_host(np.array([True, False]), "bool"), "SEN169_FP16")
        assert codes.tolist() == [0x3E00, 0]
        assert encode_host(decode_device(codes, "SEN169_FP16"), "bool").tolist() == [True, False]

    def test_ieee_mode_stores_half_bits(self):
        rules = NumericRules(numerics="ieee")
        values = np.array([1.0, 1 + 2.0**-10, 65504.0], dtype=np.float32)
        codes = encode_device(values, "SEN169_FP16", rules)
        assert codes.tolist() == [0x3C00, 0x3C01, 0x7BFF]
        np.testing.assert_array_equal(decode_device(codes, "SEN169_FP16", rules), values)

    def test_dl16_to_bfloat16_truncates_on_the_way_out(self):
        values = np.array([18.09375], dtype=np.float32)
        assert decode_host(encode_host(values, "bfloat16"), "bfloat16") == 18.0

    def test_large_dl16_overflows_half(self):
        assert np.isinf(encode_host(np.array([65536.0], np.float32), "float16"))

    def test_fp32_bits_pass_unchanged(self):
        bits = np.array([0x7FA00001, 0x00000001, 0x80000000], dtype=np.uint32)
        codes = encode_device(decode_host(bits.view(np.float32), "float32"), "IEEE_FP32")
        np.testing.assert_array_equal(codes.view(np.uint32), bits)

    def test_fp8_bytes_pass_unchanged(self):
        codes = np.arange(256, dtype=np.uint8)
        for name, device in (("float8_e4m3fn", "SEN143_FP8"), ("float8_e5m2fnuz", "SEN152_FP8")):
            np.testing.assert_array_equal(encode_device(decode_host(codes, name), device), codes)

    def test_fp8_saturates_as_torch_does(self):
        assert decode_e4m3fn(encode_device(np.array([1e9]), "SEN143_FP8")) == 448.0

    def test_unknown_numerics(self):
        with pytest.raises(ValueError, match="numerics"):
            NumericRules(numerics="fp64")
