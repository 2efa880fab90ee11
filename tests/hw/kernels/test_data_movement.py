"""identity, gather, scatter, conversions and restickify: engine against reference, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.operation.operation import Operation
from tests.examples import examples
from tests.hw.harness import Array, Fill, Trial, any_numbers, compare
from tests.hw.movement_strategies import (
    conversion_specs,
    copy_specs,
    gathers,
    restickify_specs,
)
from tests.hw.strategies import modes, seeds, thread_counts

Gather = tuple[Operation, int, int]


def any_bits(rng: np.random.Generator, count: int) -> Array:
    """Random bit patterns; integers pass through the format's codes unchanged."""
    return rng.integers(0, 1 << 16, count).astype(np.int64)


@examples(60)
@given(spec=copy_specs(), seed=seeds, threads=thread_counts)
def test_identity_copies_bits(spec: OperationSpec, seed: int, threads: int):
    compare(spec, Trial(any_bits, threads=threads, seed=seed))


@pytest.mark.parametrize("name", ["dl16tofp32", "fp32todl16"])
@examples(30)
@given(data=st.data(), seed=seeds, mode=modes, threads=thread_counts)
def test_conversion(name: str, data: st.DataObject, seed: int, mode: str, threads: int):
    tags = data.draw(st.sampled_from(CONVERSION_TAGS[name]))
    spec = data.draw(conversion_specs(name, lx=tags == CONVERSION_TAGS[name][0]))
    compare(spec, Trial(any_numbers, mode, threads, tags=tags, seed=seed))


CONVERSION_TAGS = {
    "dl16tofp32": [
        ("STANDARD", "STANDARD"),
        ("STANDARD", "DL16_TO_FP32"),
        ("FP32_TO_DL16", "STANDARD"),
    ],
    "fp32todl16": [
        ("STANDARD", "STANDARD"),
        ("STANDARD", "FP32_TO_DL16"),
        ("DL16_TO_FP32", "STANDARD"),
    ],
}


@examples(80)
@given(spec=restickify_specs(), seed=seeds, threads=thread_counts)
def test_restickify(spec: OperationSpec, seed: int, threads: int):
    compare(spec, Trial(any_bits, threads=threads, seed=seed))


def indices(rows: int) -> Fill:
    return lambda rng, count: rng.integers(0, rows, count)


@examples(60)
@given(gather=gathers(), seed=seeds)
def test_gather(gather: Gather, seed: int):
    op, rows, size = gather
    fills = [any_bits, indices(rows), any_bits]
    compare(op, Trial(fills, sizes={0: size}, seed=seed))


@examples(60)
@given(gather=gathers(scatter=True), seed=seeds)
def test_scatter(gather: Gather, seed: int):
    op, rows, size = gather
    fills = [any_bits, indices(rows), any_bits]
    compare(op, Trial(fills, sizes={2: size}, seed=seed))
