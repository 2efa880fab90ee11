"""Golden vectors: every operation of the op table on stored inputs, through the whole engine.

An SDSC is built, written to a file, read, planned and run; elements are placed in memory and read
back by the vectors' own rules. Results are compared with those of double precision.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spyre.hw.linking.binding import Allocation
from spyre.hw.ops.table import OPS, SPEC_NAMES
from spyre.mlir.builder.operations import build_sdsc
from spyre.mlir.operation.operation import Component, Operation
from spyre.mlir.sdsc.codec import decode_sdsc, encode_sdsc
from spyre.mlir.sdsc.reader import read_operation
from tests.hw.golden_case import Case
from tests.hw.golden_cases import GOLDEN, VECTORS
from tests.hw.golden_inputs import Array
from tests.hw.golden_places import fetch, store
from tests.hw.harness import engine, link, order_key
from tools.op_table import Status, count_line, coverage

ROOM_BYTES = 1 << 19
CASES = [(name, case) for name, row in GOLDEN.items() for case in row.cases]


# --- completeness -----------------------------------------------------------------------------


def test_every_operation_has_vectors():
    assert set(GOLDEN) == set(OPS)
    assert {path.stem for path in VECTORS.iterdir()} == set(GOLDEN)


def test_every_name_of_the_specification_is_implemented_or_refused():
    lines = coverage()
    assert [line.name for line in lines if line.status is Status.MISSING] == []
    assert len(lines) == len(SPEC_NAMES)
    assert count_line(lines).endswith("refused by name")


@pytest.mark.parametrize("name", GOLDEN)
def test_every_operation_has_two_shapes_a_padded_and_a_split_one(name: str):
    cases = GOLDEN[name].cases
    assert len({tuple(case.logical.values()) for case in cases}) >= 2
    assert any(case.is_padded for case in cases)
    assert any(case.cores > 1 for case in cases)
    assert len({case.name for case in cases}) == len(cases)


@pytest.mark.parametrize("name", GOLDEN)
def test_vectors_are_what_the_generator_makes(name: str):
    pytest.importorskip("torch")
    from tests.hw.make_golden import make_vectors

    made = make_vectors(name)
    with np.load(VECTORS / f"{name}.npz") as stored:
        assert sorted(stored) == sorted(made)
        for key in stored:
            np.testing.assert_array_equal(stored[key], made[key], err_msg=key)


# --- running ----------------------------------------------------------------------------------


def written_and_read(case: Case, directory: Path) -> Operation:
    file = directory / "sdsc_0.json"
    file.write_bytes(encode_sdsc(build_sdsc(case.spec)))
    return read_operation(decode_sdsc(file.read_bytes(), str(file)), str(file))


def blank(case: Case, operand: int) -> Array:
    """An operand's memory, on every core in LX, full of padding."""
    placing = case.placing(operand)
    value = PADDING[placing.tensor.data_format] if case.padding else 0
    width = max(placing.bits // 8, 1)
    return np.full(placing.room(ROOM_BYTES)[1] // width, value, f"u{width}").view(np.uint8)


def run_case(
    case: Case, inputs: list[Array], directory: Path, threads: int, mode: str = "dl16"
) -> Array:
    """Codes of the output."""
    op = written_and_read(case, directory)
    device = engine(mode, threads)
    numbers = range(len(case.operands))
    rooms = [case.placing(k).room(ROOM_BYTES) for k in numbers]
    for k, (low, _) in enumerate(rooms):
        device.memory.write(low, blank(case, k))
    for k, codes in enumerate(inputs):
        memory = device.memory.view(*rooms[k])
        store(memory, case.bit_addresses(k) - 8 * rooms[k][0], codes, case.placing(k).bits)
    device.executor.run(link(device, [op], allocations(case, rooms)))
    last = numbers[-1]
    places = case.bit_addresses(last) - 8 * rooms[last][0]
    return fetch(device.memory.view(*rooms[last]), places, case.placing(last).bits)


def allocations(case: Case, rooms: list[tuple[int, int]]) -> list[Allocation]:
    """The rooms of the operands in HBM."""
    tags = case.tags or ("STANDARD",) * len(rooms)
    return [
        Allocation(f"operand {k}", *rooms[k], tags[k])
        for k, operand in enumerate(case.operands)
        if operand.component is Component.HBM
    ]


PADDING = {
    "SEN169_FP16": 0x4100,
    "IEEE_FP32": int(np.float32(3.0).view(np.uint32)),
    "SENUINT32": 0,
    "IEEE_INT32": 3,
    "SEN143_FP8": 0x44,
    "SENINT8": 3,
    "SENINT4": 0x33,
}
"""Code of 3 in every format, which masked or unused elements must not add. 4 bits: two a byte."""


def distance(found: Array, expected: Array, data_format: str) -> Array:
    """Codes between two floats of one format, where both zeros are 0; 1 between unequal others."""
    if data_format == "SEN169_FP16":
        return np.abs(order_key(found) - order_key(expected))
    if data_format != "IEEE_FP32":
        return (found != expected).astype(np.int64)
    a, b = (v.astype(np.int64) for v in (found, expected))
    signed = [np.where(v >> 31, -(v & 0x7FFFFFFF), v) for v in (a, b)]
    return np.abs(signed[0] - signed[1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("name", "case"), CASES, ids=[f"{name}-{case.name}" for name, case in CASES]
)
def test_golden(name: str, case: Case, threads: int, tmp_path: Path):
    """Codes equal, or one apart where an operation takes several roundings; ±0 are equal."""
    with np.load(VECTORS / f"{name}.npz") as stored:
        count = len(case.operands) - 1
        inputs = [stored[f"{case.name}.in{k}"] for k in range(count)]
        expected = stored[f"{case.name}.out"]
        assert json.loads(str(stored[f"{case.name}.json"]))["operation"] == case.spec.name
    found = run_case(case, inputs, tmp_path, threads)
    assert found.shape == expected.shape
    wrong = np.argwhere(
        distance(found, expected, case.operands[-1].data_format) > GOLDEN[name].ulps
    )
    shown = [(tuple(i), hex(found[tuple(i)]), hex(expected[tuple(i)])) for i in wrong[:6]]
    assert not len(wrong), f"{len(wrong)} of {found.size} wrong: {shown}"
