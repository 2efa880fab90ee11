"""Operations of the models that the simulated cores run, not the CPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from qa.models.configurations import FAMILIES, Family

MATRICES = {"mm", "bmm", "addmm", "embedding", "index_select"}
ELEMENTWISE = {
    "add",
    "sub",
    "mul",
    "div",
    "neg",
    "rsqrt",
    "tanh",
    "gelu",
    "silu",
    "where",
    "addcmul",
}
COMPARISONS = {"le", "gt", "ge", "eq", "ne"}
OVER_DIMS = {"mean", "_softmax", "_safe_softmax", "native_layer_norm", "native_batch_norm"}
MOVES = {"zero_", "cat", "_to_copy", "clone", "copy_", "fill_"}
NEW = {"full", "ones", "zeros", "arange", "scalar_tensor", "tril"}
ON_THE_CARD = MATRICES | ELEMENTWISE | COMPARISONS | OVER_DIMS | MOVES | NEW
"""Operations of the families that must run on the card; aten names without overload.

layer_norm without a kernel would become native_batch_norm and addcmul.
"""


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_forward_stays_on_the_card(family: Family, device: str):
    model = family.build("sdpa").to(device, torch.float16)
    inputs = {
        name: value.to(device, torch.float16) if value.is_floating_point() else value.to(device)
        for name, value in family.inputs().items()
    }
    before = Counter(torch.spyre.fallbacks())
    with torch.no_grad():
        model(**inputs)
    fallen = {name.split(".")[1] for name in Counter(torch.spyre.fallbacks()) - before}
    assert sorted(fallen & ON_THE_CARD) == []
