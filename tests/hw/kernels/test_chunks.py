"""Sums in DL16, of dl16-chunk and of cards' means: kernels and reference bit for bit, examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.dtypes import NumericRules, decode_dl16, encode_dl16
from spyre.hw import plan_table as tb
from spyre.hw.kernels import intrinsics
from spyre.hw.reference.definitions import add_rounded, sum_in_chunks
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, reduction
from tests.examples import examples
from tests.hw.harness import (
    Array,
    Fill,
    Trial,
    allocations_of,
    any_numbers,
    compare,
    engine,
    link,
    normals,
    region,
    windows,
)
from tests.hw.kernels.test_codec import compiled, float_patterns
from tests.hw.strategies import matmul_specs, reduction_specs, seeds, thread_counts

modes = st.sampled_from(["dl16-chunk", "dl16-chunk", "dl16-chunk:alu=trunc", "dl16-chunk:alu=even"])
fills: st.SearchStrategy[Fill] = st.sampled_from([normals, any_numbers])
MEANS = st.sampled_from(["card", "card:alu=trunc", "dl16-chunk:scaled-means"])
CONSTANTS = {"sum": {}, "mean": {"scaling_factor": 0x37FF}, "exx2": {"exx2scale": 0x3AAB}}


def at(k: int) -> HostOperand:
    return HostOperand(region(k))


@pytest.mark.parametrize("name", CONSTANTS)
@examples(40)
@given(data=st.data(), seed=seeds, mode=modes, threads=thread_counts, fill=fills)
def test_sums(name: str, data: st.DataObject, seed: int, mode: str, threads: int, fill: Fill):
    """Along any dims, split over cores, masked: the bits of the reference's order."""
    over_stick = True if name == "exx2" else None
    spec = data.draw(
        reduction_specs(name, CONSTANTS[name], over_stick=over_stick, mask_bits=0x4123, fp32=False)
    )
    compare(spec, Trial(fill, mode, threads, seed=seed))


@examples(40)
@given(data=st.data(), seed=seeds, mode=MEANS, threads=thread_counts, fill=fills)
def test_means_of_cards(data: st.DataObject, seed: int, mode: str, threads: int, fill: Fill):
    spec = data.draw(reduction_specs("mean", CONSTANTS["mean"], mask_bits=0x4123, fp32=False))
    compare(spec, Trial(fill, mode, threads, seed=seed))


@examples(25)
@given(spec=matmul_specs(), seed=seeds, mode=modes, threads=thread_counts, fill=fills)
def test_matmul(spec: OperationSpec, seed: int, mode: str, threads: int, fill: Fill):
    compare(spec, Trial(fill, mode, threads, seed=seed))


@pytest.mark.parametrize("mode", ["dl16-chunk", "dl16-chunk:alu=trunc"])
def test_long_sums(mode: str):
    """Several chunks, a last one that is not full, several cores and both kinds of dims."""
    for rows, splits in ((200, {}), (192, {"mb": 3}), (200, {"mb": 2, "out": 2})):
        compare(reduction("sum", (rows, 128), (0,), at(0), at(1), splits), Trial(normals, mode))
    for splits in ({}, {"out": 5}, {"out": 5, "mb": 4}):
        compare(reduction("sum", (8, 640), (1,), at(0), at(1), splits), Trial(normals, mode))
    compare(matmul(40, 640, 320, at(0), at(1), at(2), (), {"in": 5}), Trial(normals, mode))


@pytest.mark.parametrize("data_format", ["IEEE_FP32"])
def test_float32_sums_are_not_chunked(data_format: str):
    wide = [HostOperand(region(k), data_format=data_format) for k in (0, 1)]
    spec = reduction("sum", (130, 64), (0,), *wide)
    compare(spec, Trial(lambda rng, n: rng.integers(-9, 9, n).astype(np.float32), "dl16-chunk"))


def column_sum(codes: Array, mode: str) -> int:
    """Return the engine's sum, a DL16 code, of one lane with elements ``codes``."""
    rows = len(codes)
    op = build_operation(reduction("sum", (rows, 64), (0,), at(0), at(1)))
    device, found = engine(mode), windows(op)
    device.memory.write(found[0].low, np.repeat(codes, 64).astype(np.uint16).view(np.uint8))
    device.executor.run(link(device, [op], allocations_of(found)))
    return int(device.memory.read(found[1].low, 2).view(np.uint16)[0])


def test_a_chunk_stops_growing_where_its_total_swallows_terms():
    """Ones stop counting at 1024 within a chunk of larger terms, not across chunks."""
    large, one = encode_dl16(2048.0), encode_dl16(1.0)
    codes = np.full(128, one)
    codes[0] = large
    # 2048 + 1 rounds to 2048 63 times; the second chunk counts its 64 ones by themselves
    assert decode_dl16(column_sum(codes, "dl16-chunk")) == 2048 + 64
    assert decode_dl16(column_sum(codes, "dl16")) == 2176  # 2175 to the next multiple of 4


def test_terms_are_added_in_order():
    codes = encode_dl16(np.array([1.0, 2048.0, -2048.0], np.float32))
    assert decode_dl16(column_sum(codes, "dl16-chunk")) == 0.0
    assert decode_dl16(column_sum(codes[[1, 2, 0]], "dl16-chunk")) == 1.0


def test_reference_of_one_chunk_by_hand():
    terms = np.array([1.0, 2.0**-10, 2.0**-10], np.float32)
    assert sum_in_chunks(terms, NumericRules("dl16-chunk")) == 1 + 2.0**-8
    assert sum_in_chunks(terms, NumericRules("dl16-chunk", "trunc")) == 1.0
    assert sum_in_chunks(terms, NumericRules("dl16-chunk", "even")) == 1.0


@pytest.mark.parametrize("name", ["away", "trunc", "even"])
def test_add_rounded_of_float_patterns(name: str):
    """Rounding in the ALU, over four million sums with zero and the neighbourhood of every tie."""
    code = {"away": 0, "trunc": 4, "even": 5}[name]
    add, odd = tb.ROUNDING_ADD[code], tb.ROUNDING_ODD[code]
    values = float_patterns()
    values = values[~np.isnan(values)]
    found = np.empty_like(values)
    compiled(intrinsics.add_rounded, 3)(values, found, np.float32(0.0), add, odd)
    expected = add_rounded(values, np.float32(0.0), NumericRules("dl16", name))
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
