"""Printing tensors."""

from __future__ import annotations

import torch


def test_text_names_the_device(card, host):
    assert repr(card) == repr(host).replace("]])", "]], device='spyre:0')")
    assert str(card[0]) == "tensor([0., 1., 2., 3., 4., 5.], device='spyre:0')"
    assert repr(torch.tensor(3, device="spyre")) == "tensor(3, device='spyre:0')"


def test_dtypes_and_gradients(card):
    assert "dtype=torch.float16" in repr(card.half())
    assert "requires_grad=True" in repr(card.clone().requires_grad_())
    assert "grad_fn=<MulBackward0>" in repr(card.clone().requires_grad_() * 2)
    assert repr(torch.nn.Parameter(card)).startswith("Parameter containing:\ntensor([[")


def test_tensors_without_elements():
    assert repr(torch.empty(0, 3, device="spyre")) == "tensor([], device='spyre:0', size=(0, 3))"


def test_long_tensors_are_summarised():
    text = repr(torch.zeros(2000, device="spyre"))
    assert "..." in text
    assert len(text) < 200


def test_formatting(card):
    assert f"{card.sum():.1f}" == "276.0"
    assert f"{card[0, 1]}" == "1.0"
