"""Runs made by hand as graphs of sticks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.base.compat import ir
from spyre.torch_backend.inductor.base.layouts import HostBuffer, with_lane_layout
from spyre.torch_backend.inductor.lowering.device_ir import Body, DeviceOperation, Load
from spyre.torch_backend.inductor.passes.restickify import (
    SPARSE,
    in_memory,
    lanes_of,
    stick_graph,
    wanted_lanes,
)
from spyre.torch_backend.inductor.passes.runs import (
    PROPAGATED_LANES,
    OperationRun,
    RunOperation,
    memory_lane,
)
from spyre.torch_backend.program.op_spec import OpKind

ADD = DeviceOperation(OpKind.POINTWISE, "add")


def step(name, body, own):
    host = ir.FixedLayout(
        torch.device("cpu"), torch.float16, list(body.ranges), list(contiguous_strides(body.ranges))
    )
    operation = SimpleNamespace(layout=with_lane_layout(host, own[0]), get_name=lambda: name)
    setattr(operation, PROPAGATED_LANES, own)
    return RunOperation(operation, body)


def host(*sizes):
    return HostBuffer(sizes, contiguous_strides(sizes), "float16")


def sum_with_transpose(a, b, results=()):
    """y = a + b.T, for ``a`` and ``b`` of these sizes."""
    loads = Load("a", contiguous_strides(a), 0), Load("b", (1, b[1]), 0)
    y = step("y", Body(ADD, loads, a, (), "float16"), (1, ()))
    return OperationRun((y,), frozenset(results), {"a": host(*a), "b": host(*b), "y": host(*a)})


def moved(run):
    sticks = stick_graph(run)
    lane = lanes_of(sticks)["y"]
    return lane, {k: bool(sticks.moves["y", k][1, lane]) for k in (0, 1)}


@pytest.mark.parametrize("optimizer", ["0", "1"])
def test_the_smaller_operand_of_a_sum_is_restickified(monkeypatch, optimizer):
    """a [96, 65] holds 96 x 128 elements, b [65, 96] holds 65 x 128; and the other way around."""
    monkeypatch.setenv("GLOBAL_STICK_OPTIMIZER", optimizer)
    assert moved(sum_with_transpose((96, 65), (65, 96)))[1] == {0: False, 1: True}
    assert moved(sum_with_transpose((65, 96), (96, 65))) == (0, {0: True, 1: False})


def test_single_elements_count_as_what_they_hold():
    run = sum_with_transpose((128, 128), (128, 128))
    sparse = step("y", run.steps[0].body, (SPARSE, ()))
    (node,) = stick_graph(replace(run, steps=(sparse,))).nodes
    assert node.lanes == (SPARSE, 0, 1)
    assert node.work == (128 * 128 * 63, 0, 0)


def test_a_tie_leaves_the_lane_it_has_by_itself():
    assert moved(sum_with_transpose((128, 128), (128, 128))) == (1, {0: False, 1: True})


def test_memory_outweighs_a_smaller_operand():
    """The result would have to be moved, too."""
    run = sum_with_transpose((65, 96), (96, 65), results=("y",))
    assert moved(run) == (1, {0: False, 1: True})
    assert in_memory("y") in {node.name for node in stick_graph(run).nodes}
    assert memory_lane(run, "y") == 1


def test_wanted_lanes():
    def wanted(kind, sizes, own, operands=()):
        body = Body(DeviceOperation(kind, "any"), (), sizes, (), "float16")
        return wanted_lanes(step("y", body, (own, operands)), 0, sizes, own)

    assert wanted(OpKind.POINTWISE, (4, 8), 1) == (1,)
    assert wanted(OpKind.POINTWISE, (4, 1), 1) == (SPARSE,)
    assert wanted(OpKind.MATMUL, (4, 8), 0) == (1,)
    assert wanted(OpKind.REDUCTION, (4, 8), SPARSE, operands=(0,)) == (0,)
    assert wanted(OpKind.REDUCTION, (4, 8), SPARSE) == (SPARSE, 0, 1)


def test_a_memory_lane_goes_by_strides():
    run = OperationRun((), frozenset("t"), {"t": HostBuffer((4, 8), (1, 4), "float16")})
    assert memory_lane(run, "t") == 0
