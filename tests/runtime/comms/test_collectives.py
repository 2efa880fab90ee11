"""Collectives against their definitions: operations, transports, algorithms, numbers of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.dtypes import decode_device, decode_dl16, encode_device, encode_dl16
from spyre.errors import UnsupportedError
from spyre.hw.device import OPERATORS, Combiner
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.runtime.comms import ALGORITHMS, MessageTransport
from spyre.runtime.comms.memory import SharedMemory
from tests.examples import examples
from tests.runtime.comms.ranks import one_row, raised, run_ranks

KINDS = ["threads", "messages"]
SIZES = st.sampled_from([128, 256, 1280, 65536 + 128, (1 << 17) + 384])
"""Sizes in bytes: below and above one exchange of a reduction, and of several pieces a chunk."""


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        for transport in (SharedMemory, MessageTransport):
            patch.setattr(transport, "piece_bytes", 4096)
        yield


def codes_of(rank, size_bytes, seed=0):
    values = np.random.default_rng([seed, rank]).normal(size=size_bytes // 2)
    return encode_dl16(values.astype(np.float32)).astype(np.uint16)


def rounded_sum(runs):
    """Sum in rank order, rounded to DL16 after every step, by the reference codec."""
    total = runs[0]
    for run in runs[1:]:
        total = encode_dl16(decode_dl16(total) + decode_dl16(run)).astype(np.uint16)
    return total


def expected_sum(runs, owner, algorithm):
    if algorithm == "Ring":
        runs = [runs[(owner + 1 + step) % len(runs)] for step in range(len(runs))]
    elif algorithm == "Tree":
        while len(runs) > 2:
            pairs = [rounded_sum(runs[i : i + 2]) for i in range(0, len(runs) - 1, 2)]
            runs = pairs + (runs[-1:] if len(runs) % 2 else [])
    elif algorithm == "Float32":
        total = decode_dl16(runs[0])
        for run in runs[1:]:
            total = total + decode_dl16(run)
        return encode_dl16(total).astype(np.uint16)
    return rounded_sum(runs)


@examples(25)
@given(
    kind=st.sampled_from(KINDS),
    ranks=st.integers(1, 5),
    size=SIZES,
    algorithm=st.sampled_from(ALGORITHMS),
)
def test_all_reduce_has_the_order_of_its_algorithm(kind, ranks, size, algorithm):
    def body(communicator):
        run = codes_of(communicator.rank, size)
        combiner = Combiner("sum", "float16", Numerics())
        communicator.all_reduce(run.view(np.uint8), combiner, f"{size}")
        return run

    results = raised(run_ranks(ranks, body, kind, algorithm))
    runs = [codes_of(rank, size) for rank in range(ranks)]
    share = -(-(size // 128) // ranks) * 64
    for owner in range(ranks):
        part = slice(owner * share, (owner + 1) * share)
        expected = expected_sum([run[part] for run in runs], owner, algorithm)
        for result in results:
            np.testing.assert_array_equal(result[part], expected)


@examples(30)
@given(kind=st.sampled_from(KINDS), ranks=st.integers(1, 4), size=SIZES, data=st.data())
def test_copies_arrive_where_they_belong(kind, ranks, size, data):
    root = data.draw(st.integers(0, ranks - 1))
    strided = data.draw(st.booleans())

    def content(source, target):
        return np.random.default_rng([source, target]).integers(0, 256, size, np.uint8)

    def shaped(array):
        return array.reshape(-1, 64) if strided else array.reshape(1, -1)

    def empty():
        # rows at a distance, as a part of a larger tensor has them
        return np.zeros((size // 64, 96), np.uint8)[:, :64] if strided else shaped(content(9, 9))

    def body(communicator):
        rank, at_root = communicator.rank, communicator.rank == root
        own = shaped(content(rank, 0))
        gathered, gathered_at_root, exchanged = ([empty() for _ in range(ranks)] for _ in range(3))
        scattered, spread = empty(), shaped(content(rank, 7).copy())
        communicator.all_gather(gathered, own, "")
        in_place = [shaped(content(rank, k)) for k in range(ranks)]
        communicator.all_gather(in_place, in_place[rank], "")
        communicator.gather(gathered_at_root if at_root else [], own, root, "")
        parts = [shaped(content(rank, k)) for k in range(ranks)]
        communicator.all_to_all(exchanged, parts, "")
        communicator.scatter(scattered, parts if at_root else [], root, "")
        communicator.broadcast(spread, root, "")
        communicator.barrier("")
        return gathered, in_place, gathered_at_root, exchanged, scattered, spread

    results = raised(run_ranks(ranks, body, kind))
    for rank, (gathered, in_place, at_root, exchanged, scattered, spread) in enumerate(results):
        for k in range(ranks):
            np.testing.assert_array_equal(in_place[k].ravel(), content(k, k))
            np.testing.assert_array_equal(gathered[k].ravel(), content(k, 0))
            np.testing.assert_array_equal(exchanged[k].ravel(), content(k, rank))
            if rank == root:
                np.testing.assert_array_equal(at_root[k].ravel(), content(k, 0))
        np.testing.assert_array_equal(scattered.ravel(), content(root, rank))
        np.testing.assert_array_equal(spread.ravel(), content(root, 7))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("in_place", [False, True])
def test_reduce_and_reduce_scatter(kind, ranks, in_place):
    size = 70_000 // 128 * 128

    def body(communicator):
        combiner = Combiner("sum", "float16", Numerics())
        run = codes_of(communicator.rank, size)
        communicator.reduce(run.view(np.uint8), 1, combiner, "")
        parts = [one_row(codes_of(communicator.rank, size, 1 + k)) for k in range(ranks)]
        out = parts[communicator.rank] if in_place else np.empty_like(parts[0])
        communicator.reduce_scatter(out, parts, combiner, "")
        return run, out.view(np.uint16)[0]

    for rank, (run, out) in enumerate(raised(run_ranks(ranks, body, kind))):
        runs = [codes_of(k, size) for k in range(ranks)]
        np.testing.assert_array_equal(run, rounded_sum(runs) if rank == 1 else runs[rank])
        parts = [codes_of(k, size, 1 + rank) for k in range(ranks)]
        np.testing.assert_array_equal(out, rounded_sum(parts))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "bool"])
def test_integers_and_bools_wrap_as_words(operator, dtype):
    words = {"int64": "int32", "uint8": "uint32", "bool": "uint16"}.get(dtype, dtype)
    random = np.random.default_rng(3)
    one = encode_dl16(np.float32(1)).astype(np.uint16)
    limits = {"bool": (0, 2), "uint8": (0, 256)}.get(dtype, (-100, 100))
    x, y = (random.integers(*limits, 256).astype(words) for _ in range(2))
    codes = [v * one if dtype == "bool" else v for v in (x, y)]
    out = np.empty_like(codes[0])
    runs = [np.ascontiguousarray(c).view(np.uint8) for c in (*codes, out)]
    Combiner(operator, dtype, Numerics()).combine(*runs)
    meaning = {
        "sum": lambda: np.maximum(x, y) if dtype == "bool" else x + y,
        "product": lambda: x * y,
        "min": lambda: np.minimum(x, y),
        "max": lambda: np.maximum(x, y),
        "band": lambda: x & y,
        "bor": lambda: x | y,
        "bxor": lambda: x ^ y,
    }
    expected = meaning[operator]()
    expected = expected * one if dtype == "bool" else expected
    expected = expected & 255 if dtype == "uint8" else expected
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("operator", "x", "y", "fits"),
    [
        ("sum", 2**31 - 1, 1, False),
        ("sum", -(2**31), -1, False),
        ("sum", -(2**31), 2**31 - 1, True),
        ("product", 2**20, 2**20, False),
        ("product", -(2**16), 2**15, True),
        ("max", 2**31 - 1, -(2**31), True),
    ],
)
def test_int64_results_fit_the_cards_words_or_are_refused(operator, x, y, fits):
    runs = [np.full(64, value, np.int32) for value in (x, y, 0)]
    rows = [run.view(np.uint8) for run in runs]
    combiner = Combiner(operator, "int64", Numerics())
    if fits:
        combiner.combine(*rows)
        assert (runs[2] == {"sum": x + y, "product": x * y, "max": max(x, y)}[operator]).all()
    else:
        with pytest.raises(UnsupportedError, match="SPY901"):
            combiner.combine(*rows)


@pytest.mark.parametrize("operator", ["min", "max"])
@pytest.mark.parametrize("in_place", [False, True])
def test_extremes_of_float32_keep_nan(operator, in_place):
    x, y = np.full(64, 1, np.float32), np.full(64, 2, np.float32)
    x[1], y[2], x[3], y[3] = [np.nan] * 4
    x[4], y[4], x[5], y[5] = 0.0, -0.0, -0.0, 0.0
    expected = np.where(np.isnan(x) | np.isnan(y), np.nan, getattr(np, operator + "imum")(x, y))
    zero = 0.0 if operator == "max" else -0.0
    out = x if in_place else np.empty_like(x)
    runs = [array.view(np.uint8) for array in (x, y, out)]
    Combiner(operator, "float32", Numerics()).combine(*runs)
    np.testing.assert_array_equal(out, expected)
    assert (np.signbit(out[4:6]) == np.signbit(zero)).all()


@pytest.mark.parametrize("numerics", ["dl16", "dl16:alu=even", "ieee"])
@pytest.mark.parametrize("operator", ["sum", "product", "min", "max"])
def test_floats_round_as_the_cards_operations(operator, numerics):
    mode = parse_numerics(numerics)
    random = np.random.default_rng(5)
    x, y = (random.integers(0, 1 << 16, 64 * 40).astype(np.uint16) for _ in range(2))
    out = np.empty_like(x)
    runs = [array.view(np.uint8) for array in (x, y, out)]
    Combiner(operator, "float16", mode).combine(*runs)
    left, right = (decode_device(codes, "SEN169_FP16", mode.alu_rules) for codes in (x, y))
    with np.errstate(all="ignore"):
        meaning = {
            "sum": np.add, "product": np.multiply, "min": np.fmin, "max": np.fmax
        }[operator](left, right)  # fmt: skip
    numbers = np.isfinite(left) & np.isfinite(right) & np.isfinite(meaning)
    expected = encode_device(meaning.astype(np.float32), "SEN169_FP16", mode.alu_rules)
    same = (out == expected) | (decode_device(out, "SEN169_FP16", mode.alu_rules) == meaning)
    assert same[numbers].all()


def test_float32_algorithm_only_concerns_sums_of_16_bit_floats():
    def body(communicator):
        run = np.full(64, communicator.rank, np.int32)
        combiner = Combiner("max", "int32", Numerics())
        communicator.all_reduce(run.view(np.uint8), combiner, "")
        return run

    for run in raised(run_ranks(3, body, algorithm="Float32")):
        assert (run == 2).all()


@pytest.mark.parametrize(("operator", "dtype"), [("bor", "float16"), ("sum", "float8_e4m3fn")])
def test_reductions_the_card_has_not_are_refused(operator, dtype):
    with pytest.raises(UnsupportedError, match="SPY953"):
        Combiner(operator, dtype, Numerics())
