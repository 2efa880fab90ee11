"""The builder: addresses in the file it writes are the true addresses of the layouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from math import ceil, prod
from typing import Any

import pytest
from hypothesis import given, strategies as st

from spyre.errors import BundleError, ValidationError
from spyre.mlir.builder.operations import (
    BufferAddress,
    OperandSpec,
    OperationSpec,
    RuntimeSize,
    build_operation,
    build_sdsc,
)
from spyre.mlir.builder.recipes import (
    HostOperand,
    default_dims,
    default_layout,
    identity,
    matmul,
    pointwise,
    reduction,
    restickify,
)
from spyre.mlir.operation.operation import Component, Padding, Window, footprint
from spyre.mlir.sdsc.codec import decode_sdsc, encode_sdsc
from spyre.mlir.sdsc.inspection import inspect_sdsc
from spyre.mlir.sdsc.reader import read_operation, window_table
from tests.examples import examples
from tests.mlir.window_recipes import Windows, conv2d, pool

SEGMENT = 1 << 34


class File:
    """A written SDSC, read as plain JSON: a slow second reading of the address rule (§5.2)."""

    def __init__(self, spec: OperationSpec) -> None:
        (self.body,) = json.loads(encode_sdsc(build_sdsc(spec))).values()
        (self.dsc,) = self.body["dscs_"][0].values()

    def cores(self) -> list[str]:
        return list(self.body["coreIdToWkSlice_"])

    def extent(self, dim: str) -> int:
        return int(self.dsc["N_"][dim + "_"])

    def slices(self, dim: str) -> int:
        return int(self.body["numWkSlicesPerDim_"][dim])

    def first(self, core: str, dim: str) -> int:
        per_core = self.extent(dim) // self.slices(dim)
        return int(self.body["coreIdToWkSlice_"][core][dim]) * per_core

    def owns(self, core: str, point: dict[str, int]) -> bool:
        per_core = {dim: self.extent(dim) // self.slices(dim) for dim in point}
        return all(0 <= x - self.first(core, d) < per_core[d] for d, x in point.items())

    def address(self, tensor: int, core: str, point: dict[str, int]) -> int:
        node: dict[str, Any] = self.dsc["scheduleTree_"][tensor]
        label = self.dsc["labeledDs_"][tensor]
        role = self.dsc["primaryDsInfo_"][label["dsType_"]]
        scale = dict(zip(role["layoutDimOrder_"], label["scale_"], strict=True))
        (stick_dim,), (stick,) = role["stickDimOrder_"], role["stickSize_"]
        sizes = dict(zip(node["layoutDimOrder_"], node.get("deviceDimSizes_", ()), strict=False))
        start = int(node["startAddressCoreCorelet_"]["data_"][f"[{core}, 0, 0]"])
        pitch, lane = 128, 0
        for dim in node["layoutDimOrder_"]:
            size = stick if dim == stick_dim else 1
            local = point[dim] - self.first(core, dim) if scale[dim] == 1 else 0
            stored = self.stored(node, dim, scale[dim], size, sizes)
            start += pitch * (local // size)
            lane += local % size
            pitch *= ceil(stored / size)
        return start + lane * int(label["wordLength"])

    def stored(
        self, node: dict[str, Any], dim: str, scale: int, stick: int, sizes: dict[str, int]
    ) -> int:
        if scale != 1:
            return stick if scale == -2 else 1
        if dim in sizes:
            return sizes[dim]
        gap = int(node.get("backGapCore_", {}).get(dim, {"-1": 0})["-1"])
        extent = self.extent(dim)
        return (extent // self.slices(dim) if node["component_"] == "lx" else extent) + gap


def layout_address(shape: Sequence[int], index: Sequence[int], width: int) -> int:
    """Byte offset in the default layout: device dims D1 … Dr-2, stick count, D0, stick."""
    lanes = 128 // width
    if len(shape) == 1:
        return index[0] * width
    sizes = [*shape[1:-1], ceil(shape[-1] / lanes), shape[0], lanes]
    place = [*index[1:-1], index[-1] // lanes, index[0], index[-1] % lanes]
    offset = 0
    for size, coordinate in zip(sizes, place, strict=True):
        offset = offset * size + coordinate
    return offset * width


@st.composite
def shapes_and_splits(draw: st.DrawFn, lanes: int = 64) -> tuple[tuple[int, ...], dict[str, int]]:
    shape = (
        *draw(st.lists(st.integers(1, 12), max_size=3)),
        draw(st.sampled_from([1, 33, 64, 100, 150, 256])),
    )
    dims = default_dims(len(shape))
    sticks = ceil(shape[-1] / lanes)
    splits, cores = {}, 1
    for dim, size in zip(dims, (*shape[:-1], sticks), strict=True):
        allowed = [n for n in range(1, size + 1) if size % n == 0 and cores * n <= 32]
        splits[dim] = draw(st.sampled_from(allowed))
        cores *= splits[dim]
    return shape, splits


def sample_points(shape: Sequence[int], draw: st.DataObject, count: int = 8) -> list[list[int]]:
    ranges = st.tuples(*(st.integers(0, size - 1) for size in shape))
    return [list(point) for point in draw.draw(st.lists(ranges, min_size=1, max_size=count))]


@examples(120)
@given(wide=st.booleans(), data=st.data())
def test_addresses_are_those_of_the_layout(wide: bool, data: st.DataObject) -> None:
    shape, splits = data.draw(shapes_and_splits(32 if wide else 64))
    data_format, width = ("IEEE_FP32", 4) if wide else ("SEN169_FP16", 2)
    file = File(
        pointwise(
            "add",
            shape,
            [HostOperand(0, (), data_format), HostOperand(SEGMENT, (), data_format)],
            HostOperand(2 * SEGMENT, (), data_format),
            splits,
        )
    )
    dims = default_dims(len(shape))
    for index in sample_points(shape, data):
        point = dict(zip(dims, index, strict=True))
        owners = [core for core in file.cores() if file.owns(core, point)]
        assert len(owners) == 1
        for tensor in range(3):
            expected = tensor * SEGMENT + layout_address(shape, index, width)
            assert file.address(tensor, owners[0], point) == expected


@examples(80)
@given(case=shapes_and_splits(), data=st.data())
def test_broadcast_operands(
    case: tuple[tuple[int, ...], dict[str, int]], data: st.DataObject
) -> None:
    """A lacking axis has size 1; a lacking last axis leaves one stick per element."""
    shape, splits = case
    absent = data.draw(st.sets(st.sampled_from(range(len(shape)))))
    spec = pointwise(
        "mul",
        shape,
        [HostOperand(0), HostOperand(SEGMENT, tuple(absent))],
        HostOperand(2 * SEGMENT),
        splits,
    )
    file, dims = File(spec), default_dims(len(shape))
    kept = [axis for axis in range(len(shape)) if axis not in absent or axis == len(shape) - 1]
    small = [64 if axis in absent else shape[axis] for axis in kept]
    for index in sample_points(shape, data):
        point = dict(zip(dims, index, strict=True))
        (owner,) = (core for core in file.cores() if file.owns(core, point))
        lane0 = [0 if axis in absent else index[axis] for axis in kept]
        assert file.address(1, owner, point) == SEGMENT + layout_address(small, lane0, 2)


@examples(60)
@given(rows=st.integers(1, 150), columns=st.integers(1, 150), data=st.data())
def test_restickify_addresses(rows: int, columns: int, data: st.DataObject) -> None:
    """Source [rows, columns] and its transposed target, both with their true device extents."""
    file = File(restickify((rows, columns), HostOperand(0), HostOperand(SEGMENT)))
    for row, column in sample_points((rows, columns), data):
        point = {"mb": row, "out": column}
        assert file.address(0, "0", point) == layout_address((rows, columns), (row, column), 2)
        swapped = layout_address((columns, rows), (column, row), 2)
        assert file.address(1, "0", point) == SEGMENT + swapped


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
def test_reduction_output(axes: tuple[int, ...]) -> None:
    shape = (6, 4, 100)
    spec = reduction("sum", shape, axes, HostOperand(0), HostOperand(SEGMENT), {"mb": 3, "x": 2})
    file = File(spec)
    assert spec.name == ("sum" if 2 in axes else "sumnonstick")
    kept = [1 if axis in axes else size for axis, size in enumerate(shape)]
    dims = default_dims(3)
    for index in product(range(6), range(4), (0, 63, 64, 99)):
        point = dict(zip(dims, index, strict=True))
        (owner,) = (core for core in file.cores() if file.owns(core, point))
        result = [0 if axis in axes else x for axis, x in enumerate(index)]
        assert file.address(1, owner, point) == SEGMENT + layout_address(kept, result, 2)


def test_masks_and_constants_of_reductions() -> None:
    spec = reduction("max", (4, 100), (1,), HostOperand(0), HostOperand(SEGMENT))
    assert spec.masks == {"out": [(100, 28)]}
    assert spec.constants == {"samv-maskvalue": 0xFFFE}
    assert reduction("max", (4, 128), (1,), HostOperand(0), HostOperand(SEGMENT)).masks == {}
    assert reduction("sum", (4, 100), (0,), HostOperand(0), HostOperand(SEGMENT)).masks == {}


def starts(spec: OperationSpec) -> list[tuple[int, ...]]:
    return [tensor.starts for tensor in build_operation(spec).tensors]


def test_worked_example_rows() -> None:
    """SDSC reference §5.3 a: element (400, 70) of tensor 1."""
    operands = [HostOperand(0), HostOperand(SEGMENT)]
    file = File(pointwise("add", (512, 256), operands, HostOperand(2 * SEGMENT), {"mb": 4}))
    assert file.address(1, "3", {"mb": 400, "out": 70}) == 17179985932


def test_worked_example_slice() -> None:
    """§5.3 b: rows 3 to 102 of a [512, 256] tensor on two cores."""
    source = HostOperand(3 * 128, gap={"mb": 412})
    spec = identity((100, 256), source, HostOperand(SEGMENT), {"mb": 2})
    assert starts(spec)[0] == (384, 6784)


def test_worked_example_matmul() -> None:
    """§5.3 e: 128 x 256 x 192 on 4 x 2 cores."""
    spec = matmul(
        128, 192, 256, HostOperand(0), HostOperand(0), HostOperand(0), splits={"mb": 4, "out": 2}
    )
    assert [s[4] for s in starts(spec)] == [0, 49152, 32768]


def test_split_inner_dim_varies_fastest() -> None:
    spec = matmul(
        64, 128, 64, HostOperand(0), HostOperand(0), HostOperand(0), splits={"mb": 2, "in": 2}
    )
    operation = build_operation(spec)
    assert [row["in"] for row in operation.core_slices] == [0, 1, 0, 1]
    assert [row["mb"] for row in operation.core_slices] == [0, 0, 1, 1]


def test_worked_example_rank_three() -> None:
    """§5.3 f: [2, 8, 100] with x in two slices."""
    spec = identity((2, 8, 100), HostOperand(0), HostOperand(SEGMENT), {"x": 2})
    assert starts(spec)[0] == (0, 2048)


def test_lx_tensors_start_alike_on_all_cores() -> None:
    spec = identity((32, 64), HostOperand(256, component=Component.LX), HostOperand(0), {"mb": 8})
    assert starts(spec)[0] == (256,) * 8


def test_roles() -> None:
    widen = pointwise(
        "dl16tofp32", (4, 128), [HostOperand(0)], HostOperand(SEGMENT, (), "IEEE_FP32"), {"mb": 4}
    )
    assert [tensor.role for tensor in build_operation(widen).tensors] == ["OUTPUT", "KERNEL"]
    product_ = matmul(64, 64, 64, HostOperand(0), HostOperand(0), HostOperand(0))
    roles = [tensor.role for tensor in build_operation(product_).tensors]
    assert roles == ["INPUT", "KERNEL", "OUTPUT"]


def test_batched_matmul_dims() -> None:
    spec = matmul(64, 64, 128, HostOperand(0), HostOperand(0), HostOperand(0), batch=(2, 3))
    assert list(spec.extents) == ["y", "x", "mb", "out", "in"]
    assert spec.inputs[0].dims == ("y", "in", "mb", "x")


def test_reading_gives_back_what_was_built() -> None:
    spec = reduction("mean", (6, 4, 100), (2,), HostOperand(0), HostOperand(SEGMENT), {"mb": 3})
    operation = build_operation(spec)
    read = read_operation(build_sdsc(spec), operation.file)
    assert read.masks == operation.masks
    assert read.constants == operation.constants
    for mine, theirs in zip(operation.tensors, read.tensors, strict=True):
        assert (mine.dims, mine.starts, mine.scale) == (theirs.dims, theirs.starts, theirs.scale)


def test_default_layout_of_every_rank() -> None:
    assert [default_layout(default_dims(rank)) for rank in (1, 2, 3, 4)] == [
        ("out",),
        ("mb", "out"),
        ("mb", "out", "x"),
        ("mb", "out", "y", "x"),
    ]


def two_dims(**changes: Any) -> OperationSpec:
    tensor = OperandSpec(("mb", "out"), (("out", 64),), 0)
    fields = {"extents": {"mb": 32, "out": 64}, "inputs": [tensor], "outputs": [tensor]} | changes
    return OperationSpec(name="abs", **fields)


BAD = {
    "split of an unknown dim": (two_dims(splits={"x": 2}), "dim x has no extent"),
    "split that does not divide": (two_dims(splits={"mb": 5}), "5 slices do not divide dim mb"),
    "too many cores": (
        two_dims(splits={"mb": 32, "out": 2}, extents={"mb": 32, "out": 128}),
        "64 cores are needed",
    ),
    "tensor with an unknown dim": (
        two_dims(inputs=[OperandSpec(("x", "out"), (("out", 64),), 0)]),
        "dim x of a tensor has no extent",
    ),
    "stick outside the tensor": (
        two_dims(inputs=[OperandSpec(("mb",), (("out", 64),), 0)]),
        "stick dim out is not in the tensor's dims",
    ),
    "unknown format": (
        two_dims(inputs=[OperandSpec(("mb", "out"), (("out", 64),), 0, data_format="FP17")]),
        "data format FP17 is unknown",
    ),
    "place without a builder": (
        two_dims(inputs=[OperandSpec(("mb", "out"), (("out", 64),), BufferAddress("x"))]),
        "a place in buffer x has no address",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_contradictory_descriptions(name: str) -> None:
    spec, message = BAD[name]
    with pytest.raises(BundleError, match=message) as error:
        build_sdsc(spec)
    assert error.value.code == "SPY290"


def test_rules_are_applied_to_what_is_built() -> None:
    with pytest.raises(ValidationError) as error:
        build_sdsc(two_dims(extents={"mb": 32, "out": 100}))
    assert "SPY234" in {finding.code for finding in error.value.findings}


def test_every_rank_has_names_up_to_eight() -> None:
    assert default_dims(8)[-2:] == ("kj", "out")
    with pytest.raises(BundleError, match="no dim names for 9 axes"):
        default_dims(9)


def test_sizes_of_the_written_file() -> None:
    """Folds, slices and schedules for every core, as the frontends write them."""
    file = File(pointwise("abs", (64, 128), [HostOperand(0)], HostOperand(SEGMENT), {"mb": 16}))
    assert len(file.body["coreIdToDscSchedule"]) == prod([16])
    assert file.dsc["dataStageParam_"]["0"]["ss_"] == {"name_": "core", "mb_": 4, "out_": 128}


# --- windows ----------------------------------------------------------------------------------


def test_conv_offsets_follow_the_stride() -> None:
    """Output rows in two slices of two: the second core's input starts 2 · stride rows on."""
    windows = Windows((3, 3), (2, 1), (1, 2), ((1, 1), (2, 2)))
    operands = HostOperand(0), HostOperand(SEGMENT), HostOperand(2 * SEGMENT)
    spec = conv2d((1, 7, 16, 64), 64, windows, *operands, {"i": 2})
    assert {dim: spec.extents[dim] for dim in ("i", "j", "ki", "kj")} == {
        "i": 4,
        "j": 16,
        "ki": 3,
        "kj": 3,
    }
    operation = build_operation(spec)
    pitch = footprint(operation, operation.inputs[0]).pitch_bytes["i"]
    assert operation.inputs[0].starts == (0, 2 * 2 * pitch)
    assert operation.inputs[1].starts == (SEGMENT,) * 2


@pytest.mark.parametrize("kind", [None, *Padding])
@pytest.mark.parametrize("splits", [{}, {"i": 4}, {"mb": 2, "j": 2}])
def test_windows_read_back(kind: Padding | None, splits: dict[str, int]) -> None:
    windows = Windows((2, 3), (2, 1), (1, 2), ((1, 0), (2, 2)), kind)
    operands = HostOperand(0), HostOperand(SEGMENT)
    specs = [
        conv2d((2, 15, 16, 64), 128, windows, *operands, HostOperand(2 * SEGMENT), splits),
        pool("maxpoolfwd", (2, 15, 16, 64), windows, *operands, splits),
    ]
    for spec in specs:
        operation = build_operation(spec)
        read = read_operation(build_sdsc(spec), operation.file)
        assert read.windows == operation.windows == spec.windows
        assert [t.padding for t in read.tensors] == [
            {d: k for d, k in t.padding.items() if k is not Padding.NONE} for t in operation.tensors
        ]
        assert [t.starts for t in read.tensors] == [t.starts for t in operation.tensors]


def test_data_stage_of_windows() -> None:
    """§7 of the operations: a core's span, and -1 for the padding of a split dim."""
    windows = Windows((3, 3), (2, 2), padding=((1, 1), (1, 1)))
    operands = HostOperand(0), HostOperand(SEGMENT)
    file = File(pool("avgpoolfwd", (1, 15, 15, 64), windows, *operands, {"i": 4}))
    whole, stage = file.dsc["N_"]["paddingSizes_"], file.dsc["dataStageParam_"]["0"]["ss_"]
    assert whole["i"] == {
        "totalSize_": 17,
        "stride_": 2,
        "dilation_": 1,
        "padFront_": 1,
        "padBack_": 1,
        "windowDim_": "ki",
    }
    assert stage["paddingSizes_"]["i"]["totalSize_"] == 5
    assert stage["paddingSizes_"]["i"]["padFront_"] == -1
    assert stage["paddingSizes_"]["j"] == whole["j"]
    coord = file.dsc["scheduleTree_"][0]["coordinates_"]["coordInfo"]["i"]
    assert coord["padding"] == "padded_nozeropad"
    assert [f["Affine"]["alpha_"] for f in coord["folds"]["dim_prop_func"]] == [4, 0, 0, 1]
    assert [p["factor_"] for p in coord["folds"]["dim_prop_attr"]] == [4, 1, 1, 5]


def test_unneeded_padding_is_kept() -> None:
    window = Window("ki", 12, 2, 1, 1, 2, unneeded=1, unneeded_front=0, unneeded_back=1)
    assert window_table({"i": window})["i"] == {
        "totalSize_": 12,
        "stride_": 2,
        "dilation_": 1,
        "padFront_": 1,
        "padBack_": 2,
        "unneededPad_": 1,
        "unneededPadBack_": 1,
        "windowDim_": "ki",
    }


@pytest.mark.parametrize(
    ("kind", "factor", "fits"),
    [("wunneeded", 16, True), ("wunneeded", 17, False), ("", 16, False)],
)
def test_element_folds_may_hold_unneeded_padding(kind: str, factor: int, fits: bool) -> None:
    """torch-spyre's windows of one element and stride 2 over 16: no position reads the last."""
    file = File(
        pool(
            "maxpoolfwd",
            (1, 15, 15, 64),
            Windows((1, 1), (2, 2)),
            HostOperand(0),
            HostOperand(SEGMENT),
        )
    )
    file.dsc["N_"]["paddingSizes_"]["i"] |= {"totalSize_": 16, "unneededPad_": 1}
    node = file.dsc["scheduleTree_"][0]
    node["padding_"]["i"] = f"padded_fullspan_{kind}".rstrip("_")
    node["coordinates_"]["coordInfo"]["i"]["folds"]["dim_prop_attr"][-1]["factor_"] = factor
    data = json.dumps({"0_maxpoolfwd": file.body}).encode()
    found = inspect_sdsc(decode_sdsc(data, "a.json"), "a.json").findings
    assert ("SPY232" not in {finding.code for finding in found}) is fits


def test_a_window_larger_than_its_input() -> None:
    windows = Windows((5, 5))
    with pytest.raises(BundleError, match="no window fits the input"):
        pool("maxpoolfwd", (1, 4, 4, 64), windows, HostOperand(0), HostOperand(SEGMENT))


# --- runtime sizes and uneven slices ----------------------------------------------------------


def test_a_runtime_size_needs_a_bundle() -> None:
    size = {"mb": RuntimeSize("s0", 32, 16)}
    with pytest.raises(BundleError, match="runtime size s0 has no symbol"):
        build_operation(two_dims(sizes=size))
    with pytest.raises(BundleError, match="extent of dim mb is not its maximum"):
        build_operation(two_dims(sizes=size, extents={"mb": 48, "out": 64}))


def test_uneven_slices() -> None:
    spec = two_dims(splits={"mb": 5}, last_extents={"mb": 4})
    operation = build_operation(spec)
    assert [start for start in operation.inputs[0].starts] == [7 * 128 * k for k in range(5)]
    assert read_operation(build_sdsc(spec), "f").last_extents == {"mb": 4}
    with pytest.raises(BundleError, match="5 slices do not divide dim mb"):
        build_operation(two_dims(splits={"mb": 5}, last_extents={"mb": 3}))
