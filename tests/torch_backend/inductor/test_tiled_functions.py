"""Functions with tiling hints: the document's example, bits, and savings by tiling."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from torch.nn import functional as F

from spyre.torch_backend.inductor import config
from spyre.torch_backend.inductor.bundles.generation import generate_bundle
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from spyre.torch_backend.inductor.bundles.op_spec_form import LoopSpec, spec_text
from spyre.torch_backend.inductor.hints import spyre_hint
from tests.torch_backend.inductor.bundles.spec_cases import tiled_example
from tests.torch_backend.inductor.compiled_code import compiled, named, run_clean


def example(a, b, c):
    with spyre_hint(slices={"A": 2}), spyre_hint(slices={"B": 4}):
        y = a + b
        return y * c


@pytest.fixture(scope="module")
def compiled_example():
    """Inputs, result and kernel of the document's example."""
    torch.manual_seed(0)
    inputs = [named(torch.randn(1024, 4096).half(), "A", "B") for _ in range(3)]
    found, (kernel,) = compiled(example, *inputs)
    return inputs, found, kernel


def test_the_documents_example(compiled_example):
    inputs, found, kernel = compiled_example
    text = spec_text(kernel.specs)
    assert re.sub(r"'hbm': \d+", "'hbm': 0", text) == spec_text(tiled_example())
    a, b, c = inputs
    assert torch.equal(found.cpu(), ((a + b) * c).cpu())
    whole, _ = compiled(chain, *inputs)
    assert torch.equal(found.cpu(), whole.cpu())


def test_the_documents_example_unrolled(compiled_example):
    inputs, found, kernel = compiled_example
    assert len(generate_bundle("loops", kernel.kernel).sdscs) == 2
    unrolled = InductorKernel("unrolled", kernel.kernel, unrolled=True)
    assert len(unrolled.bundle.sdscs) == 16
    result = torch.zeros_like(found)
    unrolled.run(*inputs, result)
    assert torch.equal(result.cpu(), found.cpu())


def test_the_intermediate_result_of_the_example_is_not_in_hbm(compiled_example, tmp_path):
    *_, kernel = compiled_example
    counters = run_clean(kernel, tmp_path).counters
    size_bytes = 1024 * 4096 * 2
    assert counters.hbm_read_bytes == 3 * size_bytes
    assert counters.hbm_written_bytes == size_bytes
    assert len(kernel.memory.arguments) == 4
    assert kernel.memory.pool_bytes == 0


def chain(a, b, c):
    return (a + b) * c


def both(a, b):
    y = a + b
    return y, y * b


def normalised(x, w):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w


FUNCTIONS = {
    "chain": (chain, [("A", "B")] * 3),
    "softmax": (lambda x: torch.softmax(x, -1), [("A", "B")]),
    "normalised": (normalised, [("A", "B"), ("B",)]),
    "rms_norm": (lambda x, w: F.rms_norm(x, (512,), w), [("A", "B"), ("B",)]),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (512,), w, b),
        [("A", "B"), ("B",), ("B",)],
    ),
    "used inside and outside": (both, [("A", "B")] * 2),
    "reduced": (lambda x: (x * 2).sum(-1), [("A", "B")]),
    "gelu": (lambda x: F.gelu(x), [("A", "B")]),
}
EXTENTS = {"A": 256, "B": 512}


def function_inputs(dims):
    torch.manual_seed(0)
    return [named(torch.randn([EXTENTS[d] for d in row]).half(), *row) for row in dims]


ALONG_BOTH = ("chain", "used inside and outside", "gelu")
"""Functions that reduce nothing."""
TILINGS = [
    *((name, {"A": 4}) for name in FUNCTIONS),
    *((name, {"A": 2, "B": 2}) for name in ALONG_BOTH),
]


@cache
def untiled(name):
    """Results of the function on its inputs, without tiles."""
    function, dims = FUNCTIONS[name]
    return torch.utils._pytree.tree_leaves(compiled(function, *function_inputs(dims))[0])


@pytest.mark.parametrize(("name", "slices"), TILINGS, ids=str)
def test_tiles_have_the_same_bits(name, slices):
    function, dims = FUNCTIONS[name]

    def tiled(*args):
        with spyre_hint(slices=slices):
            return function(*args)

    found, kernels = compiled(tiled, *function_inputs(dims))
    assert any(isinstance(spec, LoopSpec) for kernel in kernels for spec in kernel.specs)
    for x, y in zip(torch.utils._pytree.tree_leaves(found), untiled(name), strict=True):
        assert torch.equal(x.cpu(), y.cpu())


PAYING = ("chain", "softmax", "normalised")


@pytest.mark.parametrize("name", PAYING)
def test_tiling_pays(name, tmp_path, monkeypatch):
    function, dims = FUNCTIONS[name]
    monkeypatch.setitem(EXTENTS, "A", 1024)
    monkeypatch.setitem(EXTENTS, "B", 1024)

    def tiled(*args):
        with spyre_hint(slices={"A": 8}):
            return function(*args)

    inputs = function_inputs(dims)
    _, (kernel,) = compiled(tiled, *inputs)
    with config.patch(lx_planning=False):
        _, (whole,) = compiled(function, *inputs)
    counted = [
        run_clean(k, tmp_path / str(number)).counters for number, k in enumerate((kernel, whole))
    ]
    tiled_bytes, whole_bytes = (c.hbm_read_bytes + c.hbm_written_bytes for c in counted)
    assert tiled_bytes <= 0.7 * whole_bytes


def in_tiles(function, slices):
    def tiled(*args):
        with spyre_hint(slices=slices):
            return function(*args)

    return tiled


MATMULS = {
    "rows": {"M": 4},
    "columns": {"N": 4},
    "rows and columns": {"M": 2, "N": 2},
    "inner": {"K": 2},
    "all": {"M": 2, "N": 2, "K": 2},
}


def matmul_inputs(inner):
    torch.manual_seed(0)
    a = named(torch.randn(256, inner).half(), "M", "K")
    return a, named(torch.randn(inner, 256).half(), "K", "N")


@cache
def untiled_matmul(inner):
    return compiled(lambda a, b: torch.mm(a, b) + 1, *matmul_inputs(inner))[0]


@pytest.mark.parametrize("inner", [128, 192])
@pytest.mark.parametrize("name", MATMULS)
def test_matmuls_in_tiles(name, inner):
    slices = {**MATMULS[name], **({"K": 3} if inner == 192 and "K" in MATMULS[name] else {})}
    a, b = matmul_inputs(inner)

    def function(a, b):
        return in_tiles(torch.mm, slices)(a, b) + 1

    found, kernels = compiled(function, a, b)
    assert any(isinstance(spec, LoopSpec) for kernel in kernels for spec in kernel.specs)
    expected = a.cpu().float() @ b.cpu().float() + 1
    if "K" not in slices:
        assert torch.equal(found.cpu(), untiled_matmul(inner).cpu())
    assert torch.allclose(found.cpu().float(), expected, atol=0.2, rtol=2**-7)


REDUCED = {
    "sum": (lambda x: x.sum(-1), {"B": 4}),
    "sum of rows": (lambda x: x.sum(0), {"A": 4}),
    "mean": (lambda x: x.mean(0), {"A": 4}),
    "both dims": (lambda x: x.sum(1), {"A": 2, "B": 4}),
    "amax": (lambda x: x.amax(1), {"B": 2}),
    "product": (lambda x: (x * 0.01 + 1).prod(0), {"A": 2}),
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_over_tiled_dims(name):
    function, slices = REDUCED[name]
    x = named(torch.randn(256, 512).half(), "A", "B")
    found, (kernel,) = compiled(in_tiles(function, slices), x)
    assert any(isinstance(spec, LoopSpec) for spec in kernel.specs)
    expected = function(x.cpu().float())
    assert torch.allclose(found.cpu().float(), expected, atol=0.3, rtol=2**-6)


def test_the_total_of_a_tiled_reduction_is_not_there_inside_the_loop():
    x = named(torch.randn(256, 512).half(), "A", "B")
    with pytest.raises(Exception, match="SPY977"):
        compiled(in_tiles(lambda x: x - x.sum(-1, keepdim=True), {"B": 4}), x)


def heads(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def row_by_row(x, y):
    return x.amax(1), (x + y).sum(0), y.mean(1)


SINGLE = {
    "batches": (lambda x, y: (x + y) * y, ["HAB", "HAB"], {"H": 8}),
    "batches and rows, nested": (lambda x, y: (x + y) * y, ["HAB", "AB"], {"H": 8, "A": 16}),
    "rows, and halves of each": (lambda x, y: (x + y) * y, ["HAB", "B"], {"A": 16, "B": 2}),
    "one dim in two loops": (lambda x, y: (x + y) * y, ["HAB", "HAB"], ({"A": 4}, {"A": 4})),
    "inside and outside": (both, ["HAB", "HAB"], {"H": 8}),
    "transposed": (lambda x, y: (x.transpose(0, 1) + y) * 2, ["HAB", "AHB"], {"H": 8}),
    "softmax": (lambda x: torch.softmax(x, -1), ["HAB"], {"H": 8}),
    "rms_norm": (lambda x, w: F.rms_norm(x, (128,), w), ["HAB", "B"], {"H": 8, "A": 16}),
    "bmm": (lambda x, y: torch.bmm(x, y) * 2, ["HAK", "HKB"], {"H": 8}),
    "rows of a matmul": (lambda x, y: torch.mm(x, y) + 1, ["AK", "KB"], {"A": 16, "B": 2}),
    "heads": (heads, ["HAB", "HAB", "HAB"], {"H": 8}),
}
SINGLE_EXTENTS = {"H": 8, "A": 16, "B": 128, "K": 192}


def single_inputs(dims):
    torch.manual_seed(0)
    return [named(torch.randn([SINGLE_EXTENTS[d] for d in row]).half(), *row) for row in dims]


def nested(function, levels):
    for slices in reversed(levels if isinstance(levels, tuple) else (levels,)):
        function = in_tiles(function, slices)
    return function


@pytest.mark.parametrize("name", SINGLE)
def test_tiles_of_one_element(name, tmp_path):
    function, dims, slices = SINGLE[name]
    inputs = single_inputs(dims)
    found, (kernel,) = compiled(nested(function, slices), *inputs)
    expected, _ = compiled(function, *inputs)
    assert any(isinstance(spec, LoopSpec) for spec in kernel.specs)
    run_clean(kernel, tmp_path)
    for x, y in zip(
        torch.utils._pytree.tree_leaves(found),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    ):
        assert torch.equal(x.cpu(), y.cpu())


def test_reductions_over_tiles_of_one_element():
    x, y = single_inputs(["HAB", "HAB"])
    function = nested(row_by_row, {"H": 8, "A": 16})
    found, (kernel,) = compiled(function, x, y)
    assert any(isinstance(spec, LoopSpec) for spec in kernel.specs)
    biggest, total, mean = (t.cpu() for t in found)
    expected = row_by_row(x.cpu().float(), y.cpu().float())
    assert torch.equal(biggest.float(), expected[0])
    assert torch.allclose(total.float(), expected[1], atol=0.1)
    assert torch.allclose(mean.float(), expected[2], atol=0.01)


def test_tiles_of_one_element_unrolled():
    inputs = single_inputs(["HAB", "AB"])
    function, _, slices = SINGLE["batches and rows, nested"]
    found, (kernel,) = compiled(nested(function, slices), *inputs)
    unrolled = InductorKernel("unrolled", kernel.kernel, unrolled=True)
    assert len(unrolled.bundle.sdscs) == 8 * 16 * 2
    result = torch.zeros_like(found)
    unrolled.run(*inputs, result)
    assert torch.equal(result.cpu(), found.cpu())


@pytest.mark.parametrize("slices", [{"A": 4}, {"A": 16}])
def test_loops_read_what_was_made_before_them_tile_by_tile(slices):
    x, y = single_inputs(["AB", "AB"])

    def function(x, y):
        before = x + y
        return in_tiles(torch.mul, slices)(before, x)

    found, (kernel,) = compiled(function, x, y)
    assert [type(spec) for spec in kernel.specs[1:]] == [LoopSpec]
    assert torch.equal(found.cpu(), ((x + y) * x).cpu())


def running_sum(x, y):
    return torch.cumsum(x + y, 0) * y


def test_device_programs_stand_between_two_loops():
    x, y = single_inputs(["AB", "AB"])
    with pytest.warns(UserWarning, match="cumsum is several operations") as warned:
        found, (kernel,) = compiled(in_tiles(running_sum, {"A": 4}), x, y)
    ours = [str(w.message) for w in warned if "spyre_hint" in str(w.message)]
    assert len(ours) == 1, ours
    loops = [isinstance(spec, LoopSpec) for spec in kernel.specs]
    assert loops[0]
    assert loops[-1]
    assert not any(loops[1:-1])
    expected, _ = compiled(running_sum, x, y)
    assert torch.equal(found.cpu(), expected.cpu())


def everything(operations):
    return [(list(operations), 4)]


def test_device_programs_are_refused_where_the_caller_names_them():
    x, y = single_inputs(["AB", "AB"])
    with (
        config.patch(coarse_tiling_groups_fn=everything),
        pytest.raises(Exception, match=r"SPY976]: operation buf1 \(cumsum\)"),
    ):
        compiled(running_sum, x, y)
