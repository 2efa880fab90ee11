"""Every execute of real bundles: the engine's bytes against the twin's, one execute at a time.

Before each execute the twin's memory is made equal to the device's, so rounding differences of one
step do not travel into the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest

from spyre.dtypes import decode_dl16
from spyre.hw.binding import Binding
from spyre.hw.device import Device
from spyre.hw.linker import LinkedProgram
from spyre.hw.ops import Family
from spyre.hw.reference import run_reference
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.mlir.bundle import load_bundle
from spyre.mlir.footprint import footprint
from spyre.mlir.operation import Component, Operation
from spyre.mlir.program import Execute
from spyre.runtime.case_file import Case, read_case
from spyre.runtime.case_run import bind_launch, place_buffers
from spyre.runtime.kernel import Kernel
from tests.conformance.cases import find_cases
from tests.hw.harness import engine, order_key, twin_memory

MOST_POINTS = 1 << 17
"""Larger executes are left to the conformance run."""


def starts_of(op: Operation, execute: Execute, symbols: np.ndarray, binding: Binding) -> np.ndarray:
    """Address of every operand on every core, for one instance of an execute."""
    rows = []
    for tensor in op.tensors:
        if tensor.symbolic:
            found = np.array([symbols[execute.symbol_ids.index(s)] for s in tensor.starts])
        else:
            found = np.array(tensor.starts, np.int64)
        if tensor.component is Component.LX:
            rows.append(found + LX_BASE + np.array(op.cores) * LX_BYTES)
        else:
            rows.append(binding.relocate(found))
    return np.array(rows, np.int64)


def steps(linked: LinkedProgram) -> Iterator[tuple[int, int, int, int]]:
    """(first dispatch, end, static execute, instance) of every execute in program order."""
    key = linked.dispatch[:, 1:3]
    change = np.flatnonzero((np.diff(key, axis=0) != 0).any(axis=1)) + 1
    edges = [0, *change.tolist(), len(key)]
    for first, last in pairwise(edges):
        yield first, last, int(key[first, 0]), int(key[first, 1])


def ranges_of(op: Operation, starts: np.ndarray, binding: Binding) -> list[tuple[int, int]]:
    """(address, size) of what an execute may touch: whole allocations, and LX spans."""
    found = {(a.address_bytes, a.size_bytes) for a in binding.allocations if a.size_bytes}
    for k, tensor in enumerate(op.tensors):
        if tensor.component is Component.LX:
            span = footprint(op, tensor).span_bytes
            found |= {(int(s), span) for s in starts[k]}
    return sorted(found)


def tolerated(op: Operation, family: Family, found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal bytes, or sums and functions one unit in the last place apart.

    A sum that cancels is as exact as its terms: a tenth of the last place of a number of size 1.
    """
    if np.array_equal(found, expected):
        return True
    if family in (Family.COPY, Family.CONVERT, Family.RESTICKIFY):
        return False
    if op.outputs[0].data_format == "IEEE_FP32":
        return bool(np.allclose(found.view("f4"), expected.view("f4"), 1e-5, 1e-6, equal_nan=True))
    a, b = found.view(np.uint16), expected.view(np.uint16)
    close = np.abs(order_key(a) - order_key(b)) <= 1
    x, y = decode_dl16(a), decode_dl16(b)
    return bool((close | (np.abs(x - y) < 2e-4)).all())


def check_launch(case: Case, device: Device, linked: LinkedProgram, binding: Binding) -> int:
    """Run a linked program execute by execute; number of executes compared with the twin."""
    compared = 0
    twin = twin_memory()
    for first, last, static, instance in steps(linked):
        execute = linked.program.executes[static]
        plan = linked.plans[static][0]
        op = plan.op
        if prod(op.extents.values()) > MOST_POINTS:
            device.executor._drive(linked, first, last)
            continue
        symbols = linked.schedule.symbols[static][instance]
        starts = starts_of(op, execute, symbols, binding)
        ranges = ranges_of(op, starts, binding)
        for extent in ranges:
            twin.write(extent[0], device.memory.view(*extent))
        device.executor._drive(linked, first, last)
        run_reference(op, twin, starts, device.numerics, plan_tags(op, starts, binding))
        for extent in ranges:
            found, expected = device.memory.view(*extent), twin.view(*extent)
            same = tolerated(op, plan.spec.family, found, expected)
            assert same, f"{case.spec.name}: {op.file}, execute {static} instance {instance}"
        compared += 1
    return compared


def plan_tags(op: Operation, starts: np.ndarray, binding: Binding) -> tuple[str, ...]:
    tags = []
    for k, tensor in enumerate(op.tensors):
        at = int(starts[k, 0]) if tensor.component is Component.HBM else -1
        owners = [a for a in binding.allocations if a.address_bytes <= at < a.end_bytes]
        tags.append(owners[0].arrangement if owners else "STANDARD")
    return tuple(tags)


def check_case(case: Case) -> int:
    device = engine()
    device.reset()
    placed = place_buffers(case, device)
    compared = 0
    for launch in case.spec.launches:
        kernel = Kernel(load_bundle(case.directory / launch.bundle), device)
        bound = bind_launch(launch, placed)
        compared += check_launch(case, device, kernel.link(bound), kernel.bind(bound))
    return compared


@pytest.mark.shared
def test_each_execute_of_the_real_bundles_agrees_with_the_twin(shared_dir: Path):
    cases = find_cases(shared_dir / "bundles")
    compared = sum(check_case(read_case(directory)) for directory in cases)
    assert compared > 2 * len(cases)
