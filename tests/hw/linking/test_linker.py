"""Linking: allowed memory, loops, relocation, plans kept between launches."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import BundleError, DeviceFault, LaunchError
from spyre.hw.linking.binding import Allocation, Binding
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.linking.linker import Linker
from spyre.hw.spec import LX_BASE, LX_BYTES, REGION_BYTES
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise, reduction
from spyre.mlir.operation.operation import Component, Operation
from spyre.mlir.text.lowering import lower
from spyre.mlir.text.parser import parse_module
from tests.hw.harness import (
    allocations_of,
    engine,
    link,
    make_program,
    map_tensors,
    region,
    windows,
)

ROWS, COLUMNS = 16, 128
BYTES = 2 * ROWS * COLUMNS


def add(*bases: int, lx: bool = False, cores: int = 4) -> Operation:
    component = Component.LX if lx else Component.HBM
    a, b, c = (HostOperand(base, component=component) for base in bases)
    return build_operation(pointwise("add", (ROWS, COLUMNS), [a, b], c, {"mb": cores}))


def three() -> list[Allocation]:
    return [Allocation(f"tensor {k}", region(k), BYTES) for k in range(3)]


def codes(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0x3000, 0x4000, BYTES // 2).astype(np.uint16)


def write(address: int, values: np.ndarray) -> None:
    engine().memory.write(address, values.view(np.uint8))


def read(address: int) -> np.ndarray:
    return engine().memory.read(address, BYTES).view(np.uint16)


# --- out of bounds ----------------------------------------------------------------------------

EXCERPT = """\
6 | sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}
  | ^^^^^^^^^^^^^^^^^^^^^^^
"""


@pytest.mark.parametrize("operand", [0, 1, 2])
@pytest.mark.parametrize("cut", [1, 128, BYTES])
def test_an_allocation_too_short(operand: int, cut: int):
    allocations = three()
    allocations[operand] = replace(allocations[operand], size_bytes=BYTES - cut)
    with pytest.raises(DeviceFault) as caught:
        link(engine(), [add(region(0), region(1), region(2))], allocations)
    low, high = region(operand), region(operand) + BYTES
    core, at, place = (3, high - 128, "mb 15, out 64") if cut < BYTES else (0, low, "mb 0, out 0")
    if cut < BYTES:
        near = f"tensor {operand} {low:#x}..{high - cut:#x}"
    else:
        near = ", ".join(
            f"tensor {k} {region(k):#x}..{region(k) + (BYTES if k != operand else 0):#x}"
            for k in range(3)
        )
    assert str(caught.value) == (
        f"error[SPY411]: add touches memory outside of its arguments\n --> test:6:1\n{EXCERPT}"
        f" ::: 0_add, execute 0, core {core}, tensor Tensor{operand}, address {at:#x}\n"
        f"  = expected: one of: {near}\n"
        f"  = found: bytes {low:#x}..{high:#x} ({BYTES} bytes) over all cores; "
        f"first outside at {place}"
    )


def test_first_bytes_of_allocations():
    """An operation over half of the first allocation, and one over the start of the second."""
    half, large = BYTES, [Allocation(f"tensor {k}", region(k), 2 * BYTES) for k in range(3)]
    op = add(region(0) + half, region(1), region(2))
    again = add(region(0) + half, region(1) + half, region(2) + half)
    linked = link(engine(), [op, again], large)
    assert linked.code.first_bytes() == {"tensor 0": half, "tensor 1": 0, "tensor 2": 0}


def test_no_memory_at_all():
    with pytest.raises(DeviceFault, match="no device memory at all"):
        link(engine(), [add(region(0), region(1), region(2))], [])


@pytest.mark.parametrize("shift", [-128, 128])
def test_a_start_that_crosses_the_allocation(shift: int):
    with pytest.raises(DeviceFault, match="SPY411"):
        link(engine(), [add(region(0) + shift, region(1), region(2))], three())


def test_one_core_of_many_outside():
    op = add(region(0), region(1), region(2))
    starts = (*op.outputs[0].starts[:3], region(5))
    broken = replace(op, outputs=(replace(op.outputs[0], starts=starts),))
    with pytest.raises(DeviceFault, match="SPY411"):
        link(engine(), [broken], three())


@pytest.mark.parametrize("address", [-128, 1 << 37, (1 << 62) + 128, -(1 << 62)])
def test_wild_addresses(address: int):
    op = add(region(0), region(1), region(2))
    wild = map_tensors(op, lambda t: replace(t, starts=(address,) * 4) if t.index == 1 else t)
    with pytest.raises(DeviceFault, match="SPY411"):
        link(engine(), [wild], three())


@pytest.mark.parametrize("address", [1, 64 + 1, 3])
def test_addresses_within_an_element(address: int):
    """A 16-bit element cannot start on an odd byte; anywhere else in a stick it can."""
    op = add(region(0) + address, region(1), region(2))
    with pytest.raises(DeviceFault, match="SPY413"):
        link(engine(), [op], [Allocation("all", k * REGION_BYTES, REGION_BYTES) for k in range(7)])


def test_neighbouring_allocations_are_not_one():
    """An operand may not run from one tensor into the next, though no byte is unowned."""
    halves = [Allocation(f"half {k}", region(0) + k * BYTES // 2, BYTES // 2) for k in range(2)]
    with pytest.raises(DeviceFault, match="SPY411"):
        link(engine(), [add(region(0), region(1), region(2))], [*halves, *three()[1:]])


@pytest.mark.parametrize("shift", [0, 128])
def test_a_small_allocation_inside_a_large_one_hides_nothing(shift: int):
    """Aliased arguments: a view of one stick must not shorten the tensor it is a view of."""
    views = [Allocation("view", region(k) + shift, 128) for k in range(3)]
    link(engine(), [add(region(0), region(1), region(2))], [*three(), *views])


@pytest.mark.parametrize("start", [LX_BYTES - 512, LX_BYTES, -128])
def test_leaving_the_scratchpad(start: int):
    op = add(0, 1 << 16, 1 << 17, lx=True)
    moved = replace(op, outputs=(replace(op.outputs[0], starts=(0, 0, start, 0)),))
    with pytest.raises(DeviceFault) as caught:
        link(engine(), [moved], [])
    size = BYTES // 4
    assert str(caught.value) == (
        f"error[SPY410]: add leaves the scratchpad of its core\n --> test:6:1\n{EXCERPT}"
        f" ::: 0_add, execute 0, core 2, tensor Tensor2, address {start:#x}\n"
        f"  = expected: bytes 0 to {LX_BYTES}\n"
        f"  = found: bytes {start} to {start + size}"
    )


def test_a_scratchpad_filled_to_the_last_byte():
    size = BYTES // 4
    op = add(0, size, LX_BYTES - size, lx=True)
    engine().executor.run(link(engine(), [op], []))


# --- loops and addresses ----------------------------------------------------------------------

TILED = """
#tile = affine_map<(d0)[s0] -> (s0 + {stride} * d0)>
module {{
  func.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>,
                         %arg_1_base_addr: !sdscbundle.input_arg<index>) {{
    %a = {extract} %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
    %b = {extract} %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = arith.constant {count} : index
    scf.for %i = %c0 to %n step %c1 {{
      %x = affine.apply #tile(%i)[%a]
      %y = affine.apply #tile(%i)[%b]
      sdscbundle.sdsc_execute (%x, %y) {attributes}
    }}
    return
  }}
}}
"""
EXTRACT = "sdscbundle.input_arg_extract value from"
ATTRIBUTES = '{sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2]}'


def tiled(count: int, stride: int, limit: int) -> LinkedProgram:
    """abs of ``count`` tiles of one row of ``COLUMNS``, ``stride`` bytes apart."""
    spec = pointwise("neg", (1, COLUMNS), [HostOperand(0)], HostOperand(0))
    op = build_operation(spec)
    symbolic = map_tensors(op, lambda t: replace(t, starts=(-1 - t.index,), symbolic=True))
    text = TILED.format(stride=stride, count=count, extract=EXTRACT, attributes=ATTRIBUTES)
    program = lower(parse_module(text, "tiles"))
    linker = Linker(program, {"sdsc_0.json": symbolic}, engine().numerics, 1)
    allocations = tuple(Allocation(f"t{k}", region(k), limit) for k in range(2))
    values = {f"arg_{k}_base_addr": region(k) for k in range(2)}
    return linker.link(Binding(values, None, allocations))


def test_a_loop_over_tiles():
    write(region(0), codes(1))
    write(region(1), np.zeros(BYTES // 2, np.uint16))
    linked = tiled(ROWS, 256, BYTES)
    assert len(linked.dispatch) == ROWS
    assert len(linked.tables) == 1
    engine().executor.run(linked)
    np.testing.assert_array_equal(read(region(1)), codes(1) | 0x8000)


def test_the_last_iteration_outside_is_named():
    with pytest.raises(DeviceFault) as caught:
        tiled(ROWS + 1, 256, BYTES)
    assert f"loop indices ({ROWS},), core 0, tensor Tensor0, address {region(0) + BYTES:#x}" in str(
        caught.value
    )


def test_a_literal_address_beside_parameters_belongs_to_no_argument():
    """It would read any argument that the launch put at address 0."""
    op = build_operation(pointwise("neg", (1, COLUMNS), [HostOperand(0)], HostOperand(0)))
    half = map_tensors(op, lambda t: replace(t, starts=(-2,), symbolic=True) if t.index else t)
    text = TILED.format(stride=256, count=1, extract=EXTRACT, attributes=ATTRIBUTES)
    linker = Linker(lower(parse_module(text, "tiles")), {"sdsc_0.json": half}, 0, 1)
    values = {f"arg_{k}_base_addr": 4096 * k for k in range(2)}
    allocations = tuple(Allocation(f"t{k}", 4096 * k, BYTES) for k in range(1))
    with pytest.raises(BundleError, match="literal address 0x0") as caught:
        linker.link(Binding(values, None, allocations))
    assert caught.value.code == "SPY298"


def test_a_loop_of_no_iterations():
    linked = tiled(0, 256, BYTES)
    assert len(linked.dispatch) == 0
    engine().executor.run(linked)


# --- baked addresses --------------------------------------------------------------------------


def baked(segments: dict[int, int], allocations: list[Allocation]) -> LinkedProgram:
    op = add(0, REGION_BYTES, 2 * REGION_BYTES)
    linker = Linker(make_program(1), {"sdsc_0.json": op}, engine().numerics, 1)
    return linker.link(Binding(segments=segments, allocations=tuple(allocations)))


def test_segments_lie_where_the_tensors_are():
    """Segment k of the file is argument k, whichever region the allocator gave it."""
    places = [region(4), region(2), region(0) + (1 << 20)]
    order = sorted(range(3), key=lambda k: places[k])
    linked = baked(dict(enumerate(places)), [Allocation(f"t{k}", places[k], BYTES) for k in order])
    write(places[0], codes(1))
    write(places[1], np.zeros(BYTES // 2, np.uint16))
    engine().executor.run(linked)
    np.testing.assert_array_equal(read(places[2]), codes(1))


def test_a_segment_without_argument_is_a_fault():
    """Segment 2 has no argument, though another tensor happens to lie at that very address."""
    stranger = Allocation("stranger", 2 * REGION_BYTES, BYTES)
    first = [Allocation("a", region(0), BYTES), Allocation("b", region(1), BYTES)]
    with pytest.raises(LaunchError, match=r"SPY363.*segment") as caught:
        baked({0: region(0), 1: region(1)}, [*first, stranger])
    assert "found: segment 2" in str(caught.value)


# --- plans ------------------------------------------------------------------------------------


def test_plans_do_not_depend_on_where_tensors_lie():
    op = add(0, REGION_BYTES, 2 * REGION_BYTES)
    linker = Linker(make_program(1), {"sdsc_0.json": op}, engine().numerics, 1)
    plans = []
    for shift in (0, 1 << 20, 5 << 20):
        places = [k * REGION_BYTES + shift for k in range(3)]
        allocations = tuple(Allocation(f"t{k}", p, BYTES) for k, p in enumerate(places))
        linked = linker.link(Binding(segments=dict(enumerate(places)), allocations=allocations))
        plans.append(linked.plans[0][0])
    assert plans[0] is plans[1] is plans[2]


def test_scratchpad_windows_are_those_of_the_cores():
    op = add(4096, 8192, 12288, lx=True)
    lows = sorted({w.low for w in windows(op)})
    assert lows[0] == LX_BASE + 4096
    assert lows[-1] == LX_BASE + 3 * LX_BYTES + 12288
    assert allocations_of(windows(op)) == []


def test_a_reduction_split_over_cores_shares_its_output():
    spec = reduction(
        "sum", (ROWS, COLUMNS), (0,), HostOperand(region(0)), HostOperand(region(1)), {"mb": 4}
    )
    op = build_operation(spec)
    assert len(set(op.outputs[0].starts)) == 1
    linked = link(engine(), [op], allocations_of(windows(op)))
    assert len(linked.tables) == 1
