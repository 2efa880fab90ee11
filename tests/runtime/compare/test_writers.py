"""Writer of a stick: the vectorised answer against a walk over every dispatch, core and stick."""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path

import pytest
from msgspec.structs import replace

from spyre.hw.device.device import Device
from spyre.hw.linking import LinkedProgram
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.operation.operation import Component, Indirection
from spyre.runtime.compare.outputs import StickWriter, last_writer
from spyre.runtime.run.session import PlacedRun, Session

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def writers(linked: LinkedProgram) -> dict[int, StickWriter]:
    """Last writer of every stick in HBM, by address: one Python step per stick written."""
    found = {}
    pairs = zip(linked.schedule.order.tolist(), linked.schedule.instance.tolist(), strict=True)
    for static, instance in pairs:
        plan = linked.plans[static][0]
        access = plan.accesses[-1]
        if access.tensor.component is not Component.HBM:
            continue
        (run,) = (r for r in linked.runs[static] if instance in r.instances)
        row = run.instances.tolist().index(instance)
        starts = run.starts(len(plan.op.tensors) - 1)[row]
        tile = tuple(int(i) for i in linked.schedule.loop_indices[static][instance])
        for core, start in reversed(list(zip(plan.op.cores, starts, strict=True))):
            place = StickWriter(core, tile, static, plan.op.name)
            found.update((int(start) + offset, place) for offset in offsets(plan.op, access))
    return found


def offsets(op, access):
    walks = []
    for dim in access.tensor.dims:
        if access.tensor.holds(dim):
            steps = op.core_extent(dim)
            if dim == access.stick_dim:
                steps = -(-steps // access.lanes)
            walks.append([k * access.pitch_bytes[dim] for k in range(steps)])
    return map(sum, product(*walks))


def placed(bundle: Path) -> AbstractContextManager[PlacedRun]:
    session = Session(Device(threads=1))
    return session.placed(session.describe(bundle))


def check(directory: Path) -> int:
    with placed(directory) as placement:
        linked = placement.link(0)
        expected = writers(linked)
        for spec in placement.run.output_arguments:
            base = placement.tensors[spec.name].address_bytes
            for stick in range(spec.layout.num_sticks):
                address = base + stick * STICK_BYTES
                assert last_writer(linked, address) == expected.get(address, StickWriter(None))
    return len(expected)


@pytest.mark.parametrize("name", ["softmax", "matmul", "add_loop"])
def test_examples(name):
    assert check(EXAMPLES / name) > 100


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "bundles/ct_softmax_256x128",
        "bundles/cat_3d_d1",
        "bundles/slice_cols",
        "bundles/mm_67x100x70",
        "bundles/permute_4d_0213",
        "bundles/cores16_sum_d0",
        "bundles-wrong/j_ct_cols_abs_64x512",
    ],
)
def test_real_bundles(shared_dir, name):
    assert check(shared_dir / name) > 0


def test_a_place_nobody_writes():
    with placed(EXAMPLES / "add_loop") as placement:
        address = placement.tensors["arg_0"].address_bytes
        assert last_writer(placement.link(0), address) == StickWriter(None)


def test_scattering_leaves_it_open():
    """If an index decides, addresses alone do not determine the writer."""
    with placed(EXAMPLES / "add_loop") as placement:
        linked = placement.link(0)
        plan = linked.plans[0][0]
        output = replace(plan.op.outputs[0], indirection=Indirection.VALUE)
        scattering = replace(plan, op=replace(plan.op, outputs=(output,)))
        runs = (replace(linked.runs[0][0], plan=scattering),)
        statements = (replace(linked.code.statements[0], runs=runs),)
        linked = replace(linked, code=replace(linked.code, statements=statements))
        assert last_writer(linked, placement.tensors["arg_0"].address_bytes) is None
