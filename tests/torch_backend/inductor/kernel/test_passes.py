"""Passes on the operations of kernels: padding, constants, and how all of them are shown."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from spyre.torch_backend.inductor.kernel.passes import (
    NO_LOOPS,
    KernelLowering,
    KernelOperations,
    LoopPath,
    dedup_and_promote_constants,
    insert_bmm_padding,
    share_equal_results,
)
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.operations import scalar_view
from tests.torch_backend.inductor.compiled_code import compiled


def products(a, b, w):
    return (a @ w) * 2 + (b @ w) * 2


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Dumped texts of `products` with K of 100, by name of the file."""
    monkeypatch.setenv("SPYRE_DUMP_PASSES", str(tmp_path))
    torch.manual_seed(0)
    inputs = [torch.randn(*n).half().to("spyre") for n in ((8, 100), (8, 100), (100, 64))]
    found, _ = compiled(products, *inputs)
    assert torch.equal(found.cpu(), products(*inputs).cpu())
    return {path.name: path.read_text() for path in tmp_path.rglob("*.txt")}


PASSES = [
    *("remove_dead_code", "propagate_layouts", "restickify"),
    *("propagate_named_dims", "assign_dim_hints", "coarse_tile"),
    *("remove_unread", "insert_bmm_padding", "dedup_and_promote_constants"),
    "share_equal_results",
    *("span_reduction", "cost_model_matmul_division", "work_distribution"),
    *("lx_division", "scratchpad_planning", "hbm_pool_planning"),
]


def test_every_pass_is_shown_in_its_order(texts):
    shown = [name[3:].split(".")[0] for name in sorted(texts) if name.endswith(".before.txt")]
    assert shown == PASSES


def of(texts, name):
    return [
        next(t for file, t in texts.items() if f"-{name}.{when}" in file)
        for when in ("before", "after")
    ]


def test_padding_is_shown(texts):
    before, after = of(texts, "insert_bmm_padding")
    assert "[8, 128]" not in before
    assert "lanes from 100 on as 0" not in before
    assert after.count("lanes from 100 on as 0") == 2, "one per left factor"
    written = [line for line in after.splitlines() if "[100, 64]@float16)" in line]
    assert len(written) == 1, "the right factor is shared"


def test_constants_are_shown(texts):
    before, after = of(texts, "dedup_and_promote_constants")
    assert before.count("= 2.0, float16, argument") == 2
    assert after.count("= 2.0, float16, argument") == 1


def test_division_and_memory_are_shown(texts):
    before, after = of(texts, "work_distribution")
    assert before != after
    assert "'lx': " not in of(texts, "scratchpad_planning")[0]
    assert "'lx': " in of(texts, "scratchpad_planning")[1]


def kernel(make):
    low = KernelLowering()
    make(low)
    specs = tuple(low.builder.specs)
    return KernelOperations(low, specs, (NO_LOOPS,) * len(specs))


def multiplied(low):
    left, right = (low.builder.scratch(n, "float16", 1) for n in ((8, 100), (100, 64)))
    low.matmul(left, right)
    low.matmul(left, right)


def test_nothing_is_left_to_pad():
    once = insert_bmm_padding(kernel(multiplied))
    products = [spec for spec in once.specs if spec.kind is OpKind.MATMUL]
    assert len(products) == 2
    assert all(spec.inputs[0].sizes == (8, 128) for spec in products)
    assert all(spec.inputs[1].sizes == (128, 64) for spec in products)
    assert insert_bmm_padding(once) == once
    assert len(once.specs) == 2 + 1 + 2, "factors are padded once"


def test_factors_that_change_are_padded_again():
    def make(low):
        left, right = (low.builder.scratch(n, "float16", 1) for n in ((8, 100), (100, 64)))
        low.matmul(left, right)
        low.builder.output_into(low.copy(left), left)
        low.matmul(left, right)

    assert len(insert_bmm_padding(kernel(make)).specs) == 2 + 1 + (1 + 2) + 1


def test_padding_is_in_the_loops_of_its_matmul():
    found = kernel(multiplied)
    paths = (LoopPath((0,), (2,), (0,), (None,)), LoopPath((1,), (2,), (2,), (None,)))
    padded = insert_bmm_padding(KernelOperations(found.builder, found.specs, paths))
    assert [path.numbers for path in padded.paths] == [(0,)] * 4 + [(1,)] * 4
    left, *right, _ = padded.paths[:4]
    assert (left.dims, [path.dims for path in right]) == ((0,), [(None,)] * 2)
    left, *right, _ = padded.paths[4:]
    assert (left.dims, [path.dims for path in right]) == ((1,), [(0,)] * 2)


def test_equal_numbers_are_one():
    def make(low):
        x = low.builder.scratch((64,), "float16", 0)
        for number, dtype in ((2.0, "float16"), (2.0, "float16"), (0.0, "float16")):
            low.pointwise("mul", x, low.constant(number, dtype))
        for number in (-0.0, float("nan"), float("nan")):
            low.pointwise("add", x, low.constant(number, "float16"))

    found = dedup_and_promote_constants(kernel(make))
    read = [spec.inputs[1].region for spec in found.specs]
    assert read[0] == read[1]
    assert read[4] == read[5]
    assert len(set(read)) == 4, "zeros of both signs are two numbers"
    assert dedup_and_promote_constants(found) == found


def shared_names(make):
    """Names of the operations that stay, and the input regions of the last one."""
    found = share_equal_results(kernel(make))
    return [spec.name for spec in found.specs], [v.region for v in found.specs[-1].inputs]


def test_an_operation_that_repeats_an_earlier_one_is_removed():
    def make(low):
        x = low.builder.scratch((64,), "float16", 0)
        one, two = low.pointwise("exp", x), low.pointwise("exp", x)
        low.pointwise("add", low.pointwise("neg", one), low.pointwise("neg", two))

    names, read = shared_names(make)
    assert names == ["exp", "neg", "add"]
    assert read[0] == read[1]


def test_an_operation_stays_when_its_operand_was_written_in_between():
    def make(low):
        x, y = (low.builder.scratch((64,), "float16", 0) for _ in range(2))
        one = low.pointwise("exp", x)
        low.builder.output_into(low.pointwise("neg", y), x)
        low.pointwise("add", one, low.pointwise("exp", x))

    assert shared_names(make)[0] == ["exp", "neg", "exp", "add"]


def test_operations_whose_arguments_may_share_memory_stay():
    def make(low):
        x, y = (low.builder.argument(scalar_view("float16"), "float16", True) for _ in range(2))
        one = low.pointwise("exp", x)
        low.builder.output_into(low.pointwise("neg", one), y)
        low.pointwise("add", one, low.pointwise("exp", x))

    assert shared_names(make)[0] == ["exp", "neg", "exp", "add"]


def test_operations_in_loops_and_those_that_loops_read_stay():
    def make(low):
        x = low.builder.scratch((64,), "float16", 0)
        one, two = low.pointwise("exp", x), low.pointwise("exp", x)
        low.pointwise("add", one, two)

    found, loop = kernel(make), LoopPath((0,), (2,), (0,), (None,))
    for paths in ((NO_LOOPS, NO_LOOPS, loop), (loop, loop, NO_LOOPS)):
        assert len(share_equal_results(replace(found, paths=paths)).specs) == 3


def test_sine_and_cosine_of_one_tensor_share_its_reduction():
    torch.manual_seed(0)
    x = torch.randn(4, 64).to("spyre")
    found, both = compiled(lambda x: x.sin() - x.cos(), x)
    assert torch.equal(found, x.sin() - x.cos())
    single = [compiled(call, x)[1] for call in (torch.sin, torch.cos)]
    executes = [sum(len(kernel.bundle.built) for kernel in kernels) for kernels in (both, *single)]
    assert executes[0] < 0.7 * sum(executes[1:])
