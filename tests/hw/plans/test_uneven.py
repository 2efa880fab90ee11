"""Shorter last work slices, runtime sizes, and tensors of each core's own in HBM."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.errors import DeviceFault, UnsupportedError
from spyre.hw.linking.binding import Allocation
from spyre.hw.reference import run_reference
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.builder.operations import OperationSpec, build_operation, build_sdsc
from spyre.mlir.builder.recipes import (
    HostOperand,
    default_dims,
    matmul,
    pointwise,
    reduction,
    restickify,
)
from spyre.mlir.operation.operation import (
    Component,
    Operation,
    SymbolicDim,
    Tensor,
    footprint,
    with_sizes,
)
from spyre.mlir.sdsc.reader import read_operation
from spyre.mlir.sdsc.writer import write_operation
from tests.examples import examples
from tests.hw.harness import (
    Trial,
    allocations_of,
    assert_equal,
    compare,
    engine,
    fill_window,
    link,
    literal_starts,
    map_tensors,
    reference_memory,
    region,
    small_numbers,
    windows,
)
from tests.hw.strategies import elementwise_specs, reduction_specs, seeds, thread_counts

# --- shorter last slices ----------------------------------------------------------------------


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Small float32 numbers, exact in DL16 and under sums of many."""
    return (np.random.default_rng(seed).integers(-8, 9, shape) / 4).astype(np.float32)


def put(address: int, values: np.ndarray) -> None:
    """A [rows, columns] tensor as fp32 in its default layout: sticks of 32 columns."""
    rows, columns = values.shape
    sticks = values.reshape(rows, columns // 32, 32).transpose(1, 0, 2)
    engine().memory.write(address, np.ascontiguousarray(sticks).view(np.uint8).reshape(-1))


def take(address: int, rows: int, columns: int) -> np.ndarray:
    data = engine().memory.read(address, rows * columns * 4).view(np.float32)
    return data.reshape(columns // 32, rows, 32).transpose(1, 0, 2).reshape(rows, columns)


FP32 = "IEEE_FP32"


@pytest.mark.parametrize(
    ("shape", "splits", "last"),
    [
        ((10, 64), {"mb": 4}, {"mb": 1}),
        ((23, 64), {"mb": 8}, {"mb": 2}),
        ((8, 32 * 5), {"out": 2}, {"out": 64}),
        ((7, 32 * 5), {"mb": 4, "out": 3}, {"mb": 1, "out": 32}),
        ((3, 64), {"mb": 2}, {"mb": 1}),
    ],
)
def test_add_with_a_shorter_last_slice(shape, splits, last):
    a, b = (HostOperand(region(k), (), FP32) for k in (0, 1))
    spec = pointwise("add", shape, [a, b], HostOperand(region(2), (), FP32), splits)
    spec = replace(spec, last_extents=last)
    op = read_operation(build_sdsc(spec), "f")
    assert op.last_extents == last
    x, y = numbers(*shape), numbers(*shape, seed=1)
    put(region(0), x)
    put(region(1), y)
    allocations = [Allocation(f"t{k}", region(k), prod(shape) * 4) for k in range(3)]
    linked = link(engine(), [op], allocations)
    engine().executor.run(linked)
    np.testing.assert_array_equal(take(region(2), *shape), x + y)
    assert len(linked.runs[0]) == 2 ** len(last)
    assert sorted(c for run in linked.runs[0] for c in run.plan.op.cores) == list(op.cores)


@pytest.mark.parametrize("lx", [False, True])
def test_masked_reduction_with_a_shorter_last_slice(lx: bool):
    """The masked dim is reduced whole, the rows are 3, 3, 3 and 1; through LX and back."""
    rows, columns = 10, 96
    component = Component.LX if lx else Component.HBM
    middle = HostOperand(4096 if lx else region(3), (), FP32, component)
    source, target = HostOperand(region(0), (), FP32), HostOperand(region(1), (), FP32)
    first = pointwise("neg", (rows, columns), [source], middle, {"mb": 4})
    second = reduction("sum", (rows, 70), (1,), middle, target, {"mb": 4})
    ops = [build_operation(replace(spec, last_extents={"mb": 1})) for spec in (first, second)]
    x = numbers(rows, columns)
    put(region(0), x)
    allocations = [Allocation(f"t{k}", region(k), rows * columns * 4) for k in range(4)]
    engine().executor.run(link(engine(), ops, allocations))
    found = engine().memory.read(region(1), rows * 128).view(np.float32).reshape(rows, 32)
    np.testing.assert_array_equal(found[:, 0], -x[:, :70].sum(axis=1))


def test_a_mask_in_a_split_dim():
    """Global coordinates: the interval lies in the last, shorter slice and the one before."""
    rows, columns = 2, 32 * 5
    spec = pointwise(
        "neg", (rows, columns), [HostOperand(region(0), (), FP32)],
        HostOperand(region(1), (), FP32),
        {"out": 3}, {"samv-maskvalue": 0x3F800000},
    )  # fmt: skip
    spec = replace(spec, last_extents={"out": 32}, masks={"out": [(100, 50)]}, constant_format=FP32)
    x = numbers(rows, columns)
    put(region(0), x)
    allocations = [Allocation(f"t{k}", region(k), rows * columns * 4) for k in range(2)]
    engine().executor.run(link(engine(), [build_operation(spec)], allocations))
    expected = -x
    expected[:, 100:150] = -1
    np.testing.assert_array_equal(take(region(1), rows, columns), expected)


def test_matmul_with_a_shorter_last_slice():
    places = [HostOperand(region(k)) for k in range(3)]
    even = matmul(10, 128, 192, *places)
    uneven = replace(
        even, splits={"mb": 4, "out": 2}, last_extents={"mb": 1, "out": 64}, core_order=()
    )
    results = []
    for spec in (even, uneven):
        op = build_operation(spec)
        rng = np.random.default_rng(7)
        for window in windows(build_operation(even)):
            codes = rng.integers(0x3C00, 0x3E00, (window.high - window.low) // 2)
            engine().memory.write(window.low, codes.astype(np.uint16).view(np.uint8))
        engine().executor.run(link(engine(), [op], allocations_of(windows(build_operation(even)))))
        window = windows(build_operation(even))[2]
        results.append(engine().memory.read(window.low, window.high - window.low).tobytes())
    assert results[0] == results[1]


@st.composite
def uneven_specs(draw: st.DrawFn) -> OperationSpec:
    """A subtraction some of whose split dims end in a shorter slice."""
    spec = draw(elementwise_specs("sub", 2))
    extents, last = dict(spec.extents), {}
    lanes = {d: n for t in (*spec.inputs, *spec.outputs) for d, n in t.stick}
    for dim, split in spec.splits.items():
        unit = lanes.get(dim, 1)
        steps = spec.extents[dim] // split // unit
        if split > 1 and steps > 1 and draw(st.booleans()):
            last[dim] = draw(st.integers(1, steps - 1)) * unit
            extents[dim] -= steps * unit - last[dim]
    return replace(spec, extents=extents, last_extents=last)


def of_one_core(op: Operation, position: int) -> Operation:
    """Return the part of one core as a separate operation on the same memory."""
    row = op.core_slices[position]
    last = {d: e for d, e in op.last_extents.items() if row[d] == op.slices[d] - 1}
    extents = {d: last.get(d, op.core_extent(d)) for d in op.dims}

    def alone(tensor: Tensor) -> Tensor:
        sizes = {} if tensor.is_local else dict(footprint(op, tensor).stored)
        start = (tensor.starts[position],)
        return replace(tensor, starts=start, device_dim_sizes=sizes)

    single = replace(
        op,
        extents=extents,
        slices=dict.fromkeys(op.dims, 1),
        cores=(op.cores[position],),
        core_slices=(dict.fromkeys(op.dims, 0),),
        last_extents={},
    )
    return map_tensors(single, alone)


@examples(60)
@given(spec=uneven_specs(), seed=seeds)
def test_shorter_slices_against_the_twin_core_by_core(spec: OperationSpec, seed: int):
    op, trial = build_operation(spec), Trial(seed=seed)
    device, reference = engine(), reference_memory()
    rng = np.random.default_rng(seed)
    found = windows(op)
    for window in found:
        fill_window(window, small_numbers, "dl16", rng, (device.memory, reference))
    device.executor.run(link(device, [op], allocations_of(found)))
    for position in range(len(op.cores)):
        single = of_one_core(op, position)
        run_reference(single, reference, literal_starts(single), device.numerics)
    for window in found:
        assert_equal(op, window, device.memory, reference, trial)


@examples(40)
@given(spec=elementwise_specs("add", 2), seed=seeds, data=st.data())
def test_runtime_sizes_keep_all_addresses(spec: OperationSpec, seed: int, data: st.DataObject):
    """An operation at a smaller size touches what the largest one would, and computes the same."""
    dim = data.draw(st.sampled_from(list(spec.extents)))
    times = data.draw(st.integers(1, 3))
    largest = {**spec.extents, dim: spec.extents[dim] * times}
    unsplit = replace(spec, extents=largest, splits={**spec.splits, dim: 1})
    whole = build_operation(unsplit)
    sized = replace(whole, symbolic_dims={dim: SymbolicDim(-1, largest[dim])})
    small = with_sizes(sized, {dim: spec.extents[dim]})
    assert small.extents == dict(spec.extents)
    for a, b in zip(whole.tensors, small.tensors, strict=True):
        assert footprint(whole, a).pitch_bytes == footprint(small, b).pitch_bytes
    compare(small, Trial(seed=seed))


REFUSED = {
    "reduced dim": (
        replace(
            reduction("sum", (10, 64), (0,), HostOperand(region(0)), HostOperand(region(1))),
            splits={"mb": 4},
            last_extents={"mb": 1},
        ),
        "cores that reduce mb together have different extents",
    ),
    "restickify": (
        replace(
            restickify((192, 64), HostOperand(region(0)), HostOperand(region(1))),
            splits={"mb": 2},
            last_extents={"mb": 64},
        ),
        "ReStickifyOpHBM drops elements beyond its tensors",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str):
    spec, message = REFUSED[name]
    op = build_operation(spec)
    with pytest.raises(UnsupportedError) as caught:
        link(engine(), [op], [Allocation("all", region(k), 1 << 20) for k in range(2)])
    assert caught.value.code == "SPY534"
    assert message in str(caught.value)


# --- tensors of each core's own in HBM --------------------------------------------------------


def scattered(op: Operation, rng: np.random.Generator) -> Operation:
    """``op`` with its LX tensors as small tensors anywhere in HBM, one per core."""
    places = iter(rng.permutation(7 * 40).tolist())

    def moved(tensor):
        if tensor.component is not Component.LX:
            return tensor
        starts = tuple(
            place % 7 * REGION_BYTES + (1 << 31) + place // 7 * (1 << 20)
            for place, _ in zip(places, op.cores, strict=False)
        )
        return replace(tensor, component=Component.HBM, per_core_in_hbm=True, starts=starts)

    return map_tensors(op, moved)


def private_windows(op: Operation) -> list[Allocation]:
    found = []
    for tensor in op.tensors:
        if tensor.per_core_in_hbm:
            span = footprint(op, tensor).span_bytes
            found += [
                Allocation(f"{tensor.name} of {c}", start, span)
                for c, start in zip(op.cores, tensor.starts, strict=True)
            ]
    return found


def split(shape=(8, 128), cores: int = 4) -> Operation:
    a, b = HostOperand(4096, component=Component.LX), HostOperand(region(1))
    dims = default_dims(len(shape))
    return build_operation(pointwise("neg", shape, [a], b, {dims[0]: cores}))


@examples(30)
@given(seed=seeds, cores=st.sampled_from([2, 4, 8]), threads=thread_counts)
def test_per_core_tensors(seed: int, cores: int, threads: int):
    """Starts in any region, in any order: one dispatch row per core, no region is mistaken."""
    op = scattered(split(cores=cores), np.random.default_rng(seed))
    device = engine("dl16", threads)
    source, target = op.inputs[0], op.outputs[0]
    share = 8 // cores * 128 * 2
    rng = np.random.default_rng(seed)
    data = [rng.integers(0x3000, 0x4000, share // 2).astype(np.uint16) for _ in op.cores]
    for start, codes in zip(source.starts, data, strict=True):
        device.memory.write(start, codes.view(np.uint8))
    allocations = [*private_windows(op), Allocation("out", region(1), 8 * 256)]
    device.executor.run(link(device, [op], allocations))
    rows = 8 // cores
    found = device.memory.read(region(1), 8 * 256).view(np.uint16).reshape(2, 8, 64)
    for core, codes in enumerate(data):
        expected = codes.reshape(2, rows, 64) ^ 0x8000
        np.testing.assert_array_equal(found[:, core * rows : (core + 1) * rows], expected)
    assert target.starts == tuple(region(1) + core * rows * 128 for core in range(cores))


def test_a_per_core_tensor_outside_its_memory():
    op = scattered(split(), np.random.default_rng(3))
    allocations = [*private_windows(op), Allocation("out", region(1), 8 * 256)]
    allocations[2] = replace(allocations[2], size_bytes=allocations[2].size_bytes - 128)
    with pytest.raises(DeviceFault) as caught:
        link(engine(), [op], allocations)
    assert caught.value.code == "SPY411"
    assert "core 2, tensor Tensor0" in str(caught.value)


def test_written_per_core_tensors_read_back():
    op = scattered(split(), np.random.default_rng(3))
    (tensor,) = read_operation(write_operation(op), "f").inputs
    assert tensor.per_core_in_hbm
    assert tensor.starts == op.inputs[0].starts


@examples(40)
@given(spec=elementwise_specs("sub", 2), seed=seeds, threads=thread_counts)
def test_random_operations_on_per_core_tensors(spec: OperationSpec, seed: int, threads: int):
    """Whatever may be in LX may be in tensors of the cores' own: engine against reference."""
    op = scattered(build_operation(spec), np.random.default_rng(seed))
    compare(op, Trial(seed=seed, threads=threads))


@examples(20)
@given(spec=reduction_specs("sum"), seed=seeds)
def test_random_reductions_of_per_core_tensors(spec: OperationSpec, seed: int):
    op = scattered(build_operation(spec), np.random.default_rng(seed))
    if not any(op.slices[d] > 1 and not op.outputs[0].holds(d) for d in op.dims):
        compare(op, Trial(seed=seed, ulps=1))
