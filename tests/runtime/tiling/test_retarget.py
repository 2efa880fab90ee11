"""Operations with the pitches of larger tensors, and operands that cannot have them."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from spyre.errors import LaunchError
from spyre.hw.access import core_boxes
from spyre.hw.linking.binding import TileMap
from spyre.hw.linking.trace import Walk
from spyre.mlir.operation.operation import footprint
from spyre.runtime.program.launch_spec import POOL, Role
from spyre.runtime.tiling.device_dims import operand_uses
from spyre.runtime.tiling.execute import retarget
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg, Built
from tests.runtime.tiling.random_cases import random_case
from tests.runtime.tiling.running import plan_for


def uses_of(built: Built) -> tuple[Walk[int], ...]:
    return operand_uses(built.bundle, built.arguments.pool_bytes > 0)


def in_one_file(use: Walk[int]) -> Walk[int]:
    return replace(use, execute=replace(use.execute, sdsc_filename="sdsc_0.json"))


@pytest.mark.parametrize("symbolic", [True, False])
def test_operands_are_traced_to_their_arguments(symbolic: bool) -> None:
    uses = uses_of(kernels.chain((8, 128), {"mb": 2}, symbolic))
    assert [use.owner for use in uses] == [0, 1, None, None, POOL, POOL, 1, 2]
    assert uses[0].offsets.tolist() == [[0, 4 * 128]]
    assert [use.is_output for use in uses[:3]] == [False, False, True]


def test_pitches_come_from_the_map_and_nothing_else_changes() -> None:
    """Rows of [4096, 128]: the next column of sticks is 4096 rows on."""
    built = kernels.chain((1024, 128), {"mb": 4}, True)
    before = built.bundle.operations
    uses = uses_of(built)
    after = retarget(before, uses, {0: TileMap((2, 1024), (4096 * 128, 128))})
    first, *rest = [use.execute.sdsc_filename for use in uses if use.operand == 0]
    a, b, lx = after[first].tensors
    assert footprint(after[first], a).pitch_bytes == {"mb": 128, "out": 4096 * 128}
    assert (b, lx) == before[first].tensors[1:]
    assert replace(after[first], inputs=before[first].inputs) == before[first]
    assert all(after[name] is before[name] for name in rest)


@pytest.mark.parametrize("seed", range(30))
def test_every_stick_is_where_the_map_says(seed: int) -> None:
    """Sticks of the tile's kernel, mapped one by one, are those of the retargeted kernel."""
    case = random_case(seed)
    built = case.build(case.tile, case.splits, case.symbolic)
    whole = case.build(case.whole, case.whole_splits, case.symbolic)
    plan = plan_for(built, whole.args, case.options)
    maps = {tensor.expected.arg_index: tensor.map for tensor in plan.tensors}
    uses = uses_of(built)
    changed = retarget(built.bundle.operations, uses, maps)
    for use in uses:
        if use.owner not in maps:
            continue
        op = changed[use.execute.sdsc_filename]
        before = core_boxes(use.op, use.tensor)
        after = core_boxes(op, op.tensors[use.operand])
        for core, (old, new) in enumerate(zip(before, after, strict=True)):
            assert old is not None
            assert new is not None
            start = use.offsets[:, core]
            tile = (start[:, None] + old.walk.offsets()).ravel()
            moved = maps[use.owner].apply(start)[:, None] + new.walk.offsets()
            assert sorted(maps[use.owner].apply(tile)) == sorted(moved.ravel())


def refused(text: str, built: Built, map_: TileMap) -> None:
    with pytest.raises(LaunchError, match=text) as caught:
        retarget(built.bundle.operations, uses_of(built), {0: map_})
    assert caught.value.code == "SPY861"


def test_a_walk_through_several_device_dims() -> None:
    """abs sees [2, 4, 64] as 8 rows: they do not lie evenly in [2, 16, 64] any more."""
    maker = kernels.Maker()
    x = maker.arg(Arg(Role.INPUT, (4, 2, 64)))
    y = maker.arg(Arg(Role.OUTPUT, (8, 64)))
    maker.builder.add(kernels.pointwise("abs", (8, 64), [x], y))
    built = maker.done()
    refused("several device dims", built, TileMap((2, 1, 4), (16 * 128, 16 * 128, 128)))
    even = TileMap((2, 1, 4), (4 * 128, 4 * 128, 128))
    assert retarget(built.bundle.operations, uses_of(built), {0: even}) == built.bundle.operations


def test_a_table_behind_an_index() -> None:
    built = kernels.gather(32, 16)
    with pytest.raises(LaunchError, match="an index chooses its elements"):
        retarget(built.bundle.operations, uses_of(built), {1: TileMap((2, 16), (32 * 128, 128))})


def test_a_restickify_that_stops_at_the_end() -> None:
    """It drops rows 100 to 127, of which a larger tensor has some."""
    built = kernels.transpose((100, 128), {}, True)
    refused("stops at the end of mb", built, TileMap((2, 100), (200 * 128, 128)))


def test_one_sdsc_for_arguments_of_different_layouts() -> None:
    """Two executes of one file: one of them in a tile, the other not."""
    built = kernels.chain((8, 128), {}, True)
    uses = uses_of(built)
    shared = [in_one_file(use) for use in uses if use.operand == 0]
    with pytest.raises(LaunchError, match="one SDSC serves arguments of different layouts"):
        retarget(built.bundle.operations, shared, {0: TileMap((2, 8), (32 * 128, 128))})


def test_an_operand_in_several_arguments() -> None:
    """Cores that read different arguments: one of them may be a tile, the other not."""
    built = kernels.elementwise((8, 128), {"mb": 2}, False, absent=((),))
    name, op = next(iter(built.bundle.operations.items()))
    source = replace(op.inputs[0], starts=(0, (1 << 34) + 4 * 128))
    built.bundle.__dict__["operations"] = {name: replace(op, inputs=(source,))}
    uses = uses_of(built)
    assert [use.owner for use in uses] == [None, 1]
    assert retarget(built.bundle.operations, uses, {}) == built.bundle.operations
    with pytest.raises(LaunchError, match=r"Tensor0 cannot be moved .* several arguments"):
        retarget(built.bundle.operations, uses, {1: TileMap((2, 8), (32 * 128, 128))})


def test_one_sdsc_run_for_several_arguments() -> None:
    """z = |x| and w = |y| by one SDSC, all of them tiles of tensors alike."""
    maker = kernels.Maker()
    x, y = (maker.arg(Arg(Role.INPUT, (8, 128))) for _ in range(2))
    z, w = (maker.arg(Arg(Role.OUTPUT, (8, 128))) for _ in range(2))
    maker.builder.add(kernels.pointwise("abs", (8, 128), [x], z))
    maker.builder.add(kernels.pointwise("abs", (8, 128), [y], w))
    built = maker.done()
    uses = [in_one_file(use) for use in uses_of(built)]
    wide = TileMap((2, 8), (32 * 128, 128))
    after = retarget(built.bundle.operations, uses, dict.fromkeys(range(4), wide))
    op = after["sdsc_0.json"]
    assert [footprint(op, t).pitch_bytes["out"] for t in op.tensors] == [32 * 128] * 2


def test_dims_of_one_step_take_any_pitch() -> None:
    built = kernels.elementwise((1, 128), {}, True, absent=((),))
    after = retarget(built.bundle.operations, uses_of(built), {0: TileMap((2, 1), (5 * 128, 128))})
    (op,) = after.values()
    assert footprint(op, op.inputs[0]).pitch_bytes["out"] == 5 * 128
    assert np.diff(core_boxes(op, op.inputs[0])[0].walk.offsets()).tolist() == [5 * 128]  # type: ignore[union-attr]
