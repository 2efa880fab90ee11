"""Runtime sizes of launches, taken from the tensors."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from spyre.mlir.bundle import write_bundle
from spyre.runtime.arguments.specs import layout_for_largest
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.program.launch_spec import (
    LAUNCH_SPEC_FILE,
    ArgumentEntry,
    LaunchSpec,
    Role,
)
from tests.mlir.sample_bundles import runtime_rows
from tests.runtime.flex import kernels
from tests.runtime.launch_specs import write_launch_spec


@pytest.fixture
def card():
    device = FlexDevice(Device(threads=1))
    yield device
    device.close()


@pytest.fixture
def plan(card, tmp_path):
    """y = |a + b| of s0 rows, a multiple of 16 up to 64."""
    write_bundle(runtime_rows(), tmp_path)
    roles = [Role.INPUT, Role.INPUT, Role.OUTPUT]
    arguments = tuple(ArgumentEntry(k, r, ("s0", 128), "float16") for k, r in enumerate(roles))
    write_launch_spec(tmp_path / LAUNCH_SPEC_FILE, LaunchSpec(1, "k", arguments))
    return kernels.load(card, tmp_path)


def tensors(card, *rows):
    """Tensors of so many rows, with memory for the 64 that the kernel may be launched with."""
    layouts = [layout_for_largest((n, 128), (max(n, 64), 128), "float16") for n in rows]
    made = [
        card.to_device(np.full((n, 128), 2 * k - 3, np.float16), f"t{k}", layouts[k])
        for k, n in enumerate(rows[:-1])
    ]
    return [*made, card.empty((rows[-1], 128), layout=layouts[-1], name="y")]


@pytest.mark.parametrize("rows", [16, 48, 64])
def test_sizes_are_those_of_the_tensors(card, plan, rows):
    given = tensors(card, rows, rows, rows)
    with card.recording() as commands:
        card.default_stream.launch(plan, given)
    assert (card.to_host(given[2]).to_values() == 4).all()
    assert len(commands.control_blocks) == 2


def test_sizes_change_between_launches(card, plan):
    for rows in (64, 16, 48, 16):
        given = tensors(card, rows, rows, rows)
        card.default_stream.launch(plan, given)
        assert (card.to_host(given[2]).to_values() == 4).all()


@pytest.mark.parametrize(
    ("rows", "values", "code"),
    [
        ((16, 32, 16), {}, "SPY873"),
        ((16, 16, 16), {"s0": 32}, "SPY873"),
        ((24, 24, 24), {}, "SPY173"),
        ((80, 80, 80), {}, "SPY173"),
    ],
)
def test_sizes_that_do_not_go_together(card, plan, rows, values, code):
    given = tensors(card, *rows)
    with pytest.raises(SpyreError) as caught:
        card.default_stream.launch(plan, given, values=values)
    assert caught.value.code == code
    card.synchronize()
    assert not card.device.bytes_of(given[2].resolved).any()


def test_the_compute_step_takes_sizes_from_program_memory(card, plan):
    """Fewer rows in the correction than the host bound: the others stay as they were."""
    given = tensors(card, 64, 64, 64)
    host, copy, compute = plan.steps

    def shorter(context, first, last):
        row = context.buffers["correction"]
        row[row == 64] = 16
        copy.copy(context, first, last)

    changed = replace(plan, steps=(host, replace(copy, copy=shorter), compute))
    card.default_stream.launch(changed, given)
    found = card.to_host(given[2]).to_values()
    assert (found[:16] == 4).all()
    assert not found[16:].any()
