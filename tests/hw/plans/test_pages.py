"""Gather and scatter of pages, index limits, faults that name the index, as in the reference."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

from spyre.errors import DeviceFault, SdscError, UnsupportedError
from spyre.hw.linking.binding import Allocation
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation, build_sdsc
from spyre.mlir.operation.operation import Component, Indirection, Operation
from spyre.mlir.sdsc.inspection import inspect_sdsc
from spyre.mlir.sdsc.reader import read_operation
from spyre.mlir.sdsc.writer import write_operation
from tests.examples import examples
from tests.hw.harness import Trial, compare, engine, link, region
from tests.hw.kernels.test_data_movement import any_bits, indices
from tests.hw.movement_strategies import paged
from tests.hw.strategies import seeds

Gather = tuple[Operation, int, int]


@examples(60)
@given(gather=paged(), seed=seeds)
def test_gather_of_pages(gather: Gather, seed: int):
    op, pages, size = gather
    compare(op, Trial([any_bits, indices(pages), any_bits], sizes={0: size}, seed=seed))


@examples(60)
@given(gather=paged(scatter=True), seed=seeds)
def test_scatter_of_pages(gather: Gather, seed: int):
    op, pages, size = gather
    compare(op, Trial([any_bits, indices(pages), any_bits], sizes={2: size}, seed=seed))


@examples(40)
@given(gather=paged())
def test_written_pages_read_back(gather: Gather):
    op = gather[0]
    sdsc = write_operation(op)
    assert [f for f in inspect_sdsc(sdsc, "f").findings if f.code == "SPY262"] == []
    read = read_operation(sdsc, op.file).inputs[0]
    assert read.max_dim_sizes == op.inputs[0].max_dim_sizes
    assert read.device_dim_sizes == op.inputs[0].device_dim_sizes


# --- a table of 6 pages of 4 rows -------------------------------------------------------------

PAGE, PAGES, ROWS, COLUMNS = 4, 6, 3, 128


def table_of_pages(count: int, **changes) -> OperationSpec:
    """``count`` pages picked from a [24, 128] table; 3 of the 4 rows of each are copied."""
    value = OperandSpec(
        ("mb", "out"),
        (("out", 64),),
        region(0),
        role="V",
        max_dim_sizes={"mb": PAGE},
        device_dim_sizes={"mb": PAGE * PAGES, "out": COLUMNS},
        indirection=Indirection.VALUE,
    )
    index = OperandSpec(
        ("x",),
        (("x", 32),),
        region(1),
        data_format="SENUINT32",
        role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )
    value = replace(value, **changes.pop("value", {}))
    target = OperandSpec(("mb", "out", "x"), (("out", 64),), region(2), role="O")
    fields = {"splits": {"x": 2}, **changes}
    return OperationSpec(
        "identity",
        {"x": count, "mb": ROWS, "out": COLUMNS},
        [value],
        [target],
        index_inputs=[index],
        **fields,
    )


def linked(spec: OperationSpec, picked: list[int], rows: int = PAGE * PAGES):
    memory = engine().memory
    memory.write(region(1), np.array(picked, np.int32).view(np.uint8))
    sizes = rows * COLUMNS * 2, 128 * -(-len(picked) // 32), len(picked) * ROWS * COLUMNS * 2
    allocations = [Allocation(f"t{k}", region(k), n) for k, n in enumerate(sizes)]
    return link(engine(), [read_operation(build_sdsc(spec), "f")], allocations)


def test_rows_of_pages():
    table = np.arange(PAGE * PAGES * COLUMNS, dtype=np.uint16).reshape(PAGE * PAGES, COLUMNS)
    tiled = table.reshape(PAGE * PAGES, 2, 64).transpose(1, 0, 2)
    engine().memory.write(region(0), np.ascontiguousarray(tiled).view(np.uint8).reshape(-1))
    picked = [5, 0, 3, 3]
    engine().executor.run(linked(table_of_pages(4), picked))
    found = engine().memory.read(region(2), 4 * ROWS * COLUMNS * 2).view(np.uint16)
    rows = found.reshape(4, 2, ROWS, 64).transpose(0, 2, 1, 3).reshape(4, ROWS, COLUMNS)
    np.testing.assert_array_equal(rows, table.reshape(PAGES, PAGE, COLUMNS)[picked, :ROWS])


@pytest.mark.parametrize(("rows", "last"), [(24, 5), (23, 5), (22, 4), (11, 2), (3, 0)])
def test_the_last_page_that_fits(rows: int, last: int):
    """Only the rows that are copied must lie in the table, so a last page may be cut."""
    spec = table_of_pages(2, value={"dims": ("out", "mb"), "device_dim_sizes": {}})
    engine().executor.run(linked(spec, [last, 0], rows))
    with pytest.raises(DeviceFault) as caught:
        engine().executor.run(linked(spec, [last, last + 1], rows))
    assert f"expected: 0 to {last}" in str(caught.value)


def test_a_fault_names_core_and_coordinate():
    picked = [0] * 128
    picked[100] = 6
    with pytest.raises(DeviceFault) as caught:
        engine().executor.run(linked(table_of_pages(128), picked))
    message = str(caught.value)
    assert "core 1, tensor Tensor0" in message
    assert re.search(
        r"SPY412]: identity: index 6 is out of bounds for .* size 6, at x 100", message
    )
    assert "found: 6" in message


def test_a_fault_in_an_index_tensor_of_two_dims():
    value = OperandSpec(
        ("out", "mb", "x"), (("out", 64),), region(0), role="V", max_dim_sizes={"mb": 1, "x": 1},
        indirection=Indirection.VALUE,
    )  # fmt: skip
    index = OperandSpec(
        ("x", "mb"), (("mb", 32),), region(1), data_format="SENUINT32", role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )  # fmt: skip
    target = OperandSpec(("x", "mb", "out"), (("out", 64),), region(2), role="O")
    spec = OperationSpec(
        "identity", {"x": 4, "mb": 64, "out": 64}, [value], [target], {"x": 2},
        index_inputs=[index],
    )  # fmt: skip
    words = np.zeros((2, 4, 32), np.int32)
    words[1, 3, 7] = -5
    engine().memory.write(region(1), words.reshape(-1).view(np.uint8))
    allocations = [Allocation(f"t{k}", region(k), n) for k, n in enumerate((128, 1024, 1 << 15))]
    with pytest.raises(DeviceFault) as caught:
        engine().executor.run(link(engine(), [build_operation(spec)], allocations))
    assert "core 1" in str(caught.value)
    assert "at x 3, mb 39" in str(caught.value)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("dims", [("mb", "out"), ("out", "mb")])
@pytest.mark.parametrize("scatter", [False, True])
def test_rows_of_a_table_of_known_extent(dims: tuple[str, str], bounded: bool, scatter: bool):
    """Sixteen indices into 24 rows, the rows next to each other or outermost."""
    sizes = {"mb": 24, "out": COLUMNS} if dims[0] == "mb" else {}
    table = OperandSpec(
        dims, (("out", 64),), region(2 if scatter else 0), role="V",
        max_dim_sizes={"mb": 1} if bounded else {}, device_dim_sizes=sizes,
        indirection=Indirection.VALUE,
    )  # fmt: skip
    index = OperandSpec(
        ("mb",), (("mb", 32),), region(1), data_format="SENUINT32", role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )  # fmt: skip
    rows = OperandSpec(("mb", "out"), (("out", 64),), region(0 if scatter else 2), role="O")
    pair = (rows, table) if scatter else (table, rows)
    spec = OperationSpec(
        "identity", {"mb": 16, "out": COLUMNS}, pair[:1], pair[1:], {"mb": 4},
        index_inputs=[index],
    )  # fmt: skip
    operand = 2 if scatter else 0
    trial = Trial([any_bits, indices(24), any_bits], sizes={operand: 24 * 256})
    compare(spec, trial)
    too_large = replace(trial, fills=[any_bits, lambda _, n: np.full(n, 24), any_bits])
    with pytest.raises(DeviceFault, match=r"SPY412.*at mb \d+"):
        compare(spec, too_large)


@pytest.mark.parametrize("rows", [45, 64, 20])
def test_index_sticks_that_lie_apart(rows: int):
    """Two indices per row: the sticks of one of them are every other one, the last one begun."""
    value = OperandSpec(
        ("out", "mb", "x"), (("out", 64),), region(0), role="V", max_dim_sizes={"mb": 1, "x": 1},
        indirection=Indirection.VALUE,
    )  # fmt: skip
    index = OperandSpec(
        ("x", "mb"), (("mb", 32),), region(1), data_format="SENUINT32", role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )  # fmt: skip
    target = OperandSpec(("x", "mb", "out"), (("out", 64),), region(2), role="O")
    spec = OperationSpec(
        "identity", {"x": 2, "mb": rows, "out": COLUMNS}, [value], [target], index_inputs=[index]
    )
    compare(spec, Trial([any_bits, indices(24), any_bits], sizes={0: 24 * 256}))


@pytest.mark.parametrize("dims", [("mb", "x", "out"), ("x", "mb", "out"), ("x", "out", "mb")])
def test_a_single_index_counts_pages_wherever_its_dim_is_listed(dims: tuple[str, ...]):
    """A cache of 7 pages of 3 rows: one page is read, of all that the other dims hold."""
    value = OperandSpec(
        dims, (("out", 64),), region(0), role="V", max_dim_sizes={"mb": 1},
        indirection=Indirection.VALUE,
    )  # fmt: skip
    index = OperandSpec(
        ("mb",), (("mb", 32),), region(1), data_format="SENUINT32", role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )  # fmt: skip
    target = OperandSpec(("x", "out", "mb"), (("out", 64),), region(2), role="O")
    spec = OperationSpec(
        "identity", {"mb": 1, "x": 3, "out": COLUMNS}, [value], [target], index_inputs=[index]
    )
    pages = np.arange(7 * 3 * COLUMNS, dtype=np.uint16).reshape(7, -1)
    memory = engine().memory
    memory.write(region(0), pages.view(np.uint8).reshape(-1))
    memory.write(region(1), np.array([5], np.int32).view(np.uint8))
    sizes = (pages.nbytes, 128, pages[0].nbytes)
    allocations = [Allocation(f"t{k}", region(k), n) for k, n in enumerate(sizes)]
    op = read_operation(write_operation(build_operation(spec)), "f")
    engine().executor.run(link(engine(), [op], allocations))
    found = memory.read(region(2), pages[0].nbytes).view(np.uint16).reshape(2, 3, 64)
    page = pages[5].reshape((2, 3, 64) if dims.index("x") < dims.index("out") else (3, 2, 64))
    np.testing.assert_array_equal(found, page)


def test_page_sizes_follow_the_nodes_own_order():
    sdsc = write_operation(build_operation(table_of_pages(2)))
    roles = {
        name: msgspec.structs.replace(role, dims=role.dims[::-1])
        for name, role in sdsc.dsc.roles.items()
    }
    dsc = msgspec.structs.replace(sdsc.dsc, roles=roles)
    body = msgspec.structs.replace(sdsc.body, dscs=({sdsc.dsc_name: dsc},))
    read = read_operation(msgspec.structs.replace(sdsc, body=body), "f")
    assert read.inputs[0].max_dim_sizes == {"mb": PAGE, "out": -1}


BAD = {
    "no dim to count along": ({"max_dim_sizes": {}}, "no dim of Tensor1 is indexed"),
    "rows unknown": (
        {"device_dim_sizes": {}},
        "pitch of out of Tensor1: the extent of mb is not given",
    ),
    "beyond the page": ({"max_dim_sizes": {"mb": 2}}, "mb runs beyond the pages of 2 of Tensor1"),
}


@pytest.mark.parametrize("name", BAD)
def test_pages_that_say_too_little(name: str):
    changes, message = BAD[name]
    op = build_operation(table_of_pages(2, value=changes))
    with pytest.raises(SdscError) as caught:
        link(engine(), [op], [Allocation("all", region(k), 1 << 20) for k in range(3)])
    assert caught.value.code == "SPY262"
    assert message in str(caught.value)
    (finding,) = (f for f in inspect_sdsc(write_operation(op), "f").findings if f.code == "SPY262")
    assert message in str(finding)


def test_an_index_along_a_dim_the_table_lacks():
    index = OperandSpec(
        ("mb",), (("mb", 32),), region(1), data_format="SENUINT32", role="KERNEL_IDX",
        indirection=Indirection.INDEX,
    )  # fmt: skip
    table = OperandSpec(
        ("mb", "out"), (("out", 64),), region(0), scale={"mb": -1}, indirection=Indirection.VALUE
    )
    rows = OperandSpec(("mb", "out"), (("out", 64),), region(2))
    spec = OperationSpec(
        "identity", {"mb": 32, "out": COLUMNS}, [table], [rows], index_inputs=[index]
    )
    findings = inspect_sdsc(write_operation(build_operation(spec)), "f").findings
    (finding,) = (f for f in findings if f.code == "SPY262")
    assert "an index counts along mb, which Tensor1 does not have" in str(finding)


def test_pages_of_half_a_stick():
    value = {"dims": ("out",), "max_dim_sizes": {"out": 160}, "device_dim_sizes": {}}
    op = build_operation(table_of_pages(2, value=value))
    with pytest.raises(UnsupportedError, match="SPY526"):
        link(engine(), [op], [Allocation("all", region(k), 1 << 20) for k in range(3)])


def test_a_table_of_each_core_is_refused():
    op = build_operation(table_of_pages(2))
    own = replace(op.inputs[0], per_core_in_hbm=True, component=Component.HBM)
    with pytest.raises(UnsupportedError, match="SPY533]: identity: indices into Tensor1"):
        link(
            engine(),
            [replace(op, inputs=(own,))],
            [Allocation("all", region(k), 1 << 20) for k in range(3)],
        )
