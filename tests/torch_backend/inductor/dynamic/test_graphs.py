"""Compiled functions whose sizes stay symbols: one compilation by Dynamo, right at every size."""

from __future__ import annotations

import logging

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.nn import functional

import spyre
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle
from spyre.torch_backend.inductor.base.notes import SIZES_FILE, observing
from spyre.torch_backend.inductor.bundles.generation import generate_bundle
from spyre.torch_backend.inductor.bundles.op_spec_form import LoopSpec
from spyre.torch_backend.inductor.dynamic import graph
from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of

SIZES = (72, 9, 131)


@pytest.fixture(autouse=True)
def reasons_are_heard(monkeypatch):
    """Libraries that other tests import silence all loggers there are."""
    logger = logging.getLogger("spyre.compile")
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "propagate", True)


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    counters.clear()
    torch.manual_seed(0)
    with torch.compiler.config.patch(force_disable_caches=True):
        yield
    torch.compiler.reset()


def card(*sizes):
    return torch.randn(*sizes).half().to("spyre")


WEIGHTS = {"up": (128, 64), "down": (64, 128), "scale": (128,)}


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(1)
    return {name: card(*sizes) for name, sizes in WEIGHTS.items()}


def chain(a, w):
    return (a + 1.5) * a


def softmax(a, w):
    return torch.softmax(a, -1)


def layer_norm(a, w):
    return functional.layer_norm(a, (128,), w["scale"])


def product(a, w):
    return a @ w["up"]


def mlp(a, w):
    return functional.gelu(a @ w["up"]) @ w["down"] + a


def sums_rows(a, w):
    return a.sum(0)


def joins_rows(a, w):
    return a @ a.t()


def picks_row_80(a, w):
    return a.roll(-3, 0)[80]


def views_rows_by_twelves(a, w):
    return a.unflatten(0, (-1, 12)) * 2


def counts_rows(a, w):
    return a / a.shape[0], a.shape[0] * 2


def writes(a, w):
    return a.add_(1)


def graphs():
    return counters["stats"]["unique_graphs"]


def kernels(found):
    """Return the kernels among observed objects."""
    return [item for item in found if hasattr(item, "specs")]


def results(function, *args):
    found = function(*args)
    return found if isinstance(found, tuple) else (found,)


def check_at(function, compiled, sizes, *, mark=False, shape=(128,), weights=None):
    """Same results as eager mode at every size; products within the rounding of other tiles."""
    for rows in sizes:
        a = card(rows, *shape)
        if mark:
            torch._dynamo.mark_dynamic(a, 0)
        expected = results(function, a.clone(), weights)
        for found, want in zip(results(compiled, a, weights), expected, strict=True):
            if not isinstance(want, torch.Tensor):
                assert found == want
                continue
            assert found.shape == want.shape
            torch.testing.assert_close(found.cpu(), want.cpu(), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("function", [chain, softmax, layer_norm, product, mlp])
def test_one_bundle_for_any_number_of_rows(function, weights):
    with observing() as found:
        check_at(function, torch.compile(function, dynamic=True), SIZES, weights=weights)
    (kernel,) = kernels(found)
    assert kernel.sizes
    assert graphs() == 1
    assert all(isinstance(spec, LoopSpec) for spec in kernel.specs)
    assert "any number of rows" in kernel.notes[SIZES_FILE]
    if function is product:
        return  # the stride of its loop over one column may be any
    read = generate_bundle(kernel.name, kernel_of(kernel.specs, ["s0"]), kernel.sizes)
    assert (read.module, read.operations) == (kernel.bundle.module, kernel.bundle.operations)


def test_rows_of_several_elements_of_the_first_dim(weights):
    def function(a, w):
        return torch.relu(a.reshape(-1, 128)).view(-1, 3, 128) * 2

    with observing() as found:
        check_at(function, torch.compile(function, dynamic=True), SIZES, shape=(3, 128))
    assert [bool(kernel.sizes) for kernel in kernels(found)] == [True]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (sums_rows, "sum reduces rows"),
        (joins_rows, "different orders"),
        (counts_rows, "no size is that of first dims alone"),
        (writes, "is written"),
    ],
)
def test_what_is_no_function_of_rows_is_made_once_per_size(function, why, caplog, weights):
    with caplog.at_level(logging.INFO, "spyre.compile"):
        check_at(function, torch.compile(function, dynamic=True), SIZES)
    assert graphs() == 1
    assert why in caplog.text
    assert caplog.text.count("compiled for sizes") == len(SIZES)


def attention_block(x, weight):
    """Heads that are views of rows, and are joined by the view that attention's strides allow."""
    batch, length, width = x.shape
    heads = [
        (x @ w).view(batch, length, 2, width // 2).transpose(1, 2) for w in weight.split(width, 1)
    ]
    found = functional.scaled_dot_product_attention(*heads)
    return x + found.transpose(1, 2).reshape(batch, length, width)


def test_a_transformer_block_over_any_batch():
    weight = card(128, 384) / 16
    compiled = torch.compile(attention_block, dynamic=True)
    for batch, length in ((2, 64), (3, 64), (2, 10)):
        x = card(batch, length, 128)
        wanted = attention_block(x, weight)
        torch.testing.assert_close(compiled(x, weight).cpu(), wanted.cpu(), rtol=4e-3, atol=4e-3)
    assert graphs() == 1


CAPTURED = {
    "a float": lambda t, n: t * t.sum().item() + 1,
    "an integer": lambda t, n: t + n.max().item(),
    "a bool": lambda t, n: t * (t.sum() > 0).item(),
    "a size": lambda t, n: torch.zeros(n.max().item(), device=t.device) + 1,
    "a slice": lambda t, n: t[: n.max().item()] * 2,
    "chosen elements": lambda t, n: t[t > 0.5] * 2,
    "indices": lambda t, n: (t > 0.5).nonzero(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CAPTURED)
def test_values_that_only_running_tells(name, dynamic):
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    t, n = torch.randn(40).to("spyre"), torch.tensor([3, 7, 5]).to("spyre")
    with torch._dynamo.config.patch(settings):
        found = torch.compile(CAPTURED[name], dynamic=dynamic, fullgraph=True)(t, n)
    assert torch.equal(found.cpu(), CAPTURED[name](t, n).cpu())


@pytest.mark.parametrize("function", [picks_row_80, views_rows_by_twelves])
def test_functions_that_the_rows_of_a_tile_have_no_result_for(function, caplog):
    with caplog.at_level(logging.INFO, "spyre.compile"):
        check_at(function, torch.compile(function, dynamic=True), (96, 132))
    assert "64 rows" in caplog.text or "8 rows" in caplog.text
    assert caplog.text.count("compiled for sizes") == 2


def test_marked_dims_and_settings():
    check_at(chain, torch.compile(chain), SIZES, mark=True)
    assert graphs() == 1
    torch.compiler.reset()
    counters.clear()
    check_at(chain, torch.compile(chain), SIZES)
    assert graphs() == len(SIZES)
    torch.compiler.reset()
    counters.clear()
    options = {"spyre.symbolic_sizes": True}
    check_at(chain, torch.compile(chain, options=options), SIZES)
    assert graphs() == 2  # Dynamo makes sizes symbols when it meets the second one
    torch.compiler.reset()
    counters.clear()
    options = {"spyre.symbolic_sizes": False}
    check_at(chain, torch.compile(chain, options=options, dynamic=True), SIZES)
    assert graphs() == len(SIZES)


def test_one_row_is_a_size_dynamo_compiles_apart():
    check_at(softmax, torch.compile(softmax, dynamic=True), (9, 1, 72))
    assert graphs() == 2


def test_laid_out_and_cut_arguments():
    compiled = torch.compile(softmax, dynamic=True)
    for rows in SIZES:
        whole = card(rows + 8, 256)
        for a in (whole[8:, :128].contiguous(), whole[:rows, :128], card(128, rows).t()):
            found, expected = compiled(a, None), torch.softmax(a, -1)
            torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=4e-3, atol=4e-3)


def test_compiled_graphs_are_kept_up_to_a_number(monkeypatch, caplog):
    monkeypatch.setattr(graph, "MOST_SIZES", 4)  # the two used last stay at least
    compiled = torch.compile(sums_rows, dynamic=True)
    with caplog.at_level(logging.INFO, "spyre.compile"):
        check_at(sums_rows, compiled, (8, 9, 8, 10, 8))
        assert caplog.text.count("compiled for sizes") == 3
        check_at(sums_rows, compiled, (9,))
    assert caplog.text.count("compiled for sizes") == 4


def test_gradients():
    """The mean over all elements makes gradients depend on how many rows there are."""
    weight = (torch.randn(128, 64) / 8).half()

    @torch.compile(dynamic=True)
    def loss(a, w, goal):
        return functional.mse_loss(torch.relu(a @ w), goal)

    for rows in (72, 40):
        a, goal = torch.randn(rows, 128).half(), torch.randn(rows, 64).half()
        found = [t.to("spyre").requires_grad_() for t in (a, weight)]
        expected = [t.float().requires_grad_() for t in (a, weight)]
        loss(*found, goal.to("spyre")).backward()
        functional.mse_loss(torch.relu(expected[0] @ expected[1]), goal.float()).backward()
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got.grad.cpu().float(), want.grad, rtol=0.05, atol=1e-3)
    assert graphs() == 1


def test_hints_keep_their_loops():
    @torch.compile(dynamic=True)
    def tiled(a):
        with torch.spyre.spyre_hint(slices={"rows of any": 2}):
            return torch.softmax(a, -1)

    for rows in (64, 96):
        a = card(rows, 128)
        torch.spyre.declare_tensor_dim("rows of any", rows)
        torch.spyre.name_tensor_dims(a, ["rows of any", None])
        with observing() as found:
            assert torch.equal(tiled(a).cpu(), torch.softmax(a, -1).cpu())
        (kernel,) = kernels(found)
        assert [spec.count for spec in kernel.specs] == [2]
    assert graphs() == 1


def test_explanations_are_of_the_bundle_for_any_size():
    a = card(70, 128)
    torch._dynamo.mark_dynamic(a, 0)
    found = spyre.explain(lambda a: torch.softmax(a, -1), a)
    (kernel,) = found.kernels
    assert kernel.sizes
    text = str(found)
    assert "loops over tiles of 64, 8, 1 rows" in text
    assert "floor(s0/64) times:" in text
    assert "reduction_type='max'" in text
    assert text.count("=== FX graph") == 1


def test_caches_tell_symbolic_graphs_from_sized_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with torch.compiler.config.patch(force_disable_caches=False):
        never = {"spyre.symbolic_sizes": False}
        check_at(chain, torch.compile(chain, dynamic=True, options=never), (72, 9))
        for _ in range(2):
            torch.compiler.reset()
            counters.clear()
            with observing() as found:
                check_at(chain, torch.compile(chain, dynamic=True), SIZES)
            assert [bool(kernel.sizes) for kernel in kernels(found)] == [True]
            assert graphs() == 1


@pytest.mark.parametrize("columns", [128, 100])
def test_kept_bundles_have_nothing_to_report(columns, tmp_path, monkeypatch):
    a = card(72, columns)
    expected = torch.softmax(a, -1).cpu().numpy()
    monkeypatch.setenv("SPYRE_KEEP", str(tmp_path))
    torch.compile(softmax, dynamic=True)(a, None)
    (kept,) = (place for place in tmp_path.iterdir() if (place / SIZES_FILE).exists())
    assert load_bundle(kept).check() == ()
    device = Device(threads=1, sanitize=True, poison=True)
    result = spyre.run(kept, [a.cpu().numpy()], device=device, values={"s0": 72})
    assert (result.outputs[0] == expected).all()
    smaller = spyre.run(kept, device=Device(threads=1), values={"s0": 5})
    assert smaller.outputs[0].shape == (5, columns)


def test_a_part_of_an_input_whose_size_changes():
    compiled = torch.compile(lambda x: x[:13] * 2)
    for size in SIZES[:1] + SIZES[2:]:
        x = card(size)
        assert torch.equal(compiled(x).cpu(), x.cpu()[:13] * 2)


def test_numbers_whose_sizes_are_computed():
    def function(a):
        ones = torch.full_like(a, 1)[2::2]
        return torch.nn.functional.softplus(ones), torch.layer_norm(ones, ones.shape)

    made = torch.compile(function, dynamic=True)
    for size in (8, 21):
        found, wanted = made(card(size).float()), function(torch.zeros(size))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.roll(0, 0),
        lambda x: x.roll(-5, 0),
        lambda x: x[: x.shape[0] // 4 % 9],
        lambda x: x.new_full((x.shape[0] % 8,), 2.0),
        lambda x: x.unfold(0, x.shape[0] // 3, x.shape[0] % 4),
    ],
)
def test_remainders_of_sizes_that_become_constants(read):
    """The strided argument makes them constants after the graph was traced."""

    def function(x, part):
        chosen = torch.index_select(part, 0, torch.tensor([5], device=part.device))
        return read(x), chosen

    x = torch.arange(63.0).half()
    wanted = function(x, x[::2])
    on_card = x.to("spyre")
    found = torch.compile(function, dynamic=True)(on_card, on_card[::2])
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.cpu(), other)
