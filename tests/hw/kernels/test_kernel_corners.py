"""Kernels where they are likely to break: odd core counts, overlaps, masks, irregular starts."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from spyre.dtypes import decode_device, encode_device
from spyre.errors import DeviceFault, SdscError, SpyreError, UnsupportedError
from spyre.hw.ops.table import OPS
from spyre.hw.plans.core_plan import plan_operation
from spyre.hw.spec import STICK_BYTES
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, identity, matmul, pointwise, reduction
from spyre.mlir.operation.operation import Component, Indirection, Operation
from tests.examples import examples
from tests.hw.harness import (
    Array,
    Fill,
    Trial,
    allocations_of,
    any_numbers,
    compare,
    engine,
    fill_window,
    link,
    map_tensors,
    move_lx,
    normals,
    output_bytes,
    region,
    small_numbers,
    windows,
)
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs, seeds

LX = Component.LX
NONE: Mapping[str, int] = MappingProxyType({})
ODD_COUNTS = (3, 5, 7, 11, 20, 25)


def at(
    k: int,
    absent: tuple[int, ...] = (),
    component: Component = Component.HBM,
    data_format: str = "SEN169_FP16",
) -> HostOperand:
    base = region(k) if component is Component.HBM else 4096 + (k << 17)
    return HostOperand(base, absent, data_format, component)


def positives(rng: np.random.Generator, count: int) -> Array:
    """Sums without cancellation."""
    return np.abs(normals(rng, count))


# --- any division of the work gives the same bytes --------------------------------------------


SPLIT_CASES: dict[str, tuple[OperationSpec, Fill]] = {
    "add": (pointwise("add", (32, 512), [at(0), at(1, (0,))], at(2)), any_numbers),
    "gelu": (pointwise("gelufwd", (32, 512), [at(0)], at(2)), normals),
    "column sum": (reduction("sum", (32, 512), (0,), at(0), at(2)), normals),
    "row sum": (reduction("sum", (32, 512), (1,), at(0), at(2)), normals),
    "row max": (reduction("max", (32, 500), (1,), at(0), at(2)), normals),
    "matmul": (matmul(32, 128, 512, at(0), at(1), at(2)), normals),
}


@pytest.mark.parametrize("name", SPLIT_CASES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_split_of_kept_dims_gives_the_same_bytes(name: str, threads: int):
    spec, fill = SPLIT_CASES[name]
    expected = output_bytes(build_operation(spec), Trial(fill, threads=1))
    out = build_operation(spec).outputs[0]
    for mb, columns in ((1, 1), (2, 1), (1, 2), (4, 8), (32, 1), (8, 4), (16, 2), (1, 8)):
        splits = {"mb": mb if out.holds("mb") else 1, "out": columns if out.holds("out") else 1}
        split = build_operation(replace(spec, splits=splits))
        assert output_bytes(split, Trial(fill, threads=threads)) == expected, splits


@pytest.mark.parametrize("name", ["row sum", "column sum", "matmul"])
@pytest.mark.parametrize("slices", [2, 4, 8])
def test_split_of_a_reduced_dim_rounds_once(name: str, slices: int):
    """Sums of positive numbers: the float32 order may differ, never more than the last place."""
    spec, _ = SPLIT_CASES[name]
    reduced = {"row sum": "out", "column sum": "mb", "matmul": "in"}[name]
    slices = min(slices, spec.extents[reduced] // 64) if reduced == "in" else slices
    compare(replace(spec, splits={reduced: slices}), Trial(positives, ulps=1))


@pytest.mark.parametrize("cores", ODD_COUNTS)
def test_odd_core_counts(cores: int):
    rows = 3 * cores
    for lx in (Component.HBM, LX):
        a, b, c = at(0, (), lx), at(1, (), lx), at(2, (), lx)
        compare(pointwise("mul", (rows, 192), [a, b], c, {"mb": cores}))
        compare(reduction("sum", (rows, 190), (1,), a, at(3), {"mb": cores}))
        compare(reduction("max", (rows, 192), (0,), a, at(3), {"mb": cores}), Trial(ulps=0))
    compare(matmul(rows, 128, 128, at(0), at(1), at(2), (), {"mb": cores}))
    compare(pointwise("exp", (64 * cores,), [at(0)], at(2), {"out": cores}), Trial(normals, ulps=1))


# --- irregular cores --------------------------------------------------------------------------


@examples(30)
@given(data=st.data(), seed=seeds)
def test_scattered_scratchpads(data: st.DataObject, seed: int):
    """Every core has its tensors elsewhere in its LX, in any order of core numbers."""
    kind = data.draw(st.sampled_from(["elementwise", "reduction", "matmul"]))
    if kind == "elementwise":
        spec = data.draw(elementwise_specs("sub", 2, fp32=False))
    elif kind == "reduction":
        spec = data.draw(reduction_specs("max", mask_bits=0xFFFE, fp32=False))
    else:
        spec = data.draw(matmul_specs())
    op = build_operation(spec)
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(32)[: len(op.cores)]
    op = move_lx(replace(op, cores=tuple(int(n) for n in numbers)), rng, 1 << 16)
    try:
        compare(op, Trial(seed=seed, ulps=0))
    except UnsupportedError as error:
        assert error.code == "SPY523"  # noqa: PT017
        assert kind != "elementwise"


def test_permuted_cores():
    """Work slices handed to cores in any order, LX and HBM mixed."""
    spec = pointwise("add", (24, 128), [at(0, (), LX), at(1)], at(2), {"mb": 12})
    op = build_operation(spec)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(12)
        moved = map_tensors(op, lambda t: replace(t, starts=tuple(t.starts[i] for i in order)))  # noqa: B023
        moved = replace(moved, core_slices=tuple(op.core_slices[i] for i in order))
        compare(moved)
        compare(replace(moved, cores=tuple(int(i) + 7 for i in order)))


def test_replicated_cores():
    """Several cores with the same work slice (SPY253, a warning) do the same work."""
    for component in (Component.HBM, LX):
        spec = pointwise("add", (8, 128), [at(0, (), component), at(1)], at(2, (), component))
        op = build_operation(replace(spec, splits={"mb": 4}))
        twice = map_tensors(op, lambda t: replace(t, starts=t.starts * 2))
        compare(replace(twice, core_slices=op.core_slices * 2, cores=tuple(range(8))))
    whole = build_operation(pointwise("neg", (8, 128), [at(0)], at(2)))
    three = map_tensors(whole, lambda t: replace(t, starts=t.starts * 3))
    compare(replace(three, core_slices=whole.core_slices * 3, cores=(0, 1, 2)))


# --- overlap ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data_format"),
    [
        *((n, "SEN169_FP16") for n in ("add", "relufwd", "where3", "exp", "realdiv")),
        *((n, "IEEE_FP32") for n in ("add", "relufwd", "where3", "abs", "layernormnorm")),
    ],
)
@pytest.mark.parametrize("component", [Component.HBM, LX])
@pytest.mark.parametrize("threads", [1, 2])
def test_in_place(name: str, data_format: str, component: Component, threads: int):
    inputs = OPS[name].inputs
    operands = [at(k, (), component, data_format) for k in range(inputs)]
    for target in range(inputs):
        spec = pointwise(name, (64, 256), operands, operands[target], {"mb": 8})
        op = build_operation(spec)
        compare_in_place(op, target, Trial(small_numbers, threads=threads, ulps=1))


def compare_in_place(op: Operation, target: int, trial: Trial) -> None:
    """Windows of input ``target`` and of the output are the same; both get the same bytes."""
    compare(
        op,
        replace(
            trial, fills=lambda rng, n: np.resize(small_numbers(np.random.default_rng(5), 4096), n)
        ),
    )


@pytest.mark.parametrize("name", ["add", "neg", "identity"])
@pytest.mark.parametrize("back_sticks", [1, 3, 40])
@pytest.mark.parametrize("data_format", ["SEN169_FP16", "IEEE_FP32"])
def test_output_behind_its_input(name: str, back_sticks: int, data_format: str):
    """The output starts some sticks before the input it overlaps, so each is read in time."""
    inputs = [at(0, data_format=data_format), at(1, data_format=data_format)][: OPS[name].inputs]
    out = HostOperand(region(0) - 128 * back_sticks, data_format=data_format)
    op = build_operation(pointwise(name, (48, 64), inputs, out))
    fills = lambda rng, n: np.resize(small_numbers(np.random.default_rng(5), 1 << 16), n)  # noqa: E731
    device = engine()
    before = windows(op)
    rng = np.random.default_rng(0)
    for window in before:
        fill_window(window, fills, "dl16", rng, [device.memory])
    code = np.uint16 if data_format == "SEN169_FP16" else np.float32
    operands = [device.memory.read(w.low, w.high - w.low).view(code) for w in before[:-1]]
    device.executor.run(link(device, [op], allocations_of(before)))
    a, *b = (decode_device(o, data_format) for o in operands)
    exact = a + b[0] if b else (-a if name == "neg" else a)
    found = device.memory.read(before[-1].low, operands[0].nbytes).view(code)
    np.testing.assert_array_equal(found, encode_device(exact, data_format))


# --- masks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 63, 64, 100, 190])
@pytest.mark.parametrize("dim", ["out", "mb"])
def test_masked_exp(dim: str, start: int):
    """August's exp: masked coordinates count as the mask value (0xFFFF: -inf, so 0)."""
    extent = {"out": 192, "mb": 24}[dim]
    first = min(start, extent - 1)
    spec = pointwise("exp", (24, 192), [at(0)], at(1), {"mb": 3, "out": 3})
    masked = replace(
        spec, masks={dim: [(first, extent - first)]}, constants={"samv-maskvalue": 0xFFFF}
    )
    compare(masked, Trial(normals, ulps=1))


def test_several_masks_are_refused():
    spec = pointwise("exp", (4, 64), [at(0)], at(1))
    masked = replace(spec, masks={"out": [(1, 2), (5, 2)]}, constants={"samv-maskvalue": 0})
    with pytest.raises(UnsupportedError, match="SPY524"):
        compare(masked)


# --- structure --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["add", "identity"])
def test_an_absent_stick_dim_is_lane_0_whether_1_or_2(name: str):
    """Scale -1 on the stick dim: extent 1, so lane 0, as with -2."""
    operands = [at(0), at(1, (1,))][-OPS[name].inputs :]
    spec = pointwise(name, (8, 128), operands, at(2))
    sparse = spec.inputs[-1]
    single = replace(sparse, scale=dict.fromkeys(sparse.scale, -1))
    compare(replace(spec, inputs=[*spec.inputs[:-1], single]))


@pytest.mark.parametrize(
    "spec",
    [
        pointwise("add", (8, 128), [at(0), at(1)], at(2, (0,))),
        pointwise("neg", (8, 128), [at(0)], at(2, (1,))),
        identity((8, 128), at(0), at(2, (0,))),
        replace(reduction("sum", (8, 128), (0,), at(0, (1,)), at(2)), name="sumnonstick"),
    ],
    ids=["rows", "stick", "identity", "sum"],
)
def test_dims_that_do_not_go_together_are_refused(spec: OperationSpec):
    with pytest.raises(SdscError, match="SPY287"):
        compare(spec)


def test_partial_sums_in_scratchpads_are_refused():
    """Cores that reduce together share an output address, which two scratchpads cannot."""
    rows = reduction("sum", (8, 128), (0,), at(0), at(1, (), LX), {"mb": 4})
    product = matmul(8, 128, 64, at(0), at(1), at(2, (), LX), (), {"in": 2})
    for spec in (rows, product):
        with pytest.raises(UnsupportedError, match="SPY523"):
            compare(spec)


def test_exx2_needs_a_stick_per_row():
    spec = reduction("exx2", (8, 128), (0,), at(0), at(1), None, {"exx2scale": 0x3E00})
    with pytest.raises(UnsupportedError, match="SPY520"):
        compare(spec)


def test_topk_of_another_stick_is_refused():
    wide = replace(at(1), data_format="IEEE_FP32")
    spec = pointwise("topkvalue", (8, 4, 64), [at(0, (1,))], replace(wide, absent_axes=(0,)))
    with pytest.raises(SdscError, match="SPY283"):
        compare(spec)


def test_indirect_access_is_for_identities():
    op, size = gather_of([0, 1])
    scaled = replace(op, name="neg")
    with pytest.raises(UnsupportedError, match="SPY532"):
        compare(scaled, Trial(sizes={0: size}))
    twice = replace(op, index_tensors=op.index_tensors * 2)
    with pytest.raises(UnsupportedError, match="SPY532"):
        link(engine(), [twice], allocations_of(windows(op, {0: size})))


# --- matmul -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 3, 13, 95, 97])
@pytest.mark.parametrize("columns", [64, 320, 576])
def test_matmul_blocks(rows: int, columns: int):
    """M and N around the kernel's row chunks and blocks of four sticks, K over two blocks."""
    spec = matmul(rows, 576, columns, at(0), at(1), at(2))
    compare(spec)
    one, two = (output_bytes(build_operation(spec), Trial(threads=count)) for count in (1, 2))
    assert one == two


@pytest.mark.parametrize("mode", ["dl16", "ieee"])
def test_matmul_in_scratchpads(mode: str):
    """Operands private to each core; B is repeated there, as a compiler would have to."""
    spec = matmul(26, 128, 128, at(0, (), LX), at(1, (), LX), at(2, (), LX), (2,), {"mb": 13})
    compare(spec, Trial(mode=mode))
    compare(
        matmul(26, 128, 128, at(0), at(1, (), LX), at(2), (), {"mb": 2, "out": 2}), Trial(mode=mode)
    )


def test_matmul_of_positive_numbers():
    compare(matmul(70, 1024, 192, at(0), at(1), at(2), (2,), {"mb": 7}), Trial(positives, ulps=1))


def test_matmul_broadcasts_b_over_the_batch():
    spec = matmul(9, 128, 128, at(0), at(1, (0,)), at(2), (6,), {"x": 3, "in": 2})
    compare(spec)


def test_fp32_matmul_is_refused():
    wide = [replace(at(k), data_format="IEEE_FP32") for k in range(3)]
    with pytest.raises(SpyreError, match="SPY5"):
        compare(matmul(4, 64, 64, *wide))


# --- index out of range -----------------------------------------------------------------------


def gather_of(
    index: list[int], splits: Mapping[str, int] = NONE, sizes: Mapping[str, int] = NONE
) -> tuple[Operation, int]:
    """Rows of a table of 5 by a 1-D index; (operation, bytes of the table)."""
    table = OperandSpec(
        ("out", "mb"), (("out", 64),), region(0), role="V", max_dim_sizes={"mb": 1},
        indirection=Indirection.VALUE, device_dim_sizes=sizes,
    )  # fmt: skip
    indices = OperandSpec(
        ("mb",), (("mb", 32),), region(1), data_format="SENUINT32", role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )  # fmt: skip
    out = OperandSpec(("mb", "out"), (("out", 64),), region(2), role="O")
    spec = OperationSpec(
        "identity", {"mb": len(index), "out": 128}, [table], [out], index_inputs=[indices],
        splits=splits,
    )  # fmt: skip
    return build_operation(spec), 5 * 256


def test_no_core_owns_rows_of_a_table():
    """Cores that divide more indices than the table has rows touch it one row at a time."""
    op, size = gather_of([0] * 16, splits={"mb": 8}, sizes={"out": 128, "mb": 5})
    table = op.inputs[0]
    starts = np.zeros((len(op.tensors), len(op.cores)), np.int64)
    plan = plan_operation(op, starts)
    assert plan.high_bytes[op.tensors.index(table)] == 2 * STICK_BYTES
    assert size == 5 * 256


@pytest.mark.parametrize("bad", [5, -1, 1 << 30, -(1 << 31)])
@pytest.mark.parametrize("threads", [1, 2])
def test_index_out_of_range(bad: int, threads: int):
    op, size = gather_of([0, 1, 2, 3, bad, 4])
    device = engine(threads=threads)
    found = windows(op, {0: size})
    for window in found:
        fill_window(
            window,
            lambda rng, n: np.zeros(n, np.int64),
            "dl16",
            np.random.default_rng(),
            [device.memory],
        )
    device.memory.write(region(1), np.array([0, 1, 2, 3, bad, 4], np.int32).view(np.uint8))
    linked = link(device, [op], allocations_of(found))
    with pytest.raises(DeviceFault) as caught:
        device.executor.run(linked)
    where = f"0_identity, execute 0, core 0, tensor Tensor0, address {region(1) + 16:#x}"
    assert str(caught.value) == (
        f"error[SPY412]: identity: index {bad} is out of bounds for dimension mb with size 5, "
        'at mb 4\n --> test:6:1\n6 | sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}\n'
        f"  | ^^^^^^^^^^^^^^^^^^^^^^^\n ::: {where}\n  = expected: 0 to 4\n  = found: {bad}"
    )
    device.memory.write(region(1) + 16, np.array([4], np.int32).view(np.uint8))
    device.executor.run(linked)


@pytest.mark.parametrize("name", ["max", "min", "sum"])
def test_a_core_slice_of_a_reduced_dim_is_no_further_axis(name: str):
    """Three reduced dims apart in memory, one of them split: their kinds of axes are three."""
    dims = ("x", "out", "mb", "y")
    absent = {"x": -1, "out": -2, "y": -1}
    spec = OperationSpec(
        name,
        {"mb": 3, "x": 6, "y": 7, "out": 256},
        [OperandSpec(dims, (("out", 64),), region(0))],
        [OperandSpec(dims, (("out", 64),), region(1), absent)],
        {"mb": 3, "x": 2},
    )
    compare(build_operation(spec), Trial(lambda rng, n: rng.integers(-8, 8, n).astype(np.float32)))
