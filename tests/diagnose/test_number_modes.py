"""Two number modes side by side: units, places, equal operands, and verdicts that can say no."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

import spyre
from qa.conformance.cases import find_cases
from spyre.diagnose.number_modes import (
    DL16_SMALLEST,
    ExecuteDifference,
    NumericsComparison,
    NumericsReport,
    UlpSize,
    Verdict,
    compare_numerics,
    differences,
)
from spyre.dtypes import decode_dl16, decode_ieee_half, encode_dl16
from spyre.hw import plan_table as tb
from spyre.hw.device.device import Device
from spyre.hw.linking import LinkedProgram
from spyre.hw.numerics import Numerics, parse_numerics
from spyre.hw.ops import OPCODES
from spyre.hw.reference.execution import element_offsets, local_coordinates, slice_origin
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction
from spyre.mlir.operation.operation import Operation
from spyre.runtime.arguments import prepare_inputs
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.cases import Case, read_case
from spyre.runtime.compare import EXACT
from spyre.runtime.compare.executes import (
    element_coordinates,
    execute_views,
    operand_window,
    output_elements,
    writers,
)
from spyre.runtime.run.session import Session
from tests.examples import examples, sample
from tests.hw.division_strategies import shuffles
from tests.hw.harness import (
    Fill,
    allocations_of,
    any_numbers,
    engine,
    fill_window,
    link,
    literal_starts,
    normals,
    region,
    small_numbers,
    windows,
)
from tests.hw.plans.test_uneven import uneven_specs
from tests.hw.strategies import elementwise_specs, reduction_specs

ROOT = Path(__file__).resolve().parents[2]
DL16, CHUNK, IEEE = Numerics(), Numerics("dl16-chunk"), Numerics("ieee")
TRUNC = Numerics(alu_rounding="trunc")


# --- units ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "decode", "last"), [(DL16, decode_dl16, 0x7FFE), (IEEE, decode_ieee_half, 0x7BFF)]
)
def test_neighbouring_codes_are_one_unit_apart(mode: Numerics, decode: Any, last: int):
    codes = np.arange(last + 1).astype(np.uint16)
    low, high = decode(codes[:-1]), decode(codes[1:])
    units, _ = differences(low, high, UlpSize("SEN169_FP16", mode, mode))
    # at a power of two the unit is that of the larger number, twice the distance to the one below
    fraction = 0x1FF if mode == DL16 else 0x3FF
    first_power = fraction if mode == DL16 else fraction + 1  # binary16 has subnormals below it
    power = (codes[1:] & fraction == 0) & (codes[1:] > first_power)
    assert set(units[power]) == {0.5}
    assert set(units[~power]) == {1.0}
    negative, _ = differences(-low, -high, UlpSize("SEN169_FP16", mode, mode))
    assert negative.sum() == units.sum()


def test_the_coarser_format_counts():
    unit = UlpSize("SEN169_FP16", DL16, IEEE)
    numbers = np.array([1.0, 2.0**-14, 2.0**-24, 2.0**-30])
    assert unit.size(numbers).tolist() == [2.0**-9, 2.0**-23, 2.0**-24, 2.0**-24]
    assert UlpSize("SEN169_FP16", DL16, DL16).size(np.array([0.0]))[0] == DL16_SMALLEST
    assert UlpSize("IEEE_INT32", DL16, DL16).size(np.array([5.0]))[0] == 1.0
    assert UlpSize("IEEE_FP32", DL16, IEEE).size(np.array([1.0]))[0] == 2.0**-23


def test_specials():
    inf, nan = np.inf, np.nan
    a = np.array([inf, nan, inf, 70000.0, 1.0, -inf])
    b = np.array([inf, nan, nan, inf, inf, inf])
    units, beyond = differences(a, b, UlpSize("SEN169_FP16", DL16, IEEE))
    assert units.tolist() == [0, 0, 0, inf, inf, inf]
    assert beyond.tolist() == [False, False, False, True, False, False]
    units, beyond = differences(a, b, UlpSize("SEN169_FP16", DL16, CHUNK))
    assert units.tolist() == [0, 0, inf, inf, inf, inf]
    assert not beyond.any()


# --- places -----------------------------------------------------------------------------------


@examples(40)
@given(data=st.data())
def test_writers_and_places_follow_the_address_rule(data: st.DataObject):
    """Of a random element of a random output: its core, its coordinates, and its neighbours."""
    kind = data.draw(st.sampled_from(["add", "sum"]))
    spec = data.draw(
        elementwise_specs("add", 2, {}, fp32=False) if kind == "add" else reduction_specs("sum")
    )
    op = build_operation(spec)
    found = windows(op)
    linked = link(engine(), [op], allocations_of(found))
    (step,) = execute_views(linked)
    assert np.array_equal(step.starts, literal_starts(op))
    output = len(op.tensors) - 1
    local = local_coordinates(op)
    core = data.draw(st.integers(0, len(op.cores) - 1))
    at = element_offsets(op, op.outputs[0], local).reshape(-1) + step.starts[output, core]
    pick = data.draw(st.integers(0, at.size - 1))
    address = int(at[pick])
    owner = int(writers(step, output, np.array([address]))[0])
    assert owner >= 0
    assert owner <= core or step.starts[output, owner] != step.starts[output, core]
    coordinates = element_coordinates(step, output, address, core)
    held = [d for d in op.dims if op.outputs[0].holds(d)]
    origin = slice_origin(op, core)
    expected = {d: int(local[d].reshape(-1)[pick]) + origin[d] for d in held}
    assert coordinates == expected
    window = operand_window(step, output)
    inside = window.view(engine().memory).reshape(-1)
    places = np.flatnonzero(window.address(np.arange(inside.size)) == address)
    assert places.size == 1


def test_bytes_nobody_writes_have_no_writer():
    op = build_operation(
        pointwise("neg", (8, 128), [HostOperand(region(0))], HostOperand(region(1)))
    )
    (step,) = execute_views(link(engine(), [op], allocations_of(windows(op))))
    addresses = np.array([region(1) - 2, region(1), region(1) + 2047, region(1) + 2048])
    assert writers(step, 1, addresses).tolist() == [-1, 0, 0, -1]
    assert output_elements(op, step.plan.accesses[1]) == 1024


# --- one execute ------------------------------------------------------------------------------


Side = tuple[Device, LinkedProgram]


def sides(
    spec: OperationSpec | Operation, modes: tuple[str, str], fill: Fill = normals, repeat: int = 1
) -> tuple[Side, Side]:
    """One operation linked in two modes; operands filled on the first one's device only."""
    op = build_operation(spec) if isinstance(spec, OperationSpec) else spec
    found = windows(op)
    made = []
    for mode in modes:
        device = engine(mode)
        allocations = allocations_of(found)
        made.append((device, link(device, [op], allocations, repeat)))
    rng = np.random.default_rng(4)
    leads = 1 if modes[0] == "ieee" else 0
    for window in found:
        fill_window(window, fill, modes[leads], rng, [made[leads][0].memory])
        junk = np.full(window.high - window.low, 0x7E, np.uint8)
        made[1 - leads][0].memory.write(window.low, junk)
    return made[0], made[1]


def one(pair: tuple[Side, Side]) -> ExecuteDifference:
    (first, a), (second, b) = pair
    (found,) = NumericsComparison(first, second, (a, b)).run()
    return found


def at(k: int, *rest: Any) -> HostOperand:
    return HostOperand(region(k), *rest)


ADD = pointwise("add", (16, 256), [at(0), at(1)], at(2), {"mb": 4})
PRODUCT = matmul(32, 512, 128, at(0), at(1), at(2), (), {"in": 2})
SUM = reduction("sum", (512, 128), (0,), at(0), at(1), {"mb": 2})


@pytest.mark.parametrize("spec", [ADD, PRODUCT, SUM], ids=["add", "matmul", "sum"])
@pytest.mark.parametrize(
    "modes",
    [("dl16", "ieee"), ("ieee", "dl16"), ("dl16", "dl16:alu=trunc"), ("dl16-chunk", "ieee"),
     ("dl16", "dl16-chunk:alu=trunc"), ("dl16:alu=even", "dl16-chunk:alu=even")],
    ids=str,
)  # fmt: skip
def test_rounding_is_explained(spec: OperationSpec, modes: tuple[str, str]):
    found = one(sides(spec, modes))
    assert found.is_explained
    assert found.unexplained == found.beyond == 0
    stores = {parse_numerics(m).half_format for m in modes}
    rounded = spec is not ADD or len(stores) > 1
    assert (found.differing > 0) is rounded
    assert found.compared == {"add": 4096, "batchmatmul": 4096}.get(found.op, 128)
    if spec is ADD and found.worst is not None:
        assert found.worst.units <= found.worst.explained_units <= 2


def test_equal_modes_do_not_differ():
    found = one(sides(PRODUCT, ("dl16", "dl16:dma=trunc")))
    assert (found.differing, found.worst, found.units_sum) == (0, None, 0.0)


def tamper(side: Side, words: int | list[int], value: int) -> Side:
    device, linked = side
    tables = linked.tables.copy()
    tables[:, words] = value
    return device, replace(linked, code=replace(linked.code, tables=tables))


@pytest.mark.parametrize("modes", [("dl16", "ieee"), ("dl16", "dl16:alu=even"), ("ieee", "dl16")])
def test_another_operation_is_not_explained(modes: tuple[str, str]):
    first, second = sides(ADD, modes)
    found = one((first, tamper(second, tb.OPCODE, OPCODES["sub"])))
    assert not found.is_explained
    assert found.unexplained > 4000
    assert found.worst is not None
    assert found.worst.units > found.worst.explained_units


def test_a_lost_slice_of_k_is_not_explained():
    depth = [tb.REDUCED_COUNT, tb.MATMUL_REDUCED + 3 * (tb.MATMUL_AXES - 1)]
    first, second = sides(PRODUCT, ("dl16", "ieee"))
    assert not one((first, tamper(second, depth, 7))).is_explained
    first, second = sides(PRODUCT, ("dl16", "dl16-chunk"))
    assert not one((first, tamper(second, depth, 4))).is_explained


@pytest.mark.parametrize("modes", [("dl16", "ieee"), ("dl16", "dl16-chunk")])
def test_a_maximum_selects_and_is_not_excused_as_a_sum(modes: tuple[str, str]):
    largest = reduction("max", (512, 128), (0,), at(0), at(1))
    assert one(sides(largest, modes)).is_explained
    first, second = sides(largest, modes)
    assert not one((first, tamper(second, tb.OPERAND + tb.BASE, 128 * 400))).is_explained


def test_one_wrong_element_is_found_and_placed():
    """A value the rule allows nowhere: the other side reads another second operand."""
    first, second = sides(ADD, ("dl16", "ieee"))
    broken = tamper(second, tb.OPERAND + tb.OPERAND_WORDS + tb.BASE, 2)
    found = one((first, broken))
    assert not found.is_explained
    spot = found.worst
    assert spot is not None
    assert spot.address_bytes == region(2) + (
        spot.coordinates["out"] // 64 * 16 * 128
        + spot.coordinates["mb"] * 128
        + spot.coordinates["out"] % 64 * 2
    )
    assert spot.core == spot.coordinates["mb"] // 4


def test_numbers_beyond_binary16_are_told_apart():
    """Products of large numbers overflow binary16 only: the format explains it, and says so."""
    large: Fill = lambda rng, n: (rng.integers(300, 600, n)).astype(np.float32)  # noqa: E731
    product = pointwise("mul", (4, 64), [at(0), at(1)], at(2))
    found = one(sides(product, ("dl16", "ieee"), large))
    assert found.beyond > 0
    assert found.unexplained == 0
    assert found.is_explained
    assert not found.adjusted_operands


def test_operands_binary16_cannot_hold_are_equal_on_both_sides():
    """Tiny and huge operands: compared as binary16 has them, and the leader keeps its own."""
    tiny: Fill = lambda rng, n: (rng.integers(1, 1000, n) * 2.0**-33).astype(np.float32)  # noqa: E731
    for fill in (tiny, any_numbers):
        spec = pointwise("mul", (8, 64), [at(0), at(1)], at(2))
        pair = sides(spec, ("dl16", "ieee"), fill)
        rng = np.random.default_rng(0)
        second = windows(build_operation(spec))[1]
        factor: Fill = lambda rng, n: np.full(n, 1024.0, np.float32)  # noqa: E731
        fill_window(second, factor, "dl16", rng, [pair[0][0].memory])
        before = pair[0][0].memory.read(region(0), 1024)
        found = one(pair)
        assert found.adjusted_operands
        assert found.is_explained
        codes = [pair[0][0].memory.read(region(k), 1024).view(np.uint16) for k in (0, 2)]
        assert np.array_equal(codes[0], before.view(np.uint16))
        exact = decode_dl16(codes[0]) * np.float32(1024)
        assert np.array_equal(codes[1], encode_dl16(exact))


def test_in_place_executes_start_equal_every_time():
    """x += x repeatedly: a difference never reaches the next execution."""
    doubled = pointwise("add", (4, 64), [at(0), at(0)], at(0))
    found = one(sides(doubled, ("dl16", "ieee"), repeat=9))
    assert found.runs == 9
    assert found.compared == 9 * 256
    assert found.worst is None
    grown = pointwise("mul", (4, 64), [at(0), at(1)], at(0))
    found = one(sides(grown, ("dl16", "ieee"), lambda rng, n: rng.uniform(0.9, 1.1, n), repeat=9))
    assert found.worst is not None
    assert found.worst.units <= 1.0


def test_scratchpads_are_compared_core_by_core():
    from spyre.mlir.operation.operation import Component

    pads = [HostOperand(4096 + (k << 17), (), component=Component.LX) for k in range(3)]
    spec = pointwise("mul", (16, 256), pads[:2], pads[2], {"mb": 4})
    found = one(sides(spec, ("dl16", "ieee")))
    assert found.is_explained
    assert found.differing > 1000
    assert found.worst is not None
    assert found.worst.units <= 1.0


# --- whole programs ---------------------------------------------------------------------------


def report_of(
    source: str | Case, modes: Sequence[str], expected: Sequence[HostTensor] = ()
) -> NumericsReport:
    sessions = [Session(Device(parse_numerics(mode), 1)) for mode in modes]
    if isinstance(source, Case):
        run = sessions[0].describe(source)
    else:
        run = sessions[0].describe(ROOT / "examples" / source)
        run = run.with_inputs(prepare_inputs(run.inputs, None, 0))
    if expected:
        run = run.with_expected(expected, [EXACT])
    with sessions[0].placed(run) as first, sessions[1].placed(run) as second:
        first.fill()
        second.fill()
        return compare_numerics(first, second)


@pytest.mark.parametrize("example", ["softmax", "matmul", "add_loop"])
@pytest.mark.parametrize("modes", [("dl16", "ieee"), ("ieee", "dl16-chunk"), ("dl16", "dl16")])
def test_examples(example: str, modes: tuple[str, str]):
    report = report_of(example, modes)
    expected = Verdict.EQUAL if modes == ("dl16", "dl16") else Verdict.QUANTISATION
    assert report.verdict is expected
    assert report.exit_code == 0
    assert all(o.agrees is None for o in report.outputs)
    if expected is Verdict.QUANTISATION:
        (output,) = report.outputs
        assert output.differing > 0
        assert "core" in output.place


def test_outputs_are_those_of_whole_runs():
    """The leader's state goes through the steps untouched: the same as running each alone."""
    for modes in (("dl16", "ieee"), ("ieee", "dl16")):
        report = report_of("softmax", modes)
        (output,) = report.outputs
        assert output.worst_index is not None
        for mode, value in zip(modes, (output.first, output.second), strict=True):
            alone = spyre.run(ROOT / "examples" / "softmax", numerics=mode, threads=1).outputs[0]
            assert value == pytest.approx(alone[output.worst_index], rel=2**-9)


def test_values_both_modes_miss_are_not_quantisation():
    modes = ("dl16", "ieee")
    alone = [
        spyre.run(ROOT / "examples" / "matmul", numerics=mode, threads=1).outputs[0]
        for mode in modes
    ]
    for k, values in enumerate(alone):
        report = report_of("matmul", modes, [HostTensor.from_array("y", values)])
        assert (report.exit_code, report.outputs[0].agrees) == (0, (k == 0, k == 1))
    zeros = HostTensor.from_array("y", np.zeros_like(alone[0]))
    report = report_of("matmul", modes, [zeros])
    assert report.verdict is Verdict.NOT_QUANTISATION
    assert all(e.is_explained for e in report.executes)


@pytest.mark.shared
@pytest.mark.parametrize("modes", [("dl16", "ieee"), ("ieee", "dl16-chunk:alu=trunc")])
def test_real_programs_are_never_blamed(shared_dir: Path, modes: tuple[str, str]):
    """Every execute of a real program: rounding explains what the modes make of it.

    A quarter of the programs in one pair of modes, another in the other; in the long form all in
    both.
    """
    chosen = sample(find_cases(shared_dir / "bundles"), 4, modes[0] == "ieee")
    cases = [read_case(directory) for directory in chosen]
    differing = 0
    for case in cases:
        report = report_of(case, modes)
        assert report.exit_code == 0, (case.spec.name, report)
        differing += report.verdict is not Verdict.EQUAL
    assert differing > len(cases) // 2


@pytest.mark.parametrize("modes", [("dl16", "ieee"), ("ieee", "dl16")])
@examples(15)
@given(spec=st.one_of(uneven_specs(), shuffles()))
def test_executes_of_several_parts(modes: tuple[str, str], spec: OperationSpec | Operation):
    """Shares of different length, and shares in other cores' scratchpads: compared as one."""
    found = one(sides(spec, modes, small_numbers))
    assert found.runs == 1
    assert (found.differing, found.unexplained, found.beyond) == (0, 0, 0)
    assert found.compared > 0
