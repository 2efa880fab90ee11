"""Names of dims: declared, given to tensors, found again for compiled functions."""

from __future__ import annotations

import gc

import pytest
import torch

from spyre.errors import SpyreError
from spyre.torch_backend.inductor.hints import (
    declare_tensor_dim,
    declared_extent,
    name_tensor_dims,
    names_of_inputs,
)


@pytest.fixture(autouse=True)
def declared():
    declare_tensor_dim("A", 4)
    declare_tensor_dim("B", 6)


def refusal(call, *arguments):
    with pytest.raises(SpyreError) as caught:
        call(*arguments)
    assert caught.value.code == "SPY974"
    return str(caught.value)


def test_names_belong_to_the_tensor_object():
    named = torch.zeros(4, 6)
    name_tensor_dims(named, ["A", "B"])
    assert names_of_inputs([named, named.clone(), 3]) == (("A", "B"), None, None)


def test_equal_tensors_have_their_own_names():
    first, second = torch.zeros(4, 6), torch.zeros(4, 6)
    name_tensor_dims(first, ["A", None])
    name_tensor_dims(second, [None, "B"])
    assert names_of_inputs([first, second]) == (("A", None), (None, "B"))


def test_names_go_with_the_tensor():
    from spyre.torch_backend.inductor import hints

    named = torch.zeros(4, 6)
    before = len(hints._names_of_tensors)
    name_tensor_dims(named, ["A", "B"])
    assert len(hints._names_of_tensors) == before + 1
    del named
    gc.collect()
    assert len(hints._names_of_tensors) == before


def test_names_of_card_tensors(card):
    declare_tensor_dim("A", 4)
    name_tensor_dims(card, ["A", "B"])
    assert names_of_inputs([card]) == (("A", "B"),)


def test_declaring_anew_replaces_the_extent():
    declare_tensor_dim("A", 5)
    assert declared_extent("A") == 5
    assert "expected: 5 elements" in refusal(name_tensor_dims, torch.zeros(4, 6), ["A", "B"])


@pytest.mark.parametrize(("name", "extent"), [("", 4), (3, 4), ("A", 0), ("A", 2.0), ("A", True)])
def test_declarations_that_are_wrong(name, extent):
    refusal(declare_tensor_dim, name, extent)


def test_one_name_per_dim():
    assert "2 names for size [4, 6]" in refusal(name_tensor_dims, torch.zeros(4, 6), ["A"])


def test_names_are_declared_first():
    text = refusal(name_tensor_dims, torch.zeros(4, 7), ["A", "unheard"])
    assert "declare_tensor_dim('unheard', 7)" in text


def test_extents_agree():
    text = refusal(name_tensor_dims, torch.zeros(4, 7), ["A", "B"])
    assert "dim 1" in text
    assert "found: 7 elements" in text
