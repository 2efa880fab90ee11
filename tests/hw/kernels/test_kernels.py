"""Every operation of the op table: engine against reference, bit for bit where arithmetic is exact.

Random shapes, work slices, layouts, broadcasts, gaps and memories; inputs of sums and products are
chosen so that float32 is exact, which makes every order of adding give the same bits.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.hw.ops.elementwise import HALF, Family, OpDefinition
from spyre.hw.ops.table import OPS
from spyre.mlir.builder.operations import OperationSpec
from tests.examples import examples
from tests.hw.harness import (
    Fill,
    Trial,
    any_numbers,
    compare,
    normals,
    powers,
    small_numbers,
    truths,
)
from tests.hw.strategies import (
    elementwise_specs,
    matmul_specs,
    modes,
    reduction_specs,
    seeds,
    thread_counts,
    topk_specs,
)

ROUNDED = frozenset(
    "exp log rsqrt tanh sigmoid gelu silu mish softplus layernormscale".split()  # noqa: SIM905
)
"""Operations of several float32 steps: up to one unit in the last place of the output format."""

CONSTANTS = {
    "eps": 0x1C9F,
    "clipMin": 0xBE00,
    "clipMax": 0x3F00,
    "softplusBeta": 0x3F00,
    "softplusThresh": 0x4680,
    "scaling_factor": 0x3800,
    "exx2scale": 0x3800,
    "mulConst": 0x3800,
}
"""DL16 codes: 1e-5, -1, 1.5, 1.5, 20, 1/8, 1/8, 1/8."""


def rows_of(family: Family) -> list[OpDefinition]:
    return [spec for spec in OPS.values() if spec.family is family]


def constants_of(spec: OpDefinition) -> dict[str, int]:
    return {name: CONSTANTS[name] for name in spec.constants}


def fill_of(spec: OpDefinition) -> Fill:
    if spec.kernel_op == "where":
        return truths
    if spec.kernel_op == "layernormscale":
        return small_numbers
    return normals if spec.kernel_op in ROUNDED else any_numbers


@pytest.mark.parametrize("spec", rows_of(Family.ELEMENTWISE), ids=lambda s: s.name)
@examples(12)
@given(data=st.data(), seed=seeds, mode=modes, threads=thread_counts)
def test_elementwise(spec: OpDefinition, data: st.DataObject, seed: int, mode: str, threads: int):
    operation = data.draw(
        elementwise_specs(
            spec.name,
            spec.inputs,
            constants_of(spec),
            fp32=False if spec.constants or spec.formats == HALF else None,
            sparse=spec.kernel_op == "layernormscale",
        )
    )
    ulps = 1 if spec.kernel_op in ROUNDED else None
    fill = fill_of(spec)
    fills = [fill, *([any_numbers] * 5)] if fill is truths else fill
    compare(operation, Trial(fills, mode, threads, ulps, seed=seed))


REDUCTION_FILLS: dict[str, Fill] = {
    "sum": small_numbers,
    "exx2": small_numbers,
    "prod": powers,
    "max": any_numbers,
    "min": any_numbers,
    "absmax": any_numbers,
}
MASK_BITS = {"max": 0xFFFE, "min": 0x7FFE, "prod": 0x3E00}


@pytest.mark.parametrize("spec", rows_of(Family.REDUCTION), ids=lambda s: s.name)
@examples(40)
@given(data=st.data(), seed=seeds, mode=modes, threads=thread_counts)
def test_reduction(spec: OpDefinition, data: st.DataObject, seed: int, mode: str, threads: int):
    operation = data.draw(
        reduction_specs(
            spec.name,
            constants_of(spec),
            over_stick=None if spec.nonstick else True,
            mask_bits=MASK_BITS.get(spec.kernel_op, 0),
            fp32=False if spec.formats == HALF else None,
        )
    )
    if spec.optional_constants and seed % 2:
        zero_mean = {"useZeroMean": seed // 2 % 2}
        operation = replace(operation, constants={**operation.constants, **zero_mean})
    compare(operation, Trial(REDUCTION_FILLS[spec.kernel_op], mode, threads, seed=seed))


@examples(60)
@given(spec=matmul_specs(), seed=seeds, mode=modes, threads=thread_counts)
def test_matmul(spec: OperationSpec, seed: int, mode: str, threads: int):
    compare(spec, Trial(small_numbers, mode, threads, seed=seed))


@pytest.mark.parametrize("name", ["topkvalue", "topkindex"])
@examples(30)
@given(data=st.data(), seed=seeds, mode=modes, threads=thread_counts)
def test_topk(name: str, data: st.DataObject, seed: int, mode: str, threads: int):
    spec = data.draw(topk_specs(name))
    fill = data.draw(st.sampled_from([any_numbers, small_numbers]))
    compare(spec, Trial(fill, mode, threads, seed=seed))
