"""A kind of program that is not a bundle runs through the linker, the card and its observers.

Its tiles are visited in an order that no loop expresses: each instance of its statement states the
start address of every core, as a traced kernel does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import Finding, UnsupportedError
from spyre.hw.device.device import Device
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.operation.operation import Operation
from spyre.mlir.program.program import Execute, Parameter
from spyre.mlir.program.schedule import Schedule
from spyre.mlir.program.values import InputAtom, of_atom
from spyre.runtime.arguments.specs import ArgumentSpec, KernelArguments
from spyre.runtime.flex.device import FlexDevice
from spyre.runtime.flex.loaded_kernel import LoadedKernel
from spyre.runtime.kernel.kernel import Kernel, Launch, run_recorded
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.run.runs import describe_run
from tests.hw.harness import map_tensors

ROWS, COLUMNS, CORES = 16, 64, 2
TILE_BYTES = 2 * COLUMNS
NAMES = ("arg_0_base_addr", "arg_1_base_addr")


class Trace(msgspec.Struct, frozen=True):
    """One statement: per instance a tile on each of two cores, from both ends to the middle."""

    parameters: tuple[Parameter, ...] = tuple(Parameter(name, "input_arg") for name in NAMES)
    allocations: tuple[()] = ()
    control_values: tuple[()] = ()
    loop_paths: tuple[tuple[int, ...], ...] = ((),)

    @property
    def executes(self) -> tuple[Execute, ...]:
        owners = [of_atom(InputAtom("parameter", k, name)) for k, name in enumerate(NAMES)]
        symbols = tuple(owner for owner in owners for _ in range(CORES))
        return (Execute(0, "neg", tuple(range(-1, -5, -1)), symbols),)

    def schedule(
        self, parameter_values: Mapping[str, int], allocation_addresses: Sequence[int] = ()
    ) -> Schedule:
        steps = np.arange(ROWS // CORES)
        tiles = np.stack([steps, ROWS - 1 - steps], axis=1) * TILE_BYTES
        starts = np.hstack([parameter_values[name] + tiles for name in NAMES])
        order = np.zeros(len(steps), np.int32)
        return Schedule(order, steps, (starts,), (steps[:, None],))


class TracedProgram(msgspec.Struct, frozen=True):
    directory: Path = Path("traced")
    program: Trace = Trace()

    @property
    def operations(self) -> Mapping[str, Operation]:
        spec = pointwise("neg", (CORES, COLUMNS), [HostOperand(0)], HostOperand(0), {"mb": CORES})
        op = build_operation(spec)
        return {
            "neg": map_tensors(
                op,
                lambda t: replace(
                    t, starts=(-1 - CORES * t.index, -2 - CORES * t.index), symbolic=True
                ),
            )
        }

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        return ()


def arguments(values: Mapping[str, int]) -> KernelArguments:
    shape = (ROWS, COLUMNS)
    layout = SpyreTensorLayout.from_host(shape, "float16")
    strides = contiguous_strides(shape)
    return KernelArguments(
        tuple(
            ArgumentSpec(k, f"arg_{k}", role, shape, "float16", layout, strides)
            for k, role in enumerate((Role.INPUT, Role.OUTPUT))
        )
    )


@pytest.fixture
def card():
    card = FlexDevice(Device(sanitize=True))
    yield card
    card.close()


@pytest.fixture
def loaded(card: FlexDevice) -> LoadedKernel:
    binary = b"traced".ljust(128, b"\0")
    loaded = LoadedKernel(card, "traced", Kernel(TracedProgram(), card.device), arguments, binary)
    card.default_stream.launch(loaded.load_plan(binary))
    return loaded


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype(np.float16)


def test_it_runs_at_any_addresses_and_is_linked_once(card: FlexDevice, loaded: LoadedKernel):
    card.runner = run_recorded
    stream, codes = card.blocking, []
    tensors = [(card.to_device(values(k), "x"), card.empty((ROWS, COLUMNS))) for k in range(3)]
    for x, y in tensors:
        launch = Launch({0: x.resolved, 1: y.resolved})
        codes.append(stream.launch(loaded, launch).linked.code)
        np.testing.assert_array_equal(card.to_host(y).to_values(), -card.to_host(x).to_values())
    assert codes[0].movable
    assert all(code is codes[0] for code in codes)
    assert not card.device.sanitizer.take()


def test_it_is_corrected_recorded_and_counted(card: FlexDevice, loaded: LoadedKernel):
    x, y = card.to_device(values(0), "x"), card.empty((ROWS, COLUMNS), name="y")
    card.runner = run_recorded
    with card.counting() as counts, card.recording() as commands:
        card.default_stream.launch(loaded.plan, [x, y])
    assert [command.block.kind for command in commands] == ["host", "dma to device", "compute"]
    linked = commands.commands[-1].detail.linked
    assert [(s.name, s.source) for s in linked.view.statements] == [("neg", "neg")]
    assert len(linked.view.executions.statement) == ROWS // CORES
    assert counts.counters.hbm_read_bytes == ROWS * TILE_BYTES


def test_features_of_bundles_are_refused_by_name(card: FlexDevice, loaded: LoadedKernel):
    x, y = card.empty((2 * ROWS, COLUMNS), name="x"), card.empty((2 * ROWS, COLUMNS), name="y")
    with pytest.raises(UnsupportedError, match=r"SPY889.*tensors of other shapes.*\n.*\n.*Trace"):
        card.default_stream.launch(loaded.plan, [x, y])
    with pytest.raises(UnsupportedError, match="a check of addresses"):
        describe_run(TracedProgram())
