"""Tensors that are not strided are refused in words a user understands."""

from __future__ import annotations

import pytest
import torch

CASES = {
    "coo to the card": ("sparse", lambda x: x.cpu().to_sparse().to("spyre")),
    "coo on the card": ("sparse_coo", lambda x: x.to_sparse()),
    "csr on the card": ("sparse_csr", lambda x: x.to_sparse_csr()),
    "csr to the card": ("sparse", lambda x: x.cpu().to_sparse_csr().to("spyre") @ x.t()),
    "elements of csr": ("sparse", lambda x: x.cpu().to_sparse_csr().to("spyre").values()),
    "rows of csr": ("sparse", lambda x: x.cpu().to_sparse_csr().to("spyre").crow_indices()),
    "factory": ("sparse", lambda x: torch.zeros(3, layout=torch.sparse_coo, device="spyre")),
    "of parts": (
        "sparse",
        lambda x: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), device="spyre"),
    ),
    "with a dense one": ("sparse", lambda x: torch.sparse.mm(x.cpu().to_sparse(), x.t())),
    "nested": ("nested", lambda x: torch.nested.nested_tensor([x.cpu()]).to("spyre")),
}


@pytest.mark.parametrize(("kind", "function"), CASES.values(), ids=CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_refused(card, kind, function):
    with pytest.raises(NotImplementedError, match=f"SPY906: spyre tensors are strided: {kind}"):
        function(card)
