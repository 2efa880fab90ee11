"""plan_tiles: loops, offsets and text of good launches, and the error of each bad one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import LaunchError
from spyre.layout import SpyreTensorLayout, contiguous_strides, device_coordinate
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.tiling.tile_plan import TilePlan, TilingOptions
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg, Built
from tests.runtime.tiling.random_cases import random_case
from tests.runtime.tiling.running import plan_for

GOLDEN = Path(__file__).parent / "golden"
IN, OUT, BOTH = Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT
PAD = TilingOptions(True, remainder="pad")
ACCUMULATE = TilingOptions(True, reduction="accumulate")  # type: ignore[arg-type]


def matmul(m: int = 1024, k: int = 128, n: int = 64, symbolic: bool = True) -> Built:
    return kernels.mm({"m": m, "k": k, "n": n}, {"mb": 4}, symbolic)


def args(*shapes: Sequence[int]) -> list[Arg]:
    roles = [IN] * (len(shapes) - 1) + [OUT]
    return [Arg(role, tuple(shape)) for role, shape in zip(roles, shapes, strict=True)]


def test_the_documents_matmul() -> None:
    """4096 rows on a tile of 1024: row offset i · 1024 · 128 bytes, B reused (§6)."""
    plan = plan_for(matmul(), args((4096, 128), (128, 64), (4096, 64)))
    assert (plan.is_tiled, plan.counts, plan.iterations) == (True, (4,), 4)
    rows = [0, 131072, 262144, 393216]
    np.testing.assert_array_equal(plan.offsets_bytes, np.array([rows, [0] * 4, rows]).T)
    assert plan.offsets_bytes.dtype == np.int64
    assert not plan.needs_steps


def test_several_dims_are_nested_lowest_outermost() -> None:
    plan = plan_for(matmul(), args((2048, 128), (128, 192), (2048, 192)))
    assert [dim.name for dim in plan.dims] == ["mb", "out"]
    assert plan.counts == (2, 3)
    columns = 128 * 128
    assert plan.offsets_bytes[:, 1].tolist() == [0, columns, 2 * columns] * 2
    column_of_c = 2048 * 128
    row = 1024 * 128
    expected = [i * row + j * column_of_c for i in range(2) for j in range(3)]
    assert plan.offsets_bytes[:, 2].tolist() == expected


def test_reduced_dims_are_innermost() -> None:
    plan = plan_for(matmul(), args((2048, 256), (256, 64), (2048, 64)), ACCUMULATE)
    assert [dim.name for dim in plan.dims] == ["mb", "in"]
    assert (plan.accumulation, plan.needs_steps) == ("add", True)


def test_tensors_that_match_are_one_pass() -> None:
    plan = plan_for(matmul(), matmul().args, TilingOptions(False))
    assert (plan.is_tiled, plan.iterations, plan.counts) == (False, 1, ())
    assert plan.offsets_bytes.tolist() == [[0, 0, 0]]


class Padded(Arg):
    """Four rows of padding behind the others."""

    @property
    def layout(self) -> SpyreTensorLayout:
        layout = super().layout
        *outer, rows, lanes = layout.device_size
        return replace(layout, device_size=(*outer, rows + 4, lanes))


class Turned(Arg):
    """A tensor of three dims, the second next to the stick."""

    @property
    def layout(self) -> SpyreTensorLayout:
        strides = contiguous_strides(self.shape)
        return SpyreTensorLayout.from_dim_order(self.shape, strides, self.dtype, [1, 0, 2])


def _texts() -> dict[str, tuple[Built, list[Arg], TilingOptions]]:
    three = kernels.elementwise((4, 2, 64), {}, True, absent=((), (0,)), name="add")
    return {
        "matmul": (matmul(), args((4096, 128), (128, 64), (4096, 64)), TilingOptions(True)),
        "matmul_3d": (matmul(), args((2048, 256), (256, 192), (2048, 192)), ACCUMULATE),
        "add_padded": (three, args((8, 6, 150), (6, 150), (8, 6, 150)), PAD),
        "one_pass": (matmul(), list(matmul().args), TilingOptions(True)),
    }


@pytest.mark.parametrize("name", ["matmul", "matmul_3d", "add_padded", "one_pass"])
def test_text(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.txt", str(plan_for(*_texts()[name])))


@pytest.mark.parametrize("seed", range(40))
def test_offsets_are_those_of_each_tiles_first_element(seed: int) -> None:
    """Against the layout's own rule, element by element."""
    case = random_case(seed)
    tile = case.build(case.tile, case.splits, case.symbolic)
    whole = case.build(case.whole, case.whole_splits, case.symbolic)
    plan = plan_for(tile, whole.args, case.options)
    for place, tensor in enumerate(plan.tensors):
        for iteration in range(plan.iterations):
            first = [0] * len(tensor.actual.sizes)
            for dim, host_dim in tensor.walks:
                first[host_dim] = int(plan.indices[iteration, dim]) * plan.dims[dim].tile
            actual = tensor.actual
            place_of = device_coordinate(actual.layout, actual.sizes, actual.strides, first)
            assert plan.offsets_bytes[iteration, place] == place_of.byte_offset


# --- refusals -------------------------------------------------------------------------------


def refused(
    code: str, text: str, built: Built, actual: Sequence[Arg], options: TilingOptions | None = None
) -> None:
    with pytest.raises(LaunchError, match=re.escape(text)) as caught:
        plan_for(built, actual, options)
    assert caught.value.code == code


def test_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = args((4096, 128), (128, 64), (4096, 64))
    text = "dim 0 of t0 (arg_0) exceeds the kernel's tile, and tiled launches are not allowed"
    refused("SPY850", text, matmul(), actual, TilingOptions(False))
    monkeypatch.setenv("SPYRE_ALLOW_TILED_LAUNCH", "0")
    refused("SPY850", text, matmul(), actual)
    monkeypatch.setenv("SPYRE_ALLOW_TILED_LAUNCH", "1")
    assert plan_for(matmul(), actual).is_tiled


def test_smaller_than_the_tile() -> None:
    actual = args((512, 128), (128, 64), (512, 64))
    refused("SPY851", "dim 0 of t0 (arg_0) is smaller", matmul(), actual)


def test_no_multiple() -> None:
    actual = args((4000, 128), (128, 64), (4000, 64))
    refused("SPY852", "dim 0 of t0 (arg_0) is no multiple", matmul(), actual)
    plan = plan_for(matmul(), actual, PAD)
    assert (plan.counts, plan.dims[0].valid_last, plan.needs_steps) == ((4,), 928, True)
    assert plan.partial[:, 0].tolist() == [False, False, False, True]


def test_tensors_that_disagree() -> None:
    actual = args((4096, 128), (128, 64), (2048, 64))
    refused(
        "SPY853",
        "dim 0 of t2 (arg_2) and dim 0 of t0 (arg_0) are one dim of the kernel (mb), but disagree",
        matmul(),
        actual,
    )
    refused("SPY853", "(in)", matmul(), args((1024, 256), (128, 64), (1024, 64)), ACCUMULATE)


def test_a_broadcast_operand_must_not_grow_alone() -> None:
    built = kernels.elementwise((4, 64), {}, True, absent=((), (0,)), name="add")
    refused("SPY853", "(out)", built, args((4, 64), (128,), (4, 64)))
    assert plan_for(built, args((8, 64), (64,), (8, 64))).counts == (2,)


def test_number_and_rank() -> None:
    refused("SPY854", "another number of tensors", matmul(), args((1024, 128)))
    actual = args((1, 1024, 128), (128, 64), (1024, 64))
    refused("SPY854", "t0 (arg_0) has another rank", matmul(), actual)


def test_dtype() -> None:
    actual = list(matmul().args)
    actual[1] = replace(actual[1], dtype="float32")
    refused("SPY856", "t1 (arg_1) has another dtype", matmul(), actual)


def test_another_stick_dim() -> None:
    built = kernels.elementwise((64, 64), {}, True, absent=((),))
    actual = [replace(arg, swapped=True) for arg in args((128, 64), (128, 64))]
    refused("SPY855", "the stick runs along dim 0 instead of dim 1", built, actual)


def test_another_order_of_dims() -> None:
    """[x, mb] outermost first against [mb, x]: pitches nest the other way."""
    built = kernels.elementwise((4, 2, 64), {}, True, absent=((),))
    actual = [Turned(arg.role, arg.shape) for arg in args((8, 4, 64), (8, 4, 64))]
    refused("SPY855", "device dim 0 walks dim 0 in steps of 1 instead of dim 1", built, actual)


def test_reductions() -> None:
    actual = args((1024, 256), (256, 64), (1024, 64))
    refused("SPY857", "dim 1 of t0 (arg_0) exceeds the kernel's tile, and batchmatmul reduces it",
            matmul(), actual)  # fmt: skip
    softmax = kernels.softmax((8, 64), {}, True)
    for options, text in ((None, "max reduces it"), (ACCUMULATE, "in a kernel that is no plain")):
        refused("SPY857", text, softmax, args((8, 128), (8, 128)), options)
    highest = kernels.reduce((4, 64), {}, True, (0,), "max")
    refused("SPY857", "cannot be accumulated", highest, args((8, 64), (1, 64)), ACCUMULATE)


def test_fixed_dims() -> None:
    masked = kernels.reduce((4, 100), {}, True, (1,))
    actual = [Arg(IN, (4, 200)), Arg(OUT, (4,), sparse=True)]
    refused("SPY858", "dim 1 of t0 (arg_0) cannot be tiled: sum masks part of it", masked, actual,
            ACCUMULATE)  # fmt: skip


def test_in_place_updates_happen_once() -> None:
    """x += w beside y = |a|: tiles of a would add w several times."""
    maker = kernels.Maker()
    x, w = maker.arg(Arg(BOTH, (4, 64))), maker.arg(Arg(IN, (4, 64)))
    a, y = maker.arg(Arg(IN, (8, 64))), maker.arg(Arg(OUT, (8, 64)))
    maker.builder.add(kernels.pointwise("add", (4, 64), [x, w], x))
    maker.builder.add(kernels.pointwise("abs", (8, 64), [a], y))
    built = maker.done()
    actual = [*built.args[:2], Arg(IN, (16, 64)), Arg(OUT, (16, 64))]
    refused("SPY858", "the kernel updates arg_0, which lacks mb, in place", built, actual)


def test_tiles_of_part_of_a_stick() -> None:
    built = kernels.elementwise((4, 32), {}, True, absent=((),))
    refused("SPY859", "tiles of dim 1 of t0 end within a stick", built, args((4, 64), (4, 64)))
    many = kernels.elementwise((4, 100), {}, True, absent=((),))
    refused("SPY859", "end within a stick", many, args((4, 200), (4, 200)))


def test_dims_no_operation_walks() -> None:
    built = kernels.gather(32, 16)
    actual = [Arg(IN, (32,), "int32"), Arg(IN, (32, 128)), Arg(OUT, (32, 128))]
    refused("SPY860", "dim 0 of t1 (arg_1)", built, actual)


def test_a_layout_with_padding_is_one_pass() -> None:
    built = kernels.elementwise((4, 64), {}, True, absent=((),))
    plan = plan_for(built, [Padded(arg.role, arg.shape) for arg in built.args])
    assert not plan.is_tiled
    assert all(not tensor.is_tiled for tensor in plan.tensors)


def test_room_for_the_tile() -> None:
    """The kernel's memory has padding that the tensor's has not."""
    maker = kernels.Maker()
    operands = [maker.arg(Padded(role, (4, 64))) for role in (IN, OUT)]
    rows = [replace(operand, gap={"mb": 4}) for operand in operands]
    maker.builder.add(kernels.pointwise("abs", (4, 64), rows[:1], rows[1]))
    text = "device dim 1 has 4 of the 8 steps of a tile"
    refused("SPY855", text, maker.done(), args((4, 64), (4, 64)))


def test_the_plan_of_many_tiles_is_arrays() -> None:
    plan: TilePlan = plan_for(matmul(4), args((40_000, 128), (128, 64), (40_000, 64)))
    assert plan.offsets_bytes.shape == (10_000, 3)
    assert plan.offsets_bytes[-1, 0] == 9_999 * 4 * 128
