"""Packed sticks and windows: positions, choice of kernels, exactness, counters, refusals."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import DeviceFault, SdscError, SpyreError, UnsupportedError
from spyre.hw import plan_table as tb
from spyre.hw.access import make_access
from spyre.hw.counters.execute import count_plan
from spyre.hw.numerics import Numerics
from spyre.hw.plans.core_plan import CorePlan, plan_operation
from spyre.hw.plans.offset_tables import local_offsets
from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.operation.operation import Operation, Padding, Window, footprint
from tests.hw.harness import (
    allocations_of,
    compare,
    engine,
    link,
    literal_starts,
    map_tensors,
    windows,
)
from tests.hw.logical import Bench
from tests.hw.packed_cases import FORMAT_OF, a_stick, b_stick, build, operand
from tests.hw.packed_strategies import OUTPUT_STICKS
from tests.hw.plan_printer import format_plan


def plan(op: Operation) -> CorePlan:
    starts = np.array([t.starts for t in op.tensors], np.int64)
    return plan_operation(op, starts - starts[:, :1])


def matmul(kind: str, rows: int = 4, columns: int = 64, depth: int = 128, **splits: int):
    spec = OperationSpec(
        f"batchmatmul{kind}",
        {"mb": rows, "out": columns, "in": depth},
        [
            operand(0, ("mb", "in"), a_stick(kind, "in", "mb"), FORMAT_OF[kind]),
            operand(1, ("in", "out"), b_stick(kind, "in", "out"), FORMAT_OF[kind]),
        ],
        [operand(2, ("mb", "out"), (("out", 64),))],
        splits,
        unit="pt",
    )
    return build(spec)


def conv(
    kind: str = "",
    pad: int = 1,
    padding: Padding = Padding.IMPLIED,
    size: int = 6,
    lx: bool = False,
    **splits: int,
) -> Operation:
    total, out = size + 2 * pad, size + 2 * pad - 2
    spec = OperationSpec(
        f"conv2d{kind}",
        {"i": out, "j": out, "out": 64, "in": 128, "ki": 3, "kj": 3},
        [
            operand(0, ("j", "in", "i"), a_stick(kind, "in", "j"), FORMAT_OF[kind], lx),
            operand(1, ("in", "out", "kj", "ki"), b_stick(kind, "in", "out"), FORMAT_OF[kind]),
        ],
        [operand(2, ("j", "out", "i"), (("out", 64),))],
        splits,
        unit="pt",
    )
    spans = {d: Window(f"k{d}", total, 1, 1, pad, pad) for d in ("i", "j")}
    return build(spec, spans, dict.fromkeys(spans, padding))


def pool(name: str = "maxpoolfwd", **splits: int) -> Operation:
    dims, stick = ("j", "out", "i"), (("out", 64),)
    extents = {"i": 4, "j": 4, "out": 64, "ki": 2, "kj": 2}
    spec = OperationSpec(
        name, extents, [operand(0, dims, stick)], [operand(1, dims, stick)], splits
    )
    return build(spec, {d: Window(f"k{d}", 8, 2) for d in ("i", "j")})


def requantized(name: str, data_format: str, **changes) -> Operation:
    constants = {"scaleact": 0x3E00, "shiftact": 0} if name.startswith("csq") else {}
    spec = OperationSpec(
        name,
        {"mb": 8, "out": 128},
        [operand(0, ("mb", "out"), (("out", 64),))],
        [operand(1, ("mb", "out"), changes.get("stick", OUTPUT_STICKS[name]), data_format)],
        changes.get("splits", {}),
        constants=constants,
    )
    return build(spec)


# --- positions --------------------------------------------------------------------------------


def position(op: Operation, a: int, o: int) -> int:
    """Element number of (a along out, o along mb) in the first stick of the output."""
    access = make_access(op, op.outputs[0])
    bits = {d: local_offsets(op, access, d) for d in ("out", "mb")}
    width = 4 if "INT4" in op.outputs[0].data_format else 8
    return int(bits["out"][a] + bits["mb"][o]) // width


def test_positions_of_the_packings():
    """The mappings of operations reference §5, element by element of one stick."""
    ch = requantized("qfp8ch", "SEN143_FP8")
    mb = requantized("csqint8mb", "SENINT8")
    wt = requantized("qfp8wt", "SEN143_FP8")
    int4 = requantized("csqint4", "SENINT4")
    int4_wt = requantized("csqint4wt", "SENINT4")
    for h in range(2):
        for g in range(8):
            for e in range(8):
                a = 64 * h + 8 * g + e
                assert position(ch, a, 0) == 16 * g + 8 * h + e
                assert [position(int4, a, o) for o in (0, 1)] == [
                    32 * g + 16 * o + 8 * h + e for o in (0, 1)
                ]
    for a in range(64):
        assert [position(mb, a, o) for o in (0, 1)] == [
            16 * (a // 8) + 8 * o + a % 8 for o in (0, 1)
        ]
        assert [position(wt, a, o) for o in (0, 1)] == [2 * a, 2 * a + 1]
        assert [position(int4_wt, a, o) for o in range(4)] == [4 * a + o for o in range(4)]


def test_a_stick_is_used_once():
    """Every element of a packed tensor has a place of its own."""
    for name in OUTPUT_STICKS:
        data_format = "SENINT4" if "int4" in name else "SENINT8" if "int8" in name else "SEN143_FP8"
        op = requantized(name, data_format)
        access = make_access(op, op.outputs[0])
        offsets = np.add.outer(local_offsets(op, access, "mb"), local_offsets(op, access, "out"))
        width = 4 if "int4" in name else 8
        assert sorted(offsets.ravel()) == list(range(0, 8 * 128 * width, width))


def test_extents_of_windowed_inputs():
    stored = {
        padding: footprint(op := conv("", 1, padding), op.inputs[0]).stored
        for padding in (Padding.IMPLIED, Padding.NONE, Padding.STORED_ZEROS, Padding.FULL_SPAN)
    }
    assert [s["i"] for s in stored.values()] == [6, 6, 8, 8]
    local = conv("", 0, Padding.NONE, 6, lx=True, i=2)
    assert footprint(local, local.inputs[0]).stored == {"j": 6, "in": 128, "i": 4}
    assert footprint(local, local.outputs[0]).stored["i"] == 4


# --- kernels ----------------------------------------------------------------------------------


def kinds(op: Operation) -> list[int]:
    return [int(k) for k in plan(op).tables[:, tb.KIND] if k != tb.EXTRA]


def test_plain_convolutions_are_matmuls():
    """One table without padding, one per region of equal places with it, split or not."""
    assert kinds(conv("", 0)) == [tb.MATMUL_KIND]
    assert kinds(conv("", 0, i=2, j=2)) == [tb.MATMUL_KIND]
    assert kinds(conv("", 1)) == [tb.MATMUL_KIND] * 9
    assert kinds(conv("", 1, i=3)) == [tb.MATMUL_KIND] * 9
    assert kinds(conv("", 1, Padding.STORED_ZEROS)) == [tb.MATMUL_KIND]
    assert kinds(conv("int8", 1)) == [tb.PACKED_MATMUL_KIND] * 9


def test_plans_are_shown():
    assert (
        "packed_matmul: opcode 0, flags 1, 1 units\n    offset vectors: batch of 1, rows of 4"
        in (format_plan(plan(matmul("int8"))))
    )
    assert "window of 4" in format_plan(plan(pool()))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integer_sums_are_exact(kind: str):
    """Large terms that cancel, with a one between them that float32 would lose."""
    depth, high = {"int8": (4096, 127), "int4": (1 << 18, 7)}[kind]
    a = np.full((2, depth), high)
    b = np.full((depth, 64), high)
    b[depth // 2 :] = -high
    a[:, depth // 2 - 1], b[depth // 2 - 1] = 1, 1
    a[:, -1], b[-1] = 0, 0
    bench = Bench(matmul(kind, 2, 64, depth))
    bench.put(0, ("mb", "in"), a)
    bench.put(1, ("in", "out"), b)
    bench.run()
    assert (bench.get(("mb", "out")) == 1).all()


def test_padding_of_a_maximum_is_no_number():
    """A window of padding alone is -infinity, stored as DL16's code for it."""
    op = pool()
    windows = {d: Window(f"k{d}", 14, 2, 1, 3, 3) for d in ("i", "j")}
    bench = Bench(replace(op, windows={"i": windows["i"], "j": windows["j"]}))
    bench.put(0, ("out", "i", "j"), np.full((64, 8, 8), -3.0))
    bench.run()
    result = bench.get(("out", "i", "j"))
    assert np.isneginf(result[:, 0]).all()
    assert np.isneginf(result[:, :, 0]).all()
    assert (result[:, 1:, 1:] == -3).all()


# --- counters ---------------------------------------------------------------------------------


def test_counters():
    counted = count_plan(plan(matmul("fp8", 4, 128, 256, mb=2)))
    assert counted.multiply_adds == 4 * 128 * 256
    assert counted.element_operations == 0
    assert counted.hbm_read_bytes == 4 * 256 + 2 * 128 * 256
    assert counted.hbm_written_bytes == 4 * 128 * 2
    assert count_plan(plan(matmul("int4"))).hbm_read_bytes == 4 * 64 + 64 * 64
    counted = count_plan(plan(conv("", 1, i=3)))
    assert counted.multiply_adds == 6 * 6 * 64 * 128 * 9
    assert counted.hbm_read_bytes == 3 * (4 * 6 * 2 + 128 * 9) * 128
    assert count_plan(plan(pool())).element_operations == 16 * 64 * 4


# --- refusals ---------------------------------------------------------------------------------


def refused(op: Operation, code: str, kind: type[SpyreError] = SdscError) -> None:
    with pytest.raises(kind, match=code):
        plan(op)


def test_sticks_of_packed_operations():
    good = matmul("int8")
    plain = replace(good.inputs[1], stick_dims=("out",), stick_sizes=(128,))
    refused(replace(good, inputs=(good.inputs[0], plain)), "SPY293")
    refused(requantized("qfp8mb", "SEN143_FP8", stick=(("out", 128),)), "SPY293")
    refused(replace(matmul("fp8"), name="batchmatmulint8"), "SPY522", UnsupportedError)
    refused(requantized("qfp8ch", "SENINT8"), "SPY522", UnsupportedError)
    refused(requantized("csqint8mb", "SENINT8", splits={"mb": 8}), "SPY282")


def test_plain_operations_refuse_packed_sticks():
    op = requantized("qfp8wt", "SEN143_FP8")
    refused(replace(op, name="neg"), "SPY522", UnsupportedError)
    refused(replace(op, name="identity"), "SPY521", UnsupportedError)
    ch = requantized("qfp8ch", "SEN143_FP8")
    refused(replace(ch, name="neg"), "SPY522", UnsupportedError)


def test_sums_in_chunks_are_refused():
    """Only integers, whose sums are exact, are the same in the number mode dl16-chunk."""
    for name in ("fp8", "int8"):
        op = matmul(name)
        starts = literal_starts(op)
        chunks = Numerics("dl16-chunk")
        plan = partial(plan_operation, op, starts - starts[:, :1], numerics=chunks)
        if name == "int8":
            assert len(plan().tables)
            continue
        with pytest.raises(UnsupportedError, match="SPY542"):
            plan()


def test_structure():
    good = matmul("fp8")
    refused(replace(good, inputs=good.inputs[::-1]), "SPY284")
    bare = map_tensors(conv(), lambda t: replace(t, padding={}))
    refused(replace(bare, windows={}), "SPY292")
    outside = {**conv().windows, "i": Window("ki", 7, 1, 1, 1, 1)}
    refused(replace(conv(), windows=outside), "SPY292")
    refused(replace(conv(), windows={**conv().windows, "j": Window("ki", 8)}), "SPY292")
    op = pool()
    lost = replace(op.outputs[0], scale={"j": 1, "out": 1, "i": -1})
    refused(replace(op, outputs=(lost,)), "SPY292")


def test_memory_smaller_than_the_operation():
    op = matmul("int8", 4, 128, 128)
    small = replace(op.outputs[0], device_dim_sizes={"mb": 2})
    refused(replace(op, outputs=(small,)), "SPY294")


def test_divisions_that_are_not_simulated():
    op = conv("", 0)
    split = replace(op, slices={**op.slices, "ki": 3}, cores=(0, 1, 2))
    split = map_tensors(split, lambda t: replace(t, starts=t.starts * 3))
    split = replace(split, core_slices=tuple({"ki": k} for k in range(3)))
    refused(split, "SPY545", UnsupportedError)
    refused(conv("int4", 0, Padding.NONE, 5, j=3), "SPY546", UnsupportedError)
    refused(conv("", 1, Padding.IMPLIED, 6, lx=True, i=2), "SPY546", UnsupportedError)
    refused(conv("", 1, Padding.LOWERED), "SPY547", UnsupportedError)


def test_windows_and_masks_elsewhere():
    op = requantized("qfp8ch", "SEN143_FP8")
    refused(replace(op, windows={"mb": Window("k", 8)}), "SPY548", UnsupportedError)
    good = conv()
    padded = replace(good.outputs[0], padding={"i": Padding.FULL_SPAN})
    refused(replace(good, outputs=(padded,)), "SPY548", UnsupportedError)
    refused(replace(op, masks={"out": ((100, 28),)}), "SPY549", UnsupportedError)


def test_sizes_that_vectors_cannot_hold():
    op = matmul("int8")
    refused(replace(op, extents={**op.extents, "mb": 1 << 40}), "SPY550", UnsupportedError)
    wide = {**op.extents, "mb": 1 << 23, "out": 1 << 23, "in": 128}
    refused(replace(op, extents=wide), "SPY550", UnsupportedError)


def test_windows_may_not_reach_before_memory():
    """Starts that forget their slices would read in front of the input."""
    op = conv("", 1, i=3)
    first = replace(op.inputs[0], starts=op.inputs[0].starts[:1] * 3)
    wrong = replace(op, inputs=(first, op.inputs[1]))
    found = windows(op)
    with pytest.raises(DeviceFault, match="SPY411"):
        link(engine(), [wrong], allocations_of(found))
    compare(op)
