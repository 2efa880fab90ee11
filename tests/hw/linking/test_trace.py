"""Owners and offsets of operands: those of the expression or segment, equal to linked addresses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spyre.hw.device.device import Device
from spyre.hw.linking.binding import AddressOwners
from spyre.hw.linking.linked_program import variants_of
from spyre.hw.linking.trace import UNKNOWN, common_owner, core_owners, trace
from spyre.mlir.bundle import load_bundle
from spyre.mlir.operation.operation import Component
from spyre.runtime.run.session import Session

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = [path.parent.name for path in sorted(EXAMPLES.glob("*/bundle.mlir"))]


@pytest.mark.parametrize("name", NAMES)
def test_offsets_are_those_of_linked_addresses(name: str):
    session = Session(Device(threads=1))
    bundle = load_bundle(EXAMPLES / name)
    with session.placed(session.describe(EXAMPLES / name)) as placement:
        linked = placement.link(0)
    binding = linked.binding
    values = {k: v for k, v in binding.parameters.items() if k not in binding.owners.parameters}
    compared = 0
    for traced in trace(bundle.program, bundle.operations, binding.owners, values):
        (variant,) = variants_of(linked, traced.execute.index)
        for walk in traced.walks:
            if walk.tensor.component is Component.LX:
                assert walk.owner is None
                continue
            begin = binding.allocations[walk.memory].address_bytes
            starts = variant.starts[:, walk.operand, : walk.offsets.shape[1]]
            np.testing.assert_array_equal(walk.offsets + begin, starts)
            compared += 1
    assert compared


def test_an_owner_of_all_cores_or_of_all_instances():
    owners = np.array([[0, 0, 1], [0, 0, 0]])
    assert common_owner(owners).tolist() == [UNKNOWN, 0]
    assert core_owners(owners, 3) == [0, 0, UNKNOWN]
    assert core_owners(owners[:, :1], 3) == [0, 0, 0]


def test_memory_without_an_owner_is_not_named():
    bundle = load_bundle(EXAMPLES / "add_loop")
    names = [parameter.name for parameter in bundle.program.parameters]
    owners = AddressOwners({names[0]: "x"})
    executes = trace(bundle.program, bundle.operations, owners, dict.fromkeys(names[1:], 0))
    named = {walk.owner for traced in executes for walk in traced.walks}
    assert named == {"x", None}
