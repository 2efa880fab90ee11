"""The kernels' codecs and vector functions: bit for bit, or within the bound they claim.

Small compiled loops around the inlined functions, over every code and millions of float32
patterns: random bits, every code's value, every tie between codes and the floats next to both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest
from numba.extending import intrinsic

from spyre.dtypes import decode_dl16, decode_ieee_half, encode_dl16, encode_ieee_half
from spyre.hw.kernels import intrinsics, vector_math as vm
from spyre.hw.kernels.dl16_vectors import HalfVectors, emit_decode, emit_encode, make

Array = npt.NDArray[Any]
F = np.float32
CODES = np.arange(65536).astype(np.uint16)


@cache
def compiled(function: Any, more: int = 0) -> Callable[..., None]:
    """``loop(source, target, …)`` applying a kernel function, as kernels compile it.

    ``more``: scalar arguments after the first one, 0, 2 or 3.
    """

    def loop(source, target):
        for i in range(target.size):
            target[i] = function(source[i])

    def loop_2(source, target, a, b):
        for i in range(target.size):
            target[i] = function(source[i], a, b)

    def loop_3(source, target, a, b, c):
        for i in range(target.size):
            target[i] = function(source[i], a, b, c)

    chosen = {0: loop, 2: loop_2, 3: loop_3}[more]
    made: Callable[..., None] = numba.njit(error_model="numpy")(chosen)
    return made


def apply(function: Any, source: Array, dtype: Any = np.float32) -> Array:
    target = np.empty(source.shape, dtype)
    compiled(function)(source, target)
    return target


def float_patterns() -> Array:
    """Four million random bit patterns, and the neighbourhood of every code and every tie."""
    rng = np.random.default_rng(7)
    bits = [rng.integers(0, 1 << 32, 1 << 22, dtype=np.uint64).astype(np.uint32)]
    for decode in (decode_dl16, decode_ieee_half):
        values = decode(CODES).view(np.uint32).astype(np.int64)
        # half of the last place of either format, in units of float32's last place
        for step in (0, 1 << 12, 1 << 13, 1 << 14):
            bits += [(values + step + ulp).astype(np.uint32) for ulp in (-1, 0, 1)]
    special = [0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00000,
               0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF]  # fmt: skip
    return np.concatenate([*bits, np.array(special, np.uint32)]).view(np.float32)


@pytest.mark.parametrize(
    ("kernel", "reference"),
    [(intrinsics.decode_dl16, decode_dl16), (intrinsics.decode_half, decode_ieee_half)],
    ids=["dl16", "half"],
)
def test_decoding_of_every_code(kernel: Any, reference: Callable[[Array], Array]):
    found, expected = apply(kernel, CODES), reference(CODES)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    same = found.view(np.uint32) == expected.view(np.uint32)
    assert (same | nan).all()


@pytest.mark.parametrize(
    ("kernel", "reference", "infinity"),
    [
        (intrinsics.encode_dl16, encode_dl16, 0x7FFF),
        (intrinsics.encode_half, encode_ieee_half, 0x7C00),
    ],
    ids=["dl16", "half"],
)
def test_encoding_of_float_patterns(
    kernel: Any, reference: Callable[[Array], Array], infinity: int
):
    values = float_patterns()
    found, expected = apply(kernel, values, np.uint16), reference(values)
    nan = np.isnan(values)
    wrong = np.flatnonzero((found != expected) & ~nan)
    assert not wrong.size, [(hex(values.view(np.uint32)[i]), hex(found[i])) for i in wrong[:5]]
    assert ((found[nan] & 0x7FFF) >= infinity).all()
    assert np.array_equal(found[nan] >> 15, expected[nan] >> 15)


@intrinsic
def _half_by_integers(typing_context, code):
    return numba.float32(numba.uint16), lambda c, b, s, a: intrinsics.decoded_half(b, a[0])


@intrinsic
def _to_half_by_integers(typing_context, value):
    return numba.uint16(numba.float32), lambda c, b, s, a: intrinsics.encoded_half(b, a[0])


_decode_by_integers, _encode_by_integers = (
    make(emit, vectors=HalfVectors) for emit in (emit_decode, emit_encode)
)


@numba.njit
def _decode_vectors(operands, count):
    _decode_by_integers(operands, count)


@numba.njit
def _encode_vectors(operands, count):
    _encode_by_integers(operands, count)


def test_halves_without_instructions_for_them(monkeypatch):
    """The bits of the instructions, NaN included, for one number and for vectors."""
    values = float_patterns()
    values = np.resize(values, -(-values.size // 64) * 64)
    cases: list[tuple[Array, Any, Any, Any, Any]] = [
        (CODES, np.float32, intrinsics.decode_half, _half_by_integers, _decode_vectors),
        (values, np.uint16, intrinsics.encode_half, _to_half_by_integers, _encode_vectors),
    ]
    expected = [apply(function, given, kind) for given, kind, function, _, _ in cases]
    monkeypatch.setattr(intrinsics, "_HALF_INSTRUCTIONS", False)
    for (given, kind, _, single, loop), wanted in zip(cases, expected, strict=True):
        vectors = np.empty(given.size, kind)
        loop((given.ctypes.data, vectors.ctypes.data), given.size)
        for found in (apply(single, given, kind), vectors):
            assert np.array_equal(found.view(np.uint16), wanted.view(np.uint16))


def test_order_keys_compare_as_numbers():
    keys = apply(intrinsics.order_key, CODES, np.int16)
    values = decode_dl16(CODES)
    order = np.argsort(keys, kind="stable")
    assert (np.diff(values[order][1:-1]) >= 0).all()
    assert values[order][0] == -np.inf
    assert values[order][-1] == np.inf
    assert np.array_equal(apply(intrinsics.key_code, keys, np.uint16), CODES)


# --- vector functions -------------------------------------------------------------------------


def arguments(low: float, high: float) -> Array:
    """Half a million arguments, evenly spread and spread over magnitudes."""
    rng = np.random.default_rng(3)
    even = rng.uniform(low, high, 1 << 18)
    magnitudes = np.exp2(rng.uniform(-30, math.log2(max(abs(low), abs(high))), 1 << 18))
    signed = np.clip(magnitudes * rng.choice([-1.0, 1.0], magnitudes.size), low, high)
    return np.concatenate([even, signed]).astype(np.float32)


def relative_error(found: Array, exact: Array) -> float:
    """Largest error in units of float32's last place of the exact value."""
    ulp = np.spacing(np.maximum(np.abs(exact), np.finfo(np.float32).tiny).astype(np.float32))
    return float(np.max(np.abs(found.astype(np.float64) - exact) / ulp.astype(np.float64)))


@numba.njit(error_model="numpy")
def _square_root(x):
    return np.sqrt(x)


@numba.njit(error_model="numpy")
def _reciprocal(x):
    return F(1.0) / x


_erfc = np.frompyfunc(math.erfc, 1, 1)


def _gelu(x: Array) -> Array:
    return np.asarray(x * np.asarray(_erfc(-x / math.sqrt(2)), np.float64) / 2)


BOUNDS: list[tuple[str, Any, Callable[[Array], Array], float, float, float]] = [
    ("exp", vm.exponential, np.exp, -110.0, 88.72, 1.1),
    ("half exp", vm.half_exponential, np.exp, -87.0, 88.0, 3),
    ("log", vm.logarithm, np.log, 1e-37, 1e38, 3),
    ("tanh", vm.hyperbolic_tangent, np.tanh, -20.0, 20.0, 4),
    ("sigmoid", vm.sigmoid, lambda x: 1 / (1 + np.exp(-x)), -110.0, 80.0, 2.5),
    ("half sigmoid", vm.half_sigmoid, lambda x: 1 / (1 + np.exp(-x)), -87.0, 80.0, 4),
    ("silu", vm.silu, lambda x: x / (1 + np.exp(-x)), -86.0, 80.0, 3.5),
    ("sqrt", _square_root, np.sqrt, 0.0, 1e30, 0.51),
    ("rsqrt", vm.inverse_root, lambda x: 1 / np.sqrt(x), 1e-30, 1e30, 1.5),
    ("reciprocal", _reciprocal, lambda x: 1 / x, 1e-30, 1e30, 0.51),
]
"""name, function, exact, range, bound in units of the last place: "a few float32 ulp"."""


@pytest.mark.parametrize(
    ("function", "exact", "low", "high", "bound"),
    [b[1:] for b in BOUNDS],
    ids=[b[0] for b in BOUNDS],
)
def test_accuracy(
    function: Any, exact: Callable[[Array], Array], low: float, high: float, bound: float
):
    x = arguments(low, high)
    x = x[x >= low]
    assert relative_error(apply(function, x), exact(x.astype(np.float64))) <= bound


@pytest.mark.parametrize(
    ("function", "ieee"),
    [
        (vm.inverse_root, lambda x: F(1.0) / np.sqrt(x)),
        (_reciprocal, lambda x: F(1.0) / x),
        (_square_root, np.sqrt),
    ],
    ids=["rsqrt", "reciprocal", "sqrt"],
)
def test_roots_and_quotients_are_those_of_ieee_754(function: Any, ieee: Callable[[Array], Array]):
    """Every processor gives these bits; the estimates of its instructions would differ."""
    x = float_patterns()
    found = apply(function, x)
    with np.errstate(all="ignore"):
        expected = ieee(x)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(found), nan)
    assert np.array_equal(found.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def test_gelu_is_accurate_to_1e5_as_far_as_dl16_goes():
    """1e-5 is 0.005 of a DL16 ulp; below -6.4 everything is zero in DL16."""
    x = arguments(-30.0, 20.0)
    exact = _gelu(x.astype(np.float64))
    found = apply(vm.gelu, x)
    error = np.abs(found - exact)
    assert np.max(error[x > -6.4] / np.maximum(np.abs(exact), 1e-30)[x > -6.4]) <= 1e-5
    assert not np.any(encode_dl16(found[x <= -6.45]) & 0x7FFF)
    assert not np.any(encode_dl16(exact[x <= -6.45]) & 0x7FFF)


def test_gelu_of_every_dl16_number():
    """At most a few dozen of 65,534 results round to the neighbour of the exact one."""
    x = decode_dl16(CODES)
    x = x[np.isfinite(x)]
    found, exact = (
        encode_dl16(v).astype(int) & 0x7FFF
        for v in (apply(vm.gelu, x), _gelu(x.astype(np.float64)))
    )
    assert np.max(np.abs(found - exact)) <= 1
    assert np.count_nonzero(found - exact) <= 41


@pytest.mark.parametrize(
    ("x", "expected"), [(0.0, 0.0), (np.inf, np.inf), (200.0, 200.0), (np.nan, np.nan)]
)
def test_gelu_of_special_values(x: float, expected: float):
    np.testing.assert_array_equal(apply(vm.gelu, np.array([x], np.float32)), np.float32(expected))


def test_gelu_of_minus_infinity_is_zero_in_dl16():
    x = np.array([-np.inf, -200.0, -8e9], np.float32)
    assert not np.any(encode_dl16(apply(vm.gelu, x)) & 0x7FFF)


def test_mish_is_accurate_to_a_few_ulp():
    x = arguments(-80.0, 40.0)
    wide = x.astype(np.float64)
    assert relative_error(apply(vm.mish, x), wide * np.tanh(np.log1p(np.exp(wide)))) <= 8


def test_gelu_tanh_is_accurate_to_1e5():
    x = arguments(-5.0, 20.0)
    wide = x.astype(np.float64)
    exact = wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
    error = np.abs(apply(vm.gelu_tanh, x) - exact)
    assert np.max(error / np.maximum(np.abs(exact), 1e-30)) <= 1e-5


@numba.njit(error_model="numpy")
def _softplus(x):
    return vm.softplus(x, F(1.5), F(20.0))


def test_softplus_is_accurate_to_a_few_ulp():
    x = arguments(-50.0, 40.0)
    scaled = (x * F(1.5)).astype(np.float64)
    exact = np.where(scaled > 20.0, x, np.log1p(np.exp(np.minimum(scaled, 21))) / 1.5)
    near = np.abs(scaled - 20.0) < 1e-4
    assert relative_error(apply(_softplus, x)[~near], exact[~near]) <= 8


@pytest.mark.parametrize("function", [vm.exponential, vm.sigmoid], ids=["exp", "sigmoid"])
def test_nan_of_any_payload_stays_nan(function: Any):
    bits = np.arange(0x7F800001, 0x80000000, 4099, np.uint32)
    x = np.concatenate([bits, bits | np.uint32(0x80000000)]).view(np.float32)
    assert np.isnan(apply(function, x)).all()


@pytest.mark.parametrize("function", [vm.exponential, vm.sigmoid], ids=["exp", "sigmoid"])
def test_results_below_the_smallest_normal_number(function: Any):
    x = np.linspace(-110.0, -86.0, 24001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert relative_error(apply(function, x), exact) <= 1
    assert not apply(function, np.array([-1e30, -np.inf], np.float32)).any()


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 200.0, -200.0], np.float32)
nan, inf = np.nan, np.inf


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (vm.exponential, [1, 1, math.e, 1 / math.e, inf, 0, nan, inf, 0]),
        (vm.logarithm, [-inf, -inf, 0, nan, inf, nan, nan, math.log(200), nan]),
        (vm.hyperbolic_tangent, [0, -0.0, math.tanh(1), -math.tanh(1), 1, -1, nan, 1, -1]),
        (vm.sigmoid, [0.5, 0.5, 1 / (1 + 1 / math.e), 1 / (1 + math.e), 1, 0, nan, 1, 0]),
        (vm.silu, [0, -0.0, 1 / (1 + 1 / math.e), -1 / (1 + math.e), inf, 0, nan, 200, 0]),
        (vm.mish, [0, -0.0, 0.8650984, -0.30340147, inf, 0, nan, 200, 0]),
        (vm.inverse_root, [inf, -inf, 1, nan, 0, nan, nan, 200**-0.5, nan]),
        (_square_root, [0, -0.0, 1, nan, inf, nan, nan, 200**0.5, nan]),
        (_reciprocal, [inf, -inf, 1, -1, 0, -0.0, nan, 0.005, -0.005]),
    ],
    ids=["exp", "log", "tanh", "sigmoid", "silu", "mish", "rsqrt", "sqrt", "reciprocal"],
)
def test_special_values(function: Any, expected: list[float]):
    found = apply(function, SPECIAL)
    np.testing.assert_allclose(found, np.array(expected, np.float32), rtol=2e-6, atol=1e-37)
