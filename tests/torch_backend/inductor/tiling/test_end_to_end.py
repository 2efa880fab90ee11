"""Tiled programs, run by an interpreter of the loops, have the bits of untiled ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from torch._inductor import ir

from spyre.torch_backend.inductor.base.layouts import FixedTiledLayout, tile_layout
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint
from spyre.torch_backend.inductor.hooks.scheduling import CountedLoopSchedulerNode
from spyre.torch_backend.inductor.tiling.coarse_tile import coarse_tile
from tests.examples import examples
from tests.torch_backend.inductor.tiling.toy_backend import compiled


def untiled(function, *arguments):
    return compiled(function, *arguments, tile=lambda operations, names: None)


def assert_same(function, *arguments, loops):
    """Equal bits, sizes and strides; ``loops``: counts of the outermost loops."""
    expected = untiled(function, *[a.clone() for a in arguments]).result
    found = compiled(function, *arguments)
    counts = [int(n.loop_count) for n in found.nodes if isinstance(n, CountedLoopSchedulerNode)]
    assert counts == loops
    pairs = [(found.result, expected)]
    if isinstance(expected, tuple):
        pairs = list(zip(found.result, expected, strict=True))
    for one, other in pairs:
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
    return found


def written_layout(operation):
    """Return the layout of an operation's result; in a full buffer: of the slice it writes."""
    layout = operation.layout
    if not isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return layout
    full = layout.real_layout()
    ranges = operation.data.get_pointwise_size()
    if list(ranges) == list(full.size):
        return full
    return tile_layout(full, ranges)


def test_the_small_example_of_the_document():
    """y=a+b; z=y*c over [1024, 4096], A in 2, B in 4: attributes, sizes and layouts."""
    declare_tensor_dim("A", 1024)
    declare_tensor_dim("B", 4096)
    arguments = [torch.randn(1024, 4096).half() for _ in range(3)]
    for tensor in arguments:
        name_tensor_dims(tensor, ["A", "B"])

    def function(a, b, c):
        with spyre_hint(slices={"A": 2}), spyre_hint(slices={"B": 4}):
            y = a + b
            z = y * c
        return z

    found = assert_same(function, *arguments, loops=[2])
    full, y, z = found.operations
    for op in (y, z):
        assert op.loop_group_id == (0, 0)
        assert op.loop_count == [2, 4]
        assert op.loop_tiled_dims == [[0], [1]]
        assert list(op.data.ranges) == [512, 1024]
    assert list(y.layout.size) == [512, 1024]
    assert list(y.layout.stride) == [1024, 1]
    assert y.layout.device_layout.device_size == (16, 512, 64)
    assert y.layout.per_tile_fixed
    written = written_layout(z)
    assert written.device_layout.device_size == (16, 512, 64)
    assert z.layout.real_layout().device_layout.device_size == (64, 1024, 64)
    assert not written.per_tile_fixed
    assert list(full.layout.size) == [1024, 4096]
    assert "ops.load(buf0, i1 + 1024 * i0)" in found.texts[1] + found.texts[2]


def test_memory_is_allocated_in_the_sizes_that_are_read(abc):
    def function(a, b, c):
        with spyre_hint({"A": 2, "B": 4}):
            y = a + b
            return y * c

    (code,) = assert_same(function, *abc, loops=[2]).code
    allocations = [
        line.split("(", 1)[1] for line in code.splitlines() if " = empty_strided" in line
    ]
    assert [a[: a.index("torch")] for a in allocations] == [
        "(64, 256), (256, 1), ",
        "(32, 64), (64, 1), ",
    ]


def test_softmax(named):
    def function(x):
        with spyre_hint({"A": 4}):
            return torch.softmax(x * 2, -1)

    assert_same(function, named("AB"), loops=[4])


def test_rms_norm_with_a_weight_without_name(named):
    def function(x, weight):
        with spyre_hint({"A": 4}):
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    assert_same(function, named("AB"), torch.randn(256), loops=[4])


def test_two_groups_of_different_dims(abc):
    def function(a, b, c):
        with spyre_hint({"A": 2}):
            y = a + b
            z = y * c
        with spyre_hint({"B": 4}):
            u = z * b
            return u + y

    assert_same(function, *abc, loops=[2, 4])


def test_operations_between_the_levels(abc):
    def function(a, b, c):
        with spyre_hint({"A": 2}):
            y = a + b
            with spyre_hint({"B": 4}):
                z = y * c
                u = z + 1
            return u - y

    found = assert_same(function, *abc, loops=[2])
    paths = [op.loop_group_id for op in found.operations if hasattr(op, "loop_group_id")]
    assert paths == [(0,), (0,), (0, 0), (0, 0), (0,)]


def test_sibling_inner_loops(abc):
    def function(a, b, c):
        with spyre_hint({"A": 2}):
            with spyre_hint({"B": 4}):
                y = a + b
            with spyre_hint({"B": 2}):
                return y * c

    found = assert_same(function, *abc, loops=[2])
    paths = [op.loop_group_id for op in found.operations if hasattr(op, "loop_group_id")]
    assert paths == [(0, 0), (0, 1)]


def test_operations_without_a_dim_do_not_follow_its_loop(named):
    def function(a, v, w):
        with spyre_hint({"A": 2, "B": 4}):
            return (a + v) * (v * 3) + w * 2

    found = assert_same(function, named("AB"), named("B"), named("A1"), loops=[2])
    assert [[], [0]] in [getattr(op, "loop_tiled_dims", None) for op in found.operations]
    assert [[0], []] in [getattr(op, "loop_tiled_dims", None) for op in found.operations]


def test_transposed_operations_tile_other_places(named):
    def function(a, b):
        with spyre_hint({"A": 2}):
            y = a + b
            return y.t() * b.t()

    found = assert_same(function, named("AB"), named("AB"), loops=[2])
    dims = [op.loop_tiled_dims for op in found.operations if hasattr(op, "loop_tiled_dims")]
    assert dims == [[[0]], [[1]]]


def test_reductions_used_inside_and_outside(named):
    def function(a, b):
        with spyre_hint({"A": 2}):
            y = a + b
            total = y.sum(-1)
            return (y - y.amax(-1, keepdim=True)) * total[:, None], total

    assert_same(function, named("AB"), named("AB"), loops=[2])


def test_changing_an_input_tile_by_tile(named):
    def function(a, b):
        with spyre_hint({"A": 4}):
            a.add_(b)
            return a * 2

    a, b = named("AB"), named("AB")
    expected = a + b
    assert torch.equal(compiled(function, a, b).result, expected * 2)
    assert torch.equal(a, expected)


def test_gathered_rows_of_a_table(named):
    def function(table, indices, b):
        with spyre_hint({"A": 2}):
            return table[indices] + b

    indices = torch.arange(63, -1, -1)
    name_tensor_dims(indices, ["A"])
    assert_same(function, named("AB"), indices, named("AB"), loops=[2])


def test_parameters_of_modules_have_names(named):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(256))
            name_tensor_dims(self.weight, ["B"])

        def forward(self, x):
            with spyre_hint({"B": 4}):
                return x * self.weight

    module = Scale().requires_grad_(False)
    found = compiled(lambda x: module(x), torch.randn(64, 256))
    assert torch.equal(found.result, module(torch.zeros(64, 256)) + found.result)
    assert any(isinstance(n, CountedLoopSchedulerNode) for n in found.nodes)


def test_backward_graphs_are_tiled_too(named):
    def function(a, b):
        with spyre_hint({"A": 4}):
            return torch.exp(a * b)

    a, b = named("AB").requires_grad_(), named("AB")
    found = compiled(function, a, b)
    forward = found.nodes
    found.result.sum().backward()
    assert found.nodes is not forward
    assert any(isinstance(n, CountedLoopSchedulerNode) for n in found.nodes)
    assert torch.allclose(a.grad, torch.exp(a * b) * b)


def test_what_stands_between_splits_a_block_into_two_loops(abc):
    """Here the interruption is a call to the host, which no loop can hold."""

    def function(a, b, c):
        with spyre_hint({"A": 2}):
            y = a + b
            indices = torch.sort(y, -1)[0]
            return indices * c

    assert_same(function, *abc, loops=[2, 2])


def flat_two_dims(operations, names):
    ops = list(operations)
    coarse_tile(operations, [(ops, 4, [0, 1])])


def test_a_level_of_several_dims_visits_all_tiles(abc):
    def function(a, b, c):
        return (a + b) * c

    found = compiled(function, *abc, tile=flat_two_dims)
    assert torch.equal(found.result, function(*abc))
    op = found.operations[-1]
    assert (op.loop_group_id, op.loop_count, op.loop_tiled_dims) == ((0, 0), [4, 4], [[0], [1]])


def test_one_dim_split_by_two_loops(abc):
    def function(a, b, c):
        return (a + b) * c

    def tile(operations, names):
        coarse_tile(operations, [(list(operations), [(4, [0]), (2, [0])])])

    found = compiled(function, *abc, tile=tile)
    assert torch.equal(found.result, function(*abc))
    assert list(found.operations[-1].data.ranges) == [8, 256]


OPERATIONS = (
    lambda x, y: x + y,
    lambda x, y: x * y - 1,
    lambda x, y: x - y.amax(-1, keepdim=True),
    lambda x, y: torch.maximum(x, y) * x.sum(-1)[:, None],
    lambda x, y: (x.t() + y.t()).t(),
)


@settings(
    examples(12),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, len(OPERATIONS) - 1),
            st.integers(0, 7),
            st.integers(0, 7),
            st.integers(0, 2),
        ),
        min_size=2,
        max_size=6,
    ),
    outputs=st.sets(st.integers(0, 7), min_size=1, max_size=3),
    count=st.sampled_from([2, 8]),
)
def test_random_programs(abc, steps, outputs, count):
    """Operations of random earlier values, in no block, in one, or partly in two."""

    def function(a, b, c):
        values = [a, b, c]
        for operation, first, second, depth in steps:
            x, y = values[first % len(values)], values[second % len(values)]
            if depth == 0:
                values.append(OPERATIONS[operation](x, y))
                continue
            with spyre_hint({"A": 2}):
                if depth == 1:
                    values.append(OPERATIONS[operation](x, y))
                else:
                    z = OPERATIONS[operation](x, y)
                    with spyre_hint({"B": count}):
                        values.append(z * y)
        return tuple(values[n % len(values)] + 0 for n in sorted(outputs))

    expected = untiled(function, *abc).result
    found = compiled(function, *abc).result
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_device_layouts_of_all_buffers_hold_their_elements(named, dtype):
    def function(a, b):
        with spyre_hint({"A": 4, "B": 2}):
            y = a + b
            return y, y * 2

    found = assert_same(function, named("AB", dtype), named("AB", dtype), loops=[4])
    for op in found.operations:
        layout = written_layout(op)
        assert isinstance(layout, FixedTiledLayout)
        sizes = layout.device_layout.device_size
        assert sizes[0] * sizes[1] * sizes[2] == layout.size[0] * layout.size[1]
