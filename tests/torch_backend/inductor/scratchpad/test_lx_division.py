"""Divisions of products and of their neighbours that keep results in LX."""

from __future__ import annotations

import pytest
import torch

from spyre.torch_backend.inductor.design_point import compiled_with, counted_call
from spyre.torch_backend.inductor.hints import spyre_hint
from tests.torch_backend.inductor.compiled_code import compiled, named

attention = torch.nn.functional.scaled_dot_product_attention


def tensors(*sizes):
    torch.manual_seed(0)
    return [torch.randn(size).half().div_(4) for size in sizes]


FUNCTIONS = {
    "softmax": (lambda a, b: torch.softmax(a @ b, -1), ((512, 256), (256, 2048))),
    "pointwise": (lambda a, b, c: torch.relu(a @ b) + c, ((512, 256), (256, 1024), (512, 1024))),
    "products": (lambda a, b, c: torch.relu(a @ b) @ c, ((512, 256), (256, 1024), (1024, 256))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_next_to_products_stay_in_lx(name):
    function, sizes = FUNCTIONS[name]
    given = tensors(*sizes)
    on_card = [t.to("spyre") for t in given]
    form = compiled_with(function, {}, {})
    counts = counted_call(form, on_card)
    found, want = form(*on_card).cpu(), function(*(t.float() for t in given))
    torch.testing.assert_close(found.float(), want, atol=0.02, rtol=0.02)
    assert counts.hbm_bytes <= sum(t.nbytes for t in (*given, found))


def test_scores_of_heads_stay_in_lx():
    """The product sees heads and rows, its neighbours see rows of all heads."""
    given = tensors((1, 4, 512, 64), (1, 4, 1024, 64), (1, 4, 1024, 64))
    on_card = [t.to("spyre") for t in given]
    form = compiled_with(attention, {}, {})
    counts = counted_call(form, on_card)
    want = attention(*(t.float() for t in given))
    torch.testing.assert_close(form(*on_card).cpu().float(), want, atol=0.02, rtol=0.02)
    scores_bytes = 4 * 512 * 1024 * 2
    assert counts.hbm_bytes < 2 * scores_bytes, "keys are turned in HBM, scores stay in LX"


def test_the_division_of_hints_stays():
    a, b = tensors((512, 256), (256, 2048))
    rows = named(a, "rows", "inner")

    def hinted(a, b):
        with spyre_hint(work_div={"rows": 4}):
            product = a @ b
        return torch.softmax(product, -1)

    _, (kernel,) = compiled(hinted, rows, b.to("spyre"))
    (product,) = (op for op in kernel.kernel if op.name == "batchmatmul")
    assert product.splits[:2] == (4, 1)
