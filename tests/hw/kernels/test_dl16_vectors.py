"""Loops over vectors of DL16 codes against the same loops over the codecs of single elements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
import pytest

from spyre.hw.interpreter.machine import order_key
from spyre.hw.kernels import dl16_vectors, vector_math
from spyre.hw.kernels.dl16_functions import CODE_OPERATIONS, of_numbers, vector_formula
from spyre.hw.kernels.dl16_vectors import HOST_CODES, HOST_PACK
from spyre.hw.kernels.families.reduction import MAX, MIN, SUM, combine_lanes, reduce_lanes
from spyre.hw.kernels.intrinsics import decode_dl16, decode_half, encode_dl16, multiply_add

VECTORS = {(HOST_CODES, HOST_PACK), (HOST_CODES, None), (16, None), (32, None)}
ALL_CODES = np.arange(1 << 16, dtype=np.uint16)
SPECIAL = np.array([0, 0x8000, 1, 0x8001, 0x7FFE, 0xFFFE, 0x7FFF, 0xFFFF], np.uint16)
OPERATIONS = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide}

vectors = pytest.mark.parametrize("vectors", sorted(VECTORS, key=str), ids=str)
operations = pytest.mark.parametrize("operation", OPERATIONS)


def _compiled(function: Any) -> Any:
    return numba.njit(error_model="numpy")(function)


def _applied(function: Any, dtype: Any) -> Any:
    """Return a function of arrays that applies a kernel function to every element."""

    @_compiled
    def loop(source, target):
        for i in range(source.size):
            target[i] = function(source[i])

    def applied(source: Any) -> Any:
        target = np.empty(source.size, dtype)
        loop(source, target)
        return target

    return applied


decoded, halves = _applied(decode_dl16, np.float32), _applied(decode_half, np.float32)
encoded = _applied(encode_dl16, np.uint16)


def encoded_of(operation: str, codes: Any) -> Any:
    """Return the encoded results of the operation on ALL_CODES and ``codes``."""
    with np.errstate(all="ignore"):
        return encoded(OPERATIONS[operation](decoded(ALL_CODES), decoded(codes)))


def loop_over(emit: Any, vectors: Any) -> Callable[..., Any]:
    """Compile a loop over whole arrays; it returns the last one, whose size is ``count``."""
    loop = dl16_vectors.make(emit, *vectors)

    @_compiled
    def call(operands, count):
        loop(operands, count)

    def run(*arrays: Any) -> Any:
        call(tuple(array.ctypes.data for array in arrays), arrays[-1].size)
        return arrays[-1]

    return run


def elementwise_over(operation: Any, vectors: Any) -> Any:
    """`loop_over` of an operation on adjacent sticks."""
    loop = dl16_vectors.make(partial(dl16_vectors.emit_elementwise, 0, operation), *vectors)

    @_compiled
    def call(operands, count):
        loop(operands, count)

    def run(*arrays: Any) -> Any:
        addresses = (array.ctypes.data for array in arrays)
        call((*addresses, *[128] * len(arrays)), arrays[-1].size // 64)
        return arrays[-1]

    return run


def partners() -> list[Any]:
    """Second operands for ALL_CODES: specials, random ones, itself and its negative."""
    rng = np.random.default_rng(1)
    found = [np.full_like(ALL_CODES, code) for code in SPECIAL]
    found += [rng.integers(0, 1 << 16, ALL_CODES.size).astype(np.uint16) for _ in range(20)]
    return [*found, ALL_CODES.copy(), ALL_CODES ^ np.uint16(0x8000)]


@vectors
def test_every_code_is_decoded_alike(vectors: Any) -> None:
    decode = loop_over(dl16_vectors.emit_decode, vectors)
    values = decode(ALL_CODES, np.empty(1 << 16, np.float32))
    np.testing.assert_array_equal(values.view(np.uint32), decoded(ALL_CODES).view(np.uint32))


@vectors
def test_every_kind_of_float_is_encoded_alike(vectors: Any) -> None:
    around = decoded(ALL_CODES).view(np.uint32)[:, None] + np.array(
        [-0x2001, -0x2000, -0x1FFF, -1, 0, 1, 0x1FFF, 0x2000, 0x2001], np.int64
    )
    spread = np.arange(0, 1 << 32, 4099)[: 1 << 20]
    floats = np.concatenate([around.ravel(), spread]).astype(np.uint32).view(np.float32)
    floats = floats[: floats.size // 64 * 64].copy()
    encode = loop_over(dl16_vectors.emit_encode, vectors)
    codes = encode(floats, np.empty(floats.size, np.uint16))
    np.testing.assert_array_equal(codes, encoded(floats))


@pytest.mark.parametrize("by_fours", [False, True])
@vectors
def test_sticks_are_widened_and_narrowed_alike(vectors: Any, by_fours: bool) -> None:
    emits = {0: dl16_vectors.emit_widen, 1: dl16_vectors.emit_narrow}
    choices = {k: partial(emit, by_fours) for k, emit in emits.items()}
    loop, sticks = dl16_vectors.make_choice(choices, *vectors), ALL_CODES.size // 64

    def call(number, operands, pitches):
        loop(number, operands, pitches, sticks, 64)

    words, codes = np.empty((2, sticks, 32), np.float32), np.empty_like(ALL_CODES)
    halves = [half.ctypes.data for half in words]
    _compiled(call)(0, (ALL_CODES.ctypes.data, *halves), (128, 128, 128))
    groups = decoded(ALL_CODES).reshape(sticks, -1, 2, 4 if by_fours else 32)
    expected = groups.transpose(2, 0, 1, 3).reshape(words.shape)
    np.testing.assert_array_equal(words.view(np.uint32), expected.view(np.uint32))
    _compiled(call)(1, (*halves, codes.ctypes.data), (128, 128, 128))
    np.testing.assert_array_equal(codes, encoded(decoded(ALL_CODES)))


@operations
@vectors
def test_arithmetic_is_that_of_single_elements(operation: str, vectors: Any) -> None:
    compute = elementwise_over(partial(dl16_vectors.arithmetic, operation), vectors)
    for codes in partners():
        found = compute(ALL_CODES, codes, np.empty_like(codes))
        np.testing.assert_array_equal(found, encoded_of(operation, codes))


@operations
@vectors
def test_a_code_for_every_stick(operation: str, vectors: Any) -> None:
    form = partial(dl16_vectors.arithmetic, operation)
    emit = partial(dl16_vectors.emit_elementwise, 0b10, form)
    loop, pitch = dl16_vectors.make_choice({7: emit}, *vectors), 6
    lanes = np.resize(np.append(SPECIAL, np.arange(0x3000, 0x4800, 7, np.uint16)), 3 << 10)

    def call(operands, pitches, runs, count):
        loop(7, operands, pitches, runs, count)

    # an odd number of sticks in a run, and a rest
    for runs, count in ((341, 3), (1, 1 << 10)):
        found, steps = np.zeros_like(ALL_CODES), (128, pitch, 128)
        operands = ALL_CODES.ctypes.data, lanes.ctypes.data, found.ctypes.data, *steps
        beyond = *(count * step for step in steps), 0, 0, 0
        _compiled(call)(operands, beyond, runs, count)
        expected = encoded_of(operation, np.repeat(lanes[::3], 64))
        expected[64 * runs * count :] = 0
        np.testing.assert_array_equal(found, expected)


def test_products_with_a_reciprocal_have_the_codes_of_quotients() -> None:
    """All significands; the special codes are those of `test_a_code_for_every_stick`."""
    significands = decoded(np.arange(0x3E00, 0x4000, dtype=np.uint16))
    x, y = (each.ravel() for each in np.meshgrid(significands, significands))
    np.testing.assert_array_equal(encoded(x * (np.float32(1) / y)), encoded(x / y))


@vectors
def test_extremes_compare_numbers(vectors: Any) -> None:
    values = decoded(ALL_CODES)
    for comparison, choose, tie in ((">", np.maximum, np.bitwise_and),
                                    ("<", np.minimum, np.bitwise_or)):  # fmt: skip
        compute = elementwise_over(partial(dl16_vectors.extreme, comparison), vectors)
        for codes in partners():
            other = decoded(codes)
            zeros = (values == 0) & (other == 0)
            found = compute(ALL_CODES, codes, np.empty_like(codes))
            np.testing.assert_array_equal(decoded(found), choose(values, other))
            np.testing.assert_array_equal(found[zeros], tie(ALL_CODES, codes)[zeros])


@vectors
def test_signs_and_choices(vectors: Any) -> None:
    values = decoded(ALL_CODES)
    expected = {
        dl16_vectors.relu: np.where(values > 0, values, np.float32(0)),
        dl16_vectors.negative: -values,
        dl16_vectors.absolute: np.abs(values),
    }
    for operation, result in expected.items():
        found = elementwise_over(operation, vectors)(ALL_CODES, np.empty_like(ALL_CODES))
        np.testing.assert_array_equal(found, encoded(result))
    yes, no = ALL_CODES[::-1].copy(), ALL_CODES ^ np.uint16(0x1234)
    choose = elementwise_over(dl16_vectors.where, vectors)
    found = choose(ALL_CODES, yes, no, np.empty_like(no))
    np.testing.assert_array_equal(found, np.where(values != 0, yes, no))


@vectors
def test_in_place(vectors: Any) -> None:
    compute = elementwise_over(partial(dl16_vectors.arithmetic, "fadd"), vectors)
    codes = ALL_CODES.copy()
    expected = compute(ALL_CODES, ALL_CODES, np.empty_like(codes))
    np.testing.assert_array_equal(compute(codes, codes, codes), expected)


def over_four_runs(emit: Any, vectors: Any, runs: Any, target: Any) -> Any:
    """Run a loop over the rows of ``runs``, two of which begin farther apart than they are long."""
    loop = dl16_vectors.make(emit, *vectors)

    @_compiled
    def call(operands, count):
        loop(operands, count)

    call((runs.ctypes.data, runs.strides[0], target.ctypes.data), target.size)
    return target


@vectors
def test_four_runs_are_added_in_pairs(vectors: Any) -> None:
    rng = np.random.default_rng(2)
    runs = rng.integers(0, 0x7000, (4, 4160)).astype(np.uint16)
    start = rng.standard_normal(4096).astype(np.float32)
    a, b, c, d = map(decoded, runs[:, :4096])
    expected = start + ((a + b) + (c + d))
    found = over_four_runs(dl16_vectors.emit_add_four, vectors, runs, start.copy())
    np.testing.assert_array_equal(found, expected)


@vectors
def test_extremes_of_four_runs(vectors: Any) -> None:
    rng = np.random.default_rng(3)
    runs = np.stack([np.resize(SPECIAL, 1 << 16), *(rng.permutation(ALL_CODES) for _ in range(3))])
    start = rng.permutation(ALL_CODES).view(np.int16)
    keys = np.concatenate([order_key(runs), start[None]])
    for comparison, expected in ((">", keys.max(axis=0)), ("<", keys.min(axis=0))):
        emit = partial(dl16_vectors.emit_extreme_four, comparison)
        found = over_four_runs(emit, vectors, runs, start.copy())
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("opcode", [SUM, MAX, MIN])
def test_lanes_are_combined_by_halves(opcode: int) -> None:
    rng = np.random.default_rng(4)
    numbers = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 3e-39], np.float32)
    for trial in range(200):
        row = rng.choice(numbers[: 2 + trial % 7], 64)
        if trial >= 100:
            row = rng.standard_normal(64).astype(np.float32)
        expected = row.copy()
        combine_lanes(opcode, expected)
        reduce_lanes(opcode, row, 64)
        assert np.array_equal(row.view(np.uint32), np.repeat(expected.view(np.uint32)[:1], 64))


@_compiled
def _row_added(factor, row, sums):
    for j in range(row.size):
        sums[j] = multiply_add(factor, row[j], sums[j])


@vectors
def test_every_half_is_decoded(vectors: Any) -> None:
    loop = dl16_vectors.make(dl16_vectors.emit_decode, *vectors, dl16_vectors.HalfVectors)
    found = np.empty(ALL_CODES.size, np.float32)

    @_compiled
    def call(operands, count):
        loop(operands, count)

    call((ALL_CODES.ctypes.data, found.ctypes.data), found.size)
    np.testing.assert_array_equal(found.view(np.uint32), halves(ALL_CODES).view(np.uint32))
    np.testing.assert_array_equal(found, ALL_CODES.view(np.float16).astype(np.float32))


@vectors
@pytest.mark.parametrize(
    ("form", "decoded", "special"),
    [
        (dl16_vectors.CodeVectors, decoded, SPECIAL),
        (dl16_vectors.HalfVectors, halves, np.where(SPECIAL & 0x7FF0, SPECIAL & 0xFC00, SPECIAL)),
    ],
    ids=["dl16", "half"],
)
def test_rows_are_added_up_in_order(vectors: Any, form: Any, decoded: Any, special: Any) -> None:
    loop, depth, pitch = dl16_vectors.make(dl16_vectors.emit_row_product, *vectors, form), 100, 80
    rng = np.random.default_rng(4)
    factors, start = (rng.standard_normal(n).astype(np.float32) for n in (depth, 64))
    rows = rng.integers(0x3000, 0x4000, (depth, pitch)).astype(np.uint16)
    rows[3, :8] = special

    @_compiled
    def call(operands, count):
        loop(operands, count)

    expected, found = start.copy(), start.copy()
    for k in range(depth):
        _row_added(factors[k], decoded(rows[k, :64]), expected)
    places = factors.ctypes.data, rows.ctypes.data, rows.strides[0], found.ctypes.data
    call(places, depth)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@vectors
def test_runs_lie_apart(vectors: Any) -> None:
    emit = partial(dl16_vectors.emit_elementwise, 0, partial(dl16_vectors.arithmetic, "fmul"))
    loop, runs, size = dl16_vectors.make_choice({0: emit}, *vectors), 5, 128
    rng = np.random.default_rng(3)
    x, y, z = (
        rng.integers(0, 1 << 16, (runs, width)).astype(np.uint16) for width in (200, 128, 400)
    )
    kept = z[:, size:].copy()

    def call(operands, pitches, runs, count):
        loop(0, operands, pitches, runs, count)

    places = x.ctypes.data, y[runs - 1 :].ctypes.data, z.ctypes.data, 128, 128, 128
    pitches = x.strides[0], -y.strides[0], z.strides[0], 0, 0, 0
    _compiled(call)(places, pitches, runs, size // 64)
    with np.errstate(all="ignore"):
        expected = decoded(x[:, :size].ravel()) * decoded(y[::-1].ravel())
    np.testing.assert_array_equal(z[:, :size].ravel(), encoded(expected))
    np.testing.assert_array_equal(z[:, size:], kept)


OF_NUMBERS = {
    "exp": vector_math.half_exponential,
    "log": vector_math.logarithm,
    "sqrt": vector_math.square_root,
    "rsqrt": vector_math.inverse_root,
    "reciprocal": vector_math.reciprocal,
    "tanh": vector_math.hyperbolic_tangent,
    "sigmoid": vector_math.half_sigmoid,
    "gelu": vector_math.gelu,
    "silu": vector_math.half_silu,
    "gelu_erf": vector_math.gelu_erf,
    "gelu_tanh": vector_math.gelu_tanh,
}
GELU_FORMS = {
    name: partial(of_numbers, vector_formula(name), special=(True, False, True))
    for name in ("gelu_erf", "gelu_tanh")
}
"""Both, whichever of them the choice of the specification makes the kernel's."""
OF_CODES = {name: GELU_FORMS.get(name) or CODE_OPERATIONS[name] for name in OF_NUMBERS}


@vectors
@pytest.mark.parametrize("name", OF_CODES)
def test_functions_of_every_code(name: str, vectors: Any):
    function = OF_NUMBERS[name]

    @_compiled
    def call(values, results):
        for i in range(values.size):
            results[i] = function(values[i])

    results = np.empty(ALL_CODES.size, np.float32)
    call(decoded(ALL_CODES), results)
    compute = elementwise_over(OF_CODES[name], vectors)
    found = compute(ALL_CODES.copy(), np.empty_like(ALL_CODES))
    assert np.array_equal(found, encoded(results))
