"""Kernels of compiled functions: their text, and the way through the document's form and back."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from spyre.torch_backend.inductor.bundles import kernel_op
from spyre.torch_backend.inductor.bundles.generation import generate_bundle
from spyre.torch_backend.inductor.bundles.kernel_op import kernel_text
from spyre.torch_backend.inductor.bundles.op_spec_form import to_op_specs
from spyre.torch_backend.program.op_spec import OpKind
from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of
from tests.torch_backend.inductor.compiled_code import compiled, named

NAMES = {"OpKind": OpKind, **{n: getattr(kernel_op, n) for n in dir(kernel_op)}}


def card(*sizes):
    return torch.randn(*sizes).half().to("spyre")


def rows():
    return torch.tensor([3, 7, 1], dtype=torch.int32).to("spyre")


def tiled(x, y):
    with torch.spyre.spyre_hint(slices={"rows": 16, "columns": 2}):
        return (x + y) * x


CASES = {
    "softmax": (lambda x, y: torch.softmax(x + y, -1), lambda: (card(100, 200), card(100, 200))),
    "transposed": (lambda x, y: (x + y.T).sum(1), lambda: (card(128, 256), card(256, 128))),
    "product": (lambda x, y: functional.gelu(x @ y), lambda: (card(70, 100), card(100, 72))),
    "words": (lambda x: (x.float() * 2).sum(0), lambda: (card(100, 150),)),
    "gather": (lambda x, k: x[k] * 2, lambda: (card(50, 128), rows())),
    "topk": (lambda x: torch.topk(x, 5, -1)[0], lambda: (card(16, 128),)),
    "joined": (lambda x, y: torch.cat([x, y], 1).relu(), lambda: (card(8, 64), card(8, 128))),
    "tiled": (tiled, lambda: [named(card(16, 256), "rows", "columns") for _ in range(2)]),
}


@pytest.fixture(scope="module", params=CASES)
def kernels(request):
    function, inputs = CASES[request.param]
    torch.manual_seed(0)
    _, found = compiled(function, *inputs())
    return found


def test_the_text_makes_the_kernel_again(kernels):
    for made in kernels:
        assert eval(kernel_text(made.kernel), dict(NAMES)) == made.kernel


def test_the_documents_form_is_the_same_program(kernels):
    """Pitches become coordinates, and coordinates pitches."""
    for made in kernels:
        read = kernel_of(to_op_specs(made.kernel))
        for form in ({}, {"unrolled": True}, {"pool_argument": True}):
            direct, again = (generate_bundle("kernel", k, **form) for k in (made.kernel, read))
            assert again.operations == direct.operations
            assert again.module == direct.module
