"""Golden vectors: every operation of the op table on stored inputs, through the whole engine.

An SDSC is built, written to a file, read, planned and run; elements are placed in memory and read
back by the address rule of the twin. What comes out is compared with what double precision gave.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spyre.dtypes import find_stored_format
from spyre.hw.binding import Allocation
from spyre.hw.op_coverage import Status, count_line, coverage
from spyre.hw.ops import OPS
from spyre.hw.reference.addresses import element_offsets
from spyre.hw.spec_names import SPEC_NAMES
from spyre.mlir.operation import Operation
from spyre.mlir.sdsc import decode_sdsc, encode_sdsc
from spyre.mlir.sdsc_builder import build_operation, build_sdsc
from spyre.mlir.sdsc_reader import read_operation
from tests.hw.golden_cases import GOLDEN, PENDING, VECTORS
from tests.hw.golden_inputs import Array
from tests.hw.golden_shapes import Case
from tests.hw.harness import engine, link, order_key

ROOM_BYTES = 1 << 18
CASES = [(name, case) for name, row in GOLDEN.items() for case in row.cases]


# --- what there must be -----------------------------------------------------------------------


def stored_elsewhere() -> set[str]:
    """Operations with a padded and a split result in an archive of a whole family."""
    keys: set[str] = set()
    for path in VECTORS.parent.glob("*.npz"):
        with np.load(path) as archive:
            keys.update(archive)
    names = {key.partition("/")[0] for key in keys}
    return {name for name in names if {f"{name}/padded", f"{name}/split"} <= keys}


def test_every_operation_has_vectors():
    assert set(GOLDEN) <= set(OPS)
    assert sorted(set(OPS) - set(GOLDEN) - stored_elsewhere()) == []
    assert {path.stem for path in VECTORS.iterdir()} == set(GOLDEN)


def test_every_name_of_the_specification_is_implemented_or_refused():
    """PENDING is what other families still have to add; nothing else may be missing."""
    lines = coverage()
    assert {line.name for line in lines if line.status is Status.MISSING} == PENDING
    assert not PENDING & set(OPS)
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


def addresses(case: Case, operand: int) -> Array:
    """Byte address of every element of an operand's array, work slices left aside."""
    whole = build_operation(replace(case.spec, splits={}, core_order=()))
    tensor = whole.tensors[operand]
    held = case.held(operand)
    shape = tuple(case.size(operand, dim) for dim in held)
    grid = np.indices(shape, dtype=np.int64)
    local = {dim: np.zeros(shape, np.int64) for dim in whole.dims}
    local.update(zip(held, grid, strict=True))
    found = tensor.starts[0] + element_offsets(whole, tensor, local)
    lanes = case.lanes.get(operand, 0)
    return found[..., None] + np.arange(lanes) * tensor.word_length_bytes if lanes else found


def view(case: Case, operand: int, memory: Array, places: Array) -> Array:
    """Positions in ``memory`` (of the operand's code type) of the addresses ``places``."""
    base = case.operands[operand].base
    assert isinstance(base, int)
    return (places - base) // memory.itemsize


def run_case(case: Case, inputs: list[Array], directory: Path) -> Array:
    """Codes of the output."""
    op = written_and_read(case, directory)
    device = engine()
    allocations = []
    for k, operand in enumerate(case.operands):
        assert isinstance(operand.base, int)
        dtype = np.dtype(find_stored_format(operand.data_format).code_dtype)
        kind = np.dtype(f"u{dtype.itemsize}")
        memory = np.zeros(ROOM_BYTES // kind.itemsize, kind)
        if k < len(inputs):
            memory[:] = PADDING[operand.data_format] if case.padding else 0
            memory[view(case, k, memory, addresses(case, k))] = inputs[k]
        device.memory.write(operand.base, memory.view(np.uint8))
        tag = case.tags[k] if case.tags else "STANDARD"
        allocations.append(Allocation(f"operand {k}", operand.base, ROOM_BYTES, tag))
    device.executor.run(link(device, [op], allocations))
    last = len(case.operands) - 1
    base = case.operands[last].base
    assert isinstance(base, int)
    memory = device.memory.read(base, ROOM_BYTES).view(memory.dtype)
    return memory[view(case, last, memory, addresses(case, last))]


PADDING = {
    "SEN169_FP16": 0x4100,
    "IEEE_FP32": int(np.float32(3.0).view(np.uint32)),
    "SENUINT32": 0,
}
"""3 in every format: what a masked or unused element must not add."""


def distance(found: Array, expected: Array) -> Array:
    """Codes between two floats of one format; both zeros are 0."""
    if found.itemsize == 2:
        return np.abs(order_key(found) - order_key(expected))
    a, b = (v.astype(np.int64) for v in (found, expected))
    signed = [np.where(v >> 31, -(v & 0x7FFFFFFF), v) for v in (a, b)]
    return np.abs(signed[0] - signed[1])


@pytest.mark.parametrize(
    ("name", "case"), CASES, ids=[f"{name}-{case.name}" for name, case in CASES]
)
def test_golden(name: str, case: Case, tmp_path: Path):
    """Codes equal, or one apart where an operation takes several roundings; ±0 are equal."""
    with np.load(VECTORS / f"{name}.npz") as stored:
        count = len(case.operands) - 1
        inputs = [stored[f"{case.name}.in{k}"] for k in range(count)]
        expected = stored[f"{case.name}.out"]
        assert json.loads(str(stored[f"{case.name}.json"]))["operation"] == case.spec.name
    found = run_case(case, inputs, tmp_path)
    assert found.shape == expected.shape
    wrong = np.argwhere(distance(found, expected) > GOLDEN[name].ulps)
    shown = [(tuple(i), hex(found[tuple(i)]), hex(expected[tuple(i)])) for i in wrong[:6]]
    assert not len(wrong), f"{len(wrong)} of {found.size} wrong: {shown}"
