"""Who wrote a stick: the vectorised answer against a walk over every dispatch, core and stick."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from spyre.hw.access import per_core
from spyre.hw.device.device import Device
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.bundle import load_bundle
from spyre.mlir.operation.operation import Component, Indirection
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.compare.outputs import StickWriter, WriterLookup
from spyre.runtime.kernel.kernel import Kernel
from spyre.runtime.kernel.launch import Launch
from spyre.runtime.run.session import placed

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def writers(lookup: WriterLookup) -> dict[int, StickWriter]:
    """Last writer of every stick in HBM, by address: one Python step per stick written."""
    linked, found = lookup.linked, {}
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
            steps = per_core(op, dim)
            if dim == access.stick_dim:
                steps = -(-steps // access.lanes)
            walks.append([k * access.pitch_bytes[dim] for k in range(steps)])
    return map(sum, product(*walks))


def check(directory: Path) -> int:
    bundle, device = load_bundle(directory), Device(threads=1)
    arguments = read_arguments(bundle)
    with placed(device, arguments, bundle.program) as placement:
        kernel = Kernel(bundle, device)
        launch = Launch(placement.tensors, placement.pool)
        lookup = WriterLookup(kernel.link(launch))
        expected = writers(lookup)
        for spec in arguments.outputs:
            base = placement.tensors[spec.arg_index].address_bytes
            for stick in range(spec.layout.num_sticks):
                address = base + stick * STICK_BYTES
                assert lookup.writer(address) == expected.get(address, StickWriter(None))
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
    bundle, device = load_bundle(EXAMPLES / "add_loop"), Device(threads=1)
    with placed(device, read_arguments(bundle), bundle.program) as placement:
        kernel = Kernel(bundle, device)
        launch = Launch(placement.tensors)
        lookup = WriterLookup(kernel.link(launch))
        assert lookup.writer(placement.tensors[0].address_bytes) == StickWriter(None)


def test_scattering_leaves_it_open():
    """Where an index decides, nobody can be named from addresses alone."""
    bundle, device = load_bundle(EXAMPLES / "add_loop"), Device(threads=1)
    with placed(device, read_arguments(bundle), bundle.program) as placement:
        kernel = Kernel(bundle, device)
        launch = Launch(placement.tensors)
        plan = kernel.link(launch).plans[0][0]
        output = replace(plan.op.outputs[0], indirection=Indirection.VALUE)
        scattering = replace(plan, op=replace(plan.op, outputs=(output,)))
        linked = kernel.link(launch)
        runs = ((replace(linked.runs[0][0], plan=scattering),),)
        linked = replace(linked, code=replace(linked.code, runs=runs))
        lookup = WriterLookup(linked)
        assert lookup.writer(placement.tensors[0].address_bytes) is None
