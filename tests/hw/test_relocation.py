"""Moved programs against programs linked anew, and programs that must not be moved."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from spyre.errors import DeviceFault, LaunchError
from spyre.hw.device.device import Device
from spyre.hw.linking.binding import (
    AddressOwners,
    Allocation,
    AllocationTable,
    Binding,
    alias_rows,
    alias_structure,
)
from spyre.hw.linking.linked_program import (
    LinkedProgram,
    is_movable,
    movable_rows,
)
from spyre.hw.linking.linker import Linker
from spyre.hw.linking.trace import FIXED, UNKNOWN, value_owner
from spyre.hw.spec import HBM_BYTES, REGION_BYTES
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.mlir.program.affine import Operator
from spyre.mlir.program.values import (
    IndexValue,
    InputAtom,
    add,
    divide,
    multiply,
    of_atom,
    scale,
)
from spyre.mlir.text.lowering import lower
from spyre.mlir.text.parser import parse_module
from spyre.runtime.kernel.kernel import Kernel
from tests.examples import examples
from tests.hw.harness import engine, map_tensors, region
from tests.mlir.sample_bundles import SAMPLES
from tests.runtime.bundles import abs_of_sum, add_in_place, scratch
from tests.runtime.launches import (
    TABLES,
    Rig,
    anew,
    assert_same,
    batched,
    is_relocatable,
    link_batch,
    outcome,
    relocated,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
seeds = st.integers(0, 2**32)


def _sample(name: str, directory: Path) -> Path:
    write_bundle(SAMPLES[name](), directory)
    return directory


BUNDLES: dict[str, Callable[[Path], Path]] = {
    **{name: lambda d, name=name: _sample(name, d) for name in SAMPLES},
    **{name: lambda d, name=name: EXAMPLES / name for name in ("add_loop", "matmul", "softmax")},
    "pool": abs_of_sum,
    "pool_baked": lambda d: abs_of_sum(d, symbolic=False),
    "scratch": scratch,
    "in_place": add_in_place,
}
VALUES = {"runtime_rows": ({"s0": 16}, {"s0": 48}, {"s0": 64})}


@cache
def device() -> Device:
    return Device(threads=1)


@cache
def kernel_of(name: str) -> Kernel:
    return Kernel(load_bundle(BUNDLES[name](Path(mkdtemp()))), device())


@cache
def rig_of(name: str, choice: int = 0) -> Rig:
    values = VALUES.get(name, (None,))
    return Rig.of(kernel_of(name).bundle, values[choice % len(values)], TABLES.get(name))


# --- moved = linked anew ----------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLES)
@settings(max_examples=8, deadline=None)
@given(seed=seeds)
def test_moved_is_linked_anew(name: str, seed: int):
    rng = np.random.default_rng(seed)
    kernel, rig = kernel_of(name), rig_of(name, seed)
    first = kernel.link(rig.anywhere(rng))
    assert is_relocatable(first)
    launch = rig.anywhere(rng)
    moved, linked = kernel.link(launch), anew(kernel, launch)
    assert moved.code is first.code
    assert_same(moved, linked)
    assert moved.counters == linked.counters
    device_of = kernel.device
    assert outcome(device_of, moved, launch, seed) == outcome(device_of, linked, launch, seed)


@pytest.mark.parametrize("name", BUNDLES)
@settings(max_examples=4, deadline=None)
@given(seed=seeds, count=st.integers(1, 5))
def test_a_batch_has_the_rows_of_its_launches(name: str, seed: int, count: int):
    rng = np.random.default_rng(seed)
    kernel, rig = kernel_of(name), rig_of(name, seed)
    launches = [rig.anywhere(rng) for _ in range(count)]
    batch = link_batch(kernel, launches)
    (group,) = batch
    assert len(group) == count
    rows = np.concatenate([anew(kernel, launch).host_dispatch for launch in launches])
    np.testing.assert_array_equal(group.rows, rows)
    assert group.bases is not None
    found = batched(group.linked, group.bases)
    assert found is not None
    np.testing.assert_array_equal(found, rows)
    for k, launch in enumerate(launches):
        np.testing.assert_array_equal(group.program(k).dispatch, anew(kernel, launch).dispatch)


def test_moving_moves_every_region():
    """All pairs of regions, so that every skew between regions is seen."""
    kernel, rig = kernel_of("symbolic_add"), rig_of("symbolic_add")
    for k in range(7):
        launch = rig.at([(k + j) % 7 * REGION_BYTES + j * 4096 for j in range(3)])
        assert_same(kernel.link(launch), anew(kernel, launch))


def test_a_moved_program_can_be_moved_again():
    kernel, rig = kernel_of("tiled"), rig_of("tiled")
    rng = np.random.default_rng(1)
    kernel.link(rig.anywhere(rng))
    moved = kernel.link(rig.anywhere(rng))
    bases = [a.address_bytes + 1280 for a in moved.binding.allocations]
    again = relocated(moved, bases)
    assert again is not None
    assert [a.address_bytes for a in again.binding.allocations] == bases
    shifted = again.dispatch[:, 4:] - moved.dispatch[:, 4:]
    assert set(np.unique(shifted)) <= {0, 1280}
    back = relocated(again, [a.address_bytes for a in moved.binding.allocations])
    assert back is not None
    assert_same(back, moved)


def test_names_are_those_of_the_launch():
    kernel, rig = kernel_of("symbolic_add"), rig_of("symbolic_add")
    rng = np.random.default_rng(2)
    kernel.link(rig.anywhere(rng))
    launch = rig.anywhere(rng)
    arguments = {k: replace(t, name=f"mine {k}") for k, t in launch.arguments.items()}
    moved = kernel.link(replace(launch, arguments=arguments))
    assert {a.name for a in moved.binding.allocations} == {f"mine {k}" for k in range(3)}
    assert kernel.link(replace(launch, arguments=arguments)) is moved


# --- overlapping arguments --------------------------------------------------------------------


@examples(60)
@given(seed=seeds, name=st.sampled_from(["symbolic_add", "tiled", "gather", "pool_baked"]))
def test_arguments_that_overlap_somehow(seed: int, name: str):
    """Places so close that arguments are equal, nest, overlap or touch, at two places each."""
    rng = np.random.default_rng(seed)
    kernel, rig = kernel_of(name), rig_of(name)
    sizes = [t.size_bytes for t in rig.tensors.values()]
    near = (rng.integers(0, 5, rig.count) * (max(sizes) // 2 // 128 * 128)).tolist()
    for _ in range(2):
        at = int(rng.integers(0, 7)) * REGION_BYTES + int(rng.integers(0, 1 << 20)) * 128
        launch = rig.at([at + shift for shift in near])
        moved, linked = kernel.link(launch), anew(kernel, launch)
        assert_same(moved, linked)
        assert outcome(device(), moved, launch, 1) == outcome(device(), linked, launch, 1)


def test_other_overlaps_are_linked_of_their_own():
    kernel, rig = kernel_of("symbolic_add"), rig_of("symbolic_add")
    apart = kernel.link(rig.at([region(0), region(1), region(2)]))
    in_place = kernel.link(rig.at([region(0), region(1), region(0)]))
    elsewhere = kernel.link(rig.at([region(3), region(1), region(3)]))
    assert in_place.code is elsewhere.code
    assert in_place.code is not apart.code


places = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=6)


@examples(300)
@given(launch=places, shift=st.integers(0, 5))
def test_alias_structures_of_one_and_of_many_launches(launch: list[tuple[int, int]], shift: int):
    addresses, sizes = ([128 * pair[k] for pair in launch] for k in (0, 1))
    own = [(k, 0) for k in range(len(launch))]
    rows = np.array([addresses, [a + 128 * shift for a in addresses]], np.int64)
    found = alias_rows(rows, np.array(sizes, np.int64))
    np.testing.assert_array_equal(found[0], found[1])
    structure = alias_structure(addresses, sizes)
    np.testing.assert_array_equal(found[0], own if structure is None else structure)
    assert (structure is None) == (not _overlaps(addresses, sizes))


def _overlaps(addresses: list[int], sizes: list[int]) -> bool:
    """Slow: some byte is below two ends and not below two starts (empty ranges inside count)."""
    spans = [(a, a + n) for a, n in zip(addresses, sizes, strict=True)]
    pairs = [(x, y) for i, x in enumerate(spans) for y in spans[:i]]
    return any(
        (x[0] < y[1] and y[0] < x[1]) and not (x[0] == x[1] == y[0]) and not (y[0] == y[1] == x[0])
        for x, y in pairs
    )


@examples(200)
@given(
    addresses=st.lists(st.integers(-(1 << 38), 1 << 38), min_size=1, max_size=4),
    edge=st.integers(0, 9), size=st.sampled_from([0, 1, 128, 4096]), aligned=st.booleans(),
)  # fmt: skip
def test_what_lies_in_a_region(addresses: list[int], edge: int, size: int, aligned: bool):
    addresses = [*addresses, edge * REGION_BYTES - size, HBM_BYTES - size]
    addresses = [a // 128 * 128 for a in addresses] if aligned else addresses
    sizes = np.full(1, size, np.int64)
    rows = np.array(addresses, np.int64)[:, None]
    expected = [is_movable([a], [size]) for a in addresses]
    assert movable_rows(rows, sizes).tolist() == expected
    for address, movable in zip(addresses, expected, strict=True):
        try:
            Allocation("a", address, size)
        except LaunchError:
            assert not movable
        else:
            assert movable == (address % 128 == 0)


# --- programs that are linked anew --------------------------------------------------------------


def test_addresses_within_a_stick_are_linked_anew():
    kernel, rig = kernel_of("symbolic_add"), rig_of("symbolic_add")
    kernel.link(rig.at([region(0), region(1), region(2)]))
    launch = rig.at([region(0) + 64, region(1), region(2)])
    first, again = kernel.link(launch), anew(kernel, launch)
    assert not is_relocatable(first)
    assert_same(first, again)
    with pytest.raises(DeviceFault, match="SPY413"):
        kernel.link(rig.at([region(0) + 63, region(1), region(2)]))


@pytest.mark.parametrize("address", [REGION_BYTES - 128, -128, HBM_BYTES])
def test_a_launch_across_regions_is_refused(address: int):
    kernel, rig = kernel_of("symbolic_add"), rig_of("symbolic_add")
    kernel.link(rig.at([region(0), region(1), region(2)]))
    with pytest.raises(LaunchError, match="SPY403"):
        kernel.link(rig.at([region(0), address, region(2)]))


MODULE = """
module {{
  func.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>,
                         %arg_1_base_addr: !sdscbundle.input_arg<index>) {{
    %a = {extract} %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
    %b = {extract} %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = arith.constant 3 : index
    {lines}
    scf.for %i = %c0 to %m step %c1 {{
      sdscbundle.sdsc_execute (%x, %y, %z) {{sdsc_filename="s.json", "symbol_ids"=[-1, -2, -3]}}
    }}
    return
  }}
}}
"""
SIZE = 8 * 256


def linked_lines(
    lines: str, starts: tuple[tuple[int, ...], tuple[int, ...]], per_core: bool = False,
    places: tuple[int, int] = (region(0), region(1)), size: int = 4 * SIZE,
) -> LinkedProgram:  # fmt: skip
    """neg on two cores; the operands' start symbols per core are ``starts``."""
    op = build_operation(pointwise("neg", (8, 128), [HostOperand(0)], HostOperand(0), {"mb": 2}))
    op = map_tensors(op, lambda t: replace(t, starts=starts[t.index], symbolic=True))
    if per_core:
        op = replace(op, inputs=(replace(op.inputs[0], per_core_in_hbm=True),))
    extract = "sdscbundle.input_arg_extract value from"
    program = lower(parse_module(MODULE.format(extract=extract, lines=lines), "m"))
    allocations = tuple(Allocation(f"t{k}", place, size) for k, place in enumerate(places))
    names = {f"arg_{k}_base_addr": k for k in range(2)}
    values = {name: places[k] for name, k in names.items()}
    linker = Linker(program, {"s.json": op}, engine().numerics, 1)
    return linker.link(Binding(values, None, allocations, (), AddressOwners(names)))


def lines(x: str, y: str, z: str, m: str = "affine.apply affine_map<()[s0] -> (s0)>()[%n]") -> str:
    return "\n".join(f"%{n} = {t}" for n, t in (("x", x), ("y", y), ("z", z), ("m", m)))


def shifted(base: str, text: str) -> str:
    return f"affine.apply affine_map<()[s0] -> ({text})>()[{base}]"


FIRST, SECOND = shifted("%a", "s0"), shifted("%a", "s0 + 512")
OUT = shifted("%b", "s0")


@pytest.mark.parametrize("per_core", [False, True])
@examples(20)
@given(seed=seeds)
def test_cores_that_follow_one_argument_move(per_core: bool, seed: int):
    rng = np.random.default_rng(seed)
    source = lines(FIRST, SECOND, OUT)
    starts = ((-1, -2), (-3, -3))
    first = linked_lines(source, starts, per_core)
    bases = (int(rng.integers(0, 7)) * REGION_BYTES + 1280, 7 * REGION_BYTES + 128 * (seed % 999))
    moved = relocated(first, bases)
    assert moved is not None
    assert_same(moved, linked_lines(source, starts, per_core, bases))


NOT_MOVED = {
    "a tensor per core in several arguments": (
        lines(FIRST, shifted("%b", "s0 + 512"), OUT), ((-1, -2), (-3, -3)), True
    ),
    "an argument that is reached from another": (
        lines(FIRST, SECOND, shifted("%a", "s0 + 17179869184")), ((-1, -2), (-3, -3)), False
    ),
    "a rounded address": (
        lines(shifted("%a", "s0 floordiv 4096 * 4096"), FIRST, OUT), ((-1, -1), (-3, -3)), False
    ),
    "a sum of addresses": (
        lines("arith.addi %a, %b : index", FIRST, OUT), ((-1, -1), (-3, -3)), False
    ),
    "an address that is no argument": (
        lines("arith.constant 17179869184 : index", FIRST, OUT), ((-1, -1), (-3, -3)), False
    ),
    "as many iterations as an address says": (
        lines(FIRST, SECOND, OUT, shifted("%b", "s0 mod 4096 + 2")), ((-1, -2), (-3, -3)), False
    ),
    "no iteration, as an address says": (
        lines(FIRST, SECOND, OUT, shifted("%b", "s0 mod 4096")), ((-1, -2), (-3, -3)), False
    ),
    "a symbol near the end of int64": (
        lines(FIRST, OUT, shifted("%a", "s0 + 9223372019674906624")), ((-1, -1), (-2, -2)), False
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_MOVED)
def test_programs_that_do_not_move_with_their_arguments(name: str):
    source, starts, per_core = NOT_MOVED[name]
    at = (0, REGION_BYTES)
    linked = linked_lines(source, starts, per_core, at)
    assert not is_relocatable(linked)
    assert relocated(linked, [a.address_bytes + 128 for a in linked.binding.allocations]) is None
    bases = np.array([[a.address_bytes + 128 for a in linked.binding.allocations]], np.int64)
    assert batched(linked, bases) is None


def test_what_fits_only_by_chance_is_found_elsewhere():
    """Argument 0 runs into argument 1 behind it: no fault there, as before, but a fault apart."""
    source, starts = lines(FIRST, SECOND, shifted("%a", "s0 + 8192")), ((-1, -2), (-3, -3))
    low = region(0)
    behind = linked_lines(source, starts, False, (low, low + 8192))
    assert not is_relocatable(behind)
    with pytest.raises(DeviceFault, match="SPY411"):
        linked_lines(source, starts, False, (low, region(1)))


def test_without_owners_nothing_moves():
    kernel, rig = kernel_of("symbolic_add"), rig_of("symbolic_add")
    linked = kernel.link(rig.at([region(0), region(1), region(2)]))
    binding = replace(linked.binding, owners=AddressOwners())
    bundle = kernel.bundle
    linker = Linker(bundle.program, bundle.operations, engine().numerics, 1)
    assert not is_relocatable(linker.link(binding))


def test_other_sizes_or_overlaps_are_not_relocated():
    kernel, rig = kernel_of("symbolic_add"), rig_of("symbolic_add")
    linked = kernel.link(rig.at([region(0), region(1), region(2)]))
    assert relocated(linked, [region(0), region(1), region(1)]) is None
    assert relocated(linked, [region(0), region(1), region(2) + 64]) is None
    assert relocated(linked, [region(0), region(1), REGION_BYTES - 128]) is None
    rows = np.array([[region(0), region(1), region(2)], [region(0)] * 3], np.int64)
    assert batched(linked, rows[:1]) is not None
    assert batched(linked, rows) is None


# --- expressions ------------------------------------------------------------------------------

A, B = of_atom(InputAtom("parameter", 0, "a")), of_atom(InputAtom("parameter", 1, "b"))
N, LOOP, S = (
    of_atom(InputAtom("parameter", 2, "n")),
    of_atom(InputAtom("loop", 0, "i")),
    of_atom(InputAtom("allocation", 0, "allocation0")),
)
OWNERS = AddressOwners({"a": 4, "b": 5}, {}, (6,))


@pytest.mark.parametrize(
    ("value", "owner"),
    [
        (IndexValue(7), FIXED),
        (add(N, scale(LOOP, 128)), FIXED),
        (A, 4),
        (add(add(A, IndexValue(128)), scale(LOOP, 128)), 4),
        (add(B, multiply(N, LOOP)), 5),
        (add(S, divide(Operator.MOD, LOOP, IndexValue(3))), 6),
        (scale(A, 2), UNKNOWN),
        (scale(A, -1), UNKNOWN),
        (add(A, B), UNKNOWN),
        (add(add(A, B), scale(B, -1)), 4),
        (add(A, scale(S, -1)), UNKNOWN),
        (divide(Operator.FLOORDIV, A, IndexValue(128)), UNKNOWN),
        (add(A, divide(Operator.MOD, A, IndexValue(128))), UNKNOWN),
        (add(A, multiply(LOOP, divide(Operator.MOD, B, IndexValue(128)))), UNKNOWN),
    ],
)
def test_what_an_address_moves_with(value: IndexValue, owner: int):
    assert value_owner(value, OWNERS) == owner


@pytest.mark.parametrize(
    ("holder", "base", "owner"), [(0, 4096, 0), (0, 4096 - 128, UNKNOWN), (0, 8192, UNKNOWN),
                                  (1, 8192, UNKNOWN), (2, 4224, 0), (-1, 4096, UNKNOWN)],
)  # fmt: skip
def test_an_operand_has_to_lie_and_begin_in_its_own_memory(holder: int, base: int, owner: int):
    """Allocation 2 is a view of allocation 0, behind which allocation 1 follows."""
    allocations = [Allocation("a", 4096, 4096), Allocation("b", 8192, 4096)]
    memory = AllocationTable([*allocations, Allocation("view", 4224, 128)])
    holders, bases = np.array([[[holder]]]), np.array([[base]])
    assert memory.confirmed(np.array([[0]]), holders, bases).tolist() == [[owner]]
