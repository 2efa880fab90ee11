"""Classes of dims, and dims that cannot be tiled, derived from the operations."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spyre.mlir.builder.bundles import BundleBuffer
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction, restickify
from spyre.runtime.program.launch_spec import Role
from spyre.runtime.tiling.device_dims import operand_uses
from spyre.runtime.tiling.kernel_dims import SharedDim, expected_tensors
from tests.mlir.window_recipes import Windows, pool
from tests.runtime.tiling import kernels
from tests.runtime.tiling.kernels import Arg, Built, Maker

IN, OUT = Role.INPUT, Role.OUTPUT


def dims_of(built: Built) -> list[tuple[SharedDim | None, ...]]:
    uses = operand_uses(built.bundle, built.arguments.pool_bytes > 0)
    return [expected.dims for expected in expected_tensors(built.arguments, uses)]


def indices(built: Built) -> list[list[int | None]]:
    return [[None if d is None else d.index for d in dims] for dims in dims_of(built)]


@pytest.mark.parametrize("symbolic", [True, False])
def test_rows_columns_and_the_inner_dim_of_a_matmul(symbolic: bool) -> None:
    """All dims are 64 long, so shapes could not tell them apart."""
    built = kernels.mm({"m": 64, "k": 64, "n": 64}, {"mb": 4}, symbolic)
    (m, k), (k2, n), (m2, n2) = dims_of(built)
    assert (m, k, n) == (m2, k2, n2)
    assert len({m, k, n}) == 3
    assert m is not None
    assert k is not None
    assert (m.name, k.name) == ("mb", "in")
    assert (m.reduced_by, k.reduced_by, k.accumulated_by) == ("", "batchmatmul", "add")


def test_broadcast_operands_lack_dims() -> None:
    built = kernels.elementwise((4, 3, 64), {}, True, absent=((), (0,), (2,)), name="where3")
    assert indices(built) == [[0, 1, 2], [1, 2], [0, 1], [0, 1, 2]]


def test_dims_of_extent_one_are_told_apart_by_their_place() -> None:
    built = kernels.elementwise((1, 1, 64), {}, True, absent=((), ()), name="add")
    assert indices(built) == [[0, 1, 2]] * 3 or indices(built)[0] == indices(built)[2]
    assert all(len(set(row)) == 3 for row in indices(built))


def test_intermediates_in_lx_link_a_reduction_to_its_argument() -> None:
    """max and sum reduce columns; the sum reads the result of exp in LX."""
    built = kernels.softmax((8, 128), {"mb": 2}, True)
    x, y = dims_of(built)
    assert x == y
    rows, columns = x
    assert rows is not None
    assert columns is not None
    assert (rows.reduced_by, columns.reduced_by, columns.accumulated_by) == ("", "max", "")


def test_a_reduction_that_only_sees_an_intermediate() -> None:
    """y = Σ |x| over rows, |x| in LX: the argument itself is never reduced."""
    maker = Maker()
    x = maker.arg(Arg(IN, (8, 64)))
    y = maker.arg(Arg(OUT, (1, 64)))
    lx = kernels.in_lx(0)
    maker.builder.add(pointwise("abs", (8, 64), [x], lx))
    maker.builder.add(reduction("sum", (8, 64), (0,), lx, y))
    rows = dims_of(maker.done())[0][0]
    assert rows is not None
    assert rows.reduced_by == "sumnonstick"
    assert rows.accumulated_by == "", "only kernels of one operation accumulate"


def test_the_product_of_a_matmul_in_the_pool() -> None:
    built = kernels.mm_chain({"m": 8, "k": 64, "n": 64}, {"mb": 2}, False)
    assert indices(built) == [[0, 1], [1, 2], [2], [0, 2]]


def test_a_kernels_own_loop_walks_the_same_dims() -> None:
    built = kernels.looped((8, 128), {}, True, 4)
    assert indices(built) == [[0, 1]] * 3
    assert all(dim is not None and not dim.fixed for dim in dims_of(built)[0])


def _fixed(built: Built, arg: int, host_dim: int) -> str:
    dim = dims_of(built)[arg][host_dim]
    assert dim is not None
    return dim.fixed


def test_shifted_reads_fix_a_dim() -> None:
    """y[r] = x[r + 1]: a tile would need its neighbour's first row."""
    maker = Maker()
    x, y = maker.arg(Arg(IN, (8, 64))), maker.arg(Arg(OUT, (8, 64)))
    source = replace(x, base=maker.builder.arguments[0].at(128), gap={"mb": 1})
    maker.builder.add(pointwise("abs", (7, 64), [source], replace(y, gap={"mb": 1})))
    built = maker.done()
    assert "start at different places" in _fixed(built, 0, 0)
    assert _fixed(built, 0, 1) == ""


def test_a_recurrence_in_a_loop_fixes_its_dim() -> None:
    """y[r + 1] = y[r] + x[r + 1], row by row."""
    maker = Maker()
    for role in (IN, OUT):
        maker.arg(Arg(role, (8, 64)))
    x, y = maker.builder.arguments
    gap = {"mb": 7}
    with maker.builder.loop(7) as loop:
        before = HostOperand(y.at(0, {loop: 128}), gap=gap)
        step = HostOperand(x.at(128, {loop: 128}), gap=gap)
        after = HostOperand(y.at(128, {loop: 128}), gap=gap)
        maker.builder.add(pointwise("add", (1, 64), [before, step], after))
    assert "start at different places" in _fixed(maker.done(), 0, 0)


def test_halves_of_a_tensor_fix_the_dim_they_divide() -> None:
    """y = x[:, :64] + x[:, 64:]: columns belong together in pairs."""
    maker = Maker()
    x, y = maker.arg(Arg(IN, (8, 128))), maker.arg(Arg(OUT, (8, 64)))
    half = replace(x, base=maker.builder.arguments[0].at(8 * 128))
    maker.builder.add(pointwise("add", (8, 64), [x, half], y))
    built = maker.done()
    assert "start at different places" in _fixed(built, 0, 1)
    assert _fixed(built, 0, 0) == ""


def _rows(
    operand: HostOperand, buffer: BundleBuffer, first: int, count: int, total: int
) -> HostOperand:
    """``count`` rows of one stick from row ``first`` of a tensor of ``total`` rows."""
    return replace(operand, base=buffer.at(first * 128), gap={"mb": total - count})


def test_a_shift_through_a_scratchpad_fixes_the_rows() -> None:
    """y[:7] = x[1:], by way of LX: each half of the way looks innocent."""
    maker = Maker()
    x, y = maker.arg(Arg(IN, (8, 64))), maker.arg(Arg(OUT, (8, 64)))
    ours, theirs = maker.builder.arguments
    lx = kernels.in_lx(0)
    maker.builder.add(pointwise("abs", (7, 64), [_rows(x, ours, 1, 7, 8)], lx))
    maker.builder.add(pointwise("abs", (7, 64), [lx], _rows(y, theirs, 0, 7, 8)))
    assert _fixed(maker.done(), 0, 0) != ""


@pytest.mark.parametrize("symbolic", [True, False])
def test_an_order_turned_round_through_a_scratchpad_fixes_the_rows(symbolic: bool) -> None:
    """y[7 - i] = x[i], row by row: both are walked whole, but against each other."""
    maker = Maker(symbolic)
    x, y = maker.arg(Arg(IN, (8, 64))), maker.arg(Arg(OUT, (8, 64)))
    ours, theirs = maker.builder.arguments
    lx = kernels.in_lx(0)
    with maker.builder.loop(8) as loop:
        row = HostOperand(ours.at(0, {loop: 128}), gap={"mb": 7})
        back = HostOperand(theirs.at(7 * 128, {loop: -128}), gap={"mb": 7})
        maker.builder.add(pointwise("abs", (1, 64), [replace(x, base=row.base, gap=row.gap)], lx))
        maker.builder.add(pointwise("abs", (1, 64), [lx], replace(y, base=back.base, gap=back.gap)))
    built = maker.done()
    assert "see an intermediate differently" in _fixed(built, 0, 0)
    assert "see an intermediate differently" in _fixed(built, 1, 0)


def test_halves_exchanged_in_the_pool_fix_the_rows() -> None:
    """t = x; y[:4] = t[4:], y[4:] = t[:4]."""
    maker = Maker()
    x, y = maker.arg(Arg(IN, (8, 64))), maker.arg(Arg(OUT, (8, 64)))
    t = maker.builder.temporary(8 * 128)
    theirs = maker.builder.arguments[1]
    maker.builder.add(pointwise("abs", (8, 64), [x], HostOperand(t.at())))
    for first in (0, 4):
        half = HostOperand(t.at((4 - first) * 128), gap={"mb": 4})
        maker.builder.add(pointwise("abs", (4, 64), [half], _rows(y, theirs, first, 4, 8)))
    assert "differently" in _fixed(maker.done(), 0, 0)


def test_cores_that_read_each_others_rows_fix_them() -> None:
    """The second execute gives its cores the slices the other way round."""
    maker = Maker()
    x, y = maker.arg(Arg(IN, (8, 64))), maker.arg(Arg(OUT, (8, 64)))
    lx = kernels.in_lx(0)
    maker.builder.add(pointwise("abs", (8, 64), [x], lx, {"mb": 2}))
    maker.builder.add(pointwise("abs", (8, 64), [lx], y, {"mb": 2}))
    built = maker.done()
    name = "sdsc_1.json"
    op = built.bundle.operations[name]
    turned = replace(
        op,
        core_slices=op.core_slices[::-1],
        outputs=tuple(replace(t, starts=t.starts[::-1]) for t in op.outputs),
    )
    operations = {**built.bundle.operations, name: turned}
    built.bundle.__dict__["operations"] = operations
    assert "differently" in _fixed(built, 0, 0)


def test_a_first_row_of_its_own_fixes_the_rows() -> None:
    """y[0] = |x[0]|, y[1:] = exp(x[1:]): a tile's first row is not the tensor's."""
    maker = Maker()
    x, y = maker.arg(Arg(IN, (8, 64))), maker.arg(Arg(OUT, (8, 64)))
    ours, theirs = maker.builder.arguments
    for name, first, count in (("abs", 0, 1), ("exp", 1, 7)):
        source = _rows(x, ours, first, count, 8)
        target = _rows(y, theirs, first, count, 8)
        maker.builder.add(pointwise(name, (count, 64), [source], target))
    built = maker.done()
    assert "walks only a part" in _fixed(built, 0, 0)
    assert _fixed(built, 0, 1) == ""


def test_a_diagonal_of_blocks_fixes_both_dims() -> None:
    """Rows and columns are both walked whole, but not all pairs of them."""
    maker = Maker()
    x, y = maker.arg(Arg(IN, (8, 128))), maker.arg(Arg(OUT, (8, 128)))
    for block in range(2):
        at = block * (4 + 8) * 128
        source, target = (
            replace(o, base=b.at(at), gap={"mb": 4})
            for o, b in zip((x, y), maker.builder.arguments, strict=True)
        )
        maker.builder.add(pointwise("abs", (4, 64), [source], target))
    built = maker.done()
    assert all("only a part" in _fixed(built, 0, host_dim) for host_dim in (0, 1))


@pytest.mark.parametrize("symbolic", [True, False])
def test_an_unrolled_loop_leaves_no_part_out(symbolic: bool) -> None:
    """Baked bundles have one execute per iteration; together they walk everything."""
    built = kernels.looped((8, 128), {"mb": 2}, symbolic, 4)
    assert all(dim is not None and not dim.fixed for row in dims_of(built) for dim in row)


def test_a_matrix_added_to_its_transpose_walks_two_dims_as_one() -> None:
    maker = Maker()
    x, y = maker.arg(Arg(IN, (64, 64))), maker.arg(Arg(OUT, (64, 64)))
    turned = HostOperand(maker.builder.temporary(64 * 128).at())
    maker.builder.add(restickify((64, 64), x, turned))
    maker.builder.add(pointwise("add", (64, 64), [x, turned], y))
    fixed = [_fixed(maker.done(), 0, h) for h in (0, 1)]
    assert fixed == ["the kernel walks two dims of argument 0 as one"] * 2


def test_masked_dims_are_fixed() -> None:
    """The kernel masks the padding of its last stick."""
    built = kernels.reduce((4, 100), {}, True, (1,))
    assert "masks part of it" in _fixed(built, 0, 1)


def test_windowed_dims_are_fixed_but_not_the_batch() -> None:
    maker = Maker()
    shape, windows = (2, 8, 8, 64), Windows((2, 2), (2, 2))
    x = maker.arg(Arg(IN, shape))
    y = maker.arg(Arg(OUT, (2, 4, 4, 64)))
    maker.builder.add(pool("maxpoolfwd", shape, windows, x, y))
    built = maker.done()
    batch, height, width, channels = dims_of(built)[1]
    for dim in (height, width):
        assert dim is not None
        assert "window" in dim.fixed
    for dim in (batch, channels):
        assert dim is not None
        assert dim.fixed == ""


def test_rows_of_a_table_are_nobodys_dim() -> None:
    built = kernels.gather(32, 16)
    index, table, out = indices(built)
    assert table == [None, 1]
    assert (index, out) == ([0], [0, 1])


def test_one_matrix_bound_twice_keeps_its_dims_apart() -> None:
    maker = Maker()
    a, b = maker.arg(Arg(IN, (64, 64))), maker.arg(Arg(IN, (64, 64)))
    c = maker.arg(Arg(OUT, (64, 64)))
    maker.builder.add(matmul(64, 64, 64, a, b, c))
    assert all(dim is not None and not dim.fixed for row in dims_of(maker.done()) for dim in row)
