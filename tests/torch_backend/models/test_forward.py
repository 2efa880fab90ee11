"""One forward pass of every family in float16 on the device, against float32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qa.models import configurations
from qa.models.configurations import (
    ATTENTION,
    FAMILIES,
    PADDING,
    SEQUENCE,
    TEXT_ENCODERS,
    Family,
    Inputs,
)
from tests.torch_backend.models.comparison import BFLOAT16, FLOAT32, assert_logits_close


def placed(inputs: Inputs, device: str, dtype: torch.dtype) -> Inputs:
    """The inputs on the device; numbers in ``dtype``, tokens and masks as they are."""
    return {
        name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
        for name, value in inputs.items()
    }


@torch.no_grad()
def logits_on(
    model: nn.Module, inputs: Inputs, device: str, dtype: torch.dtype = torch.float16
) -> torch.Tensor:
    """Logits of ``model`` moved to the device."""
    logits = model.to(device, dtype)(**placed(inputs, device, dtype)).logits
    assert logits.device.type == device
    assert logits.dtype == dtype
    return logits.cpu()


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_float16_logits(family: Family, attention: str, device: str):
    inputs = family.inputs()
    with torch.no_grad():
        expected = family.build(attention)(**inputs).logits
    assert_logits_close(logits_on(family.build(attention), inputs, device), expected)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_float32_logits(family: Family, device: str):
    inputs = family.inputs()
    with torch.no_grad():
        expected = family.build("sdpa")(**inputs).logits
    found = logits_on(family.build("sdpa"), inputs, device, torch.float32)
    assert_logits_close(found, expected, FLOAT32)


def test_bfloat16_logits(device: str):
    inputs = configurations.token_inputs()
    with torch.no_grad():
        expected = configurations.llama()(**inputs).logits
    found = logits_on(configurations.llama(), inputs, device, torch.bfloat16)
    assert_logits_close(found, expected, BFLOAT16)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", TEXT_ENCODERS, ids=str)
def test_masked_positions_have_no_weight(family: Family, attention: str, device: str):
    inputs = configurations.padded_inputs()
    kept = inputs["attention_mask"].bool()
    other = inputs | {"input_ids": torch.where(kept, inputs["input_ids"], PADDING + 7)}
    model = family.build(attention)
    first, second = logits_on(model, inputs, device), logits_on(model, other, device)
    assert torch.equal(first[kept], second[kept])
    assert not torch.equal(first[~kept], second[~kept])


@pytest.mark.parametrize("family", TEXT_ENCODERS, ids=str)
def test_padded_row_equals_the_row_alone(family: Family, device: str):
    inputs = configurations.padded_inputs()
    length = int(inputs["attention_mask"][1].sum())
    assert length < SEQUENCE
    alone = {"input_ids": inputs["input_ids"][1:, :length]}
    model = family.build("sdpa")
    together = logits_on(model, inputs, device)[1:, :length]
    assert_logits_close(together, logits_on(model, alone, device))


def test_mask_changes_the_result(device: str):
    inputs = configurations.padded_inputs()
    unmasked = {"input_ids": inputs["input_ids"]}
    model = configurations.bert()
    found, without = logits_on(model, inputs, device), logits_on(model, unmasked, device)
    assert_logits_close(found[0], without[0].float())
    assert (found[1] - without[1]).abs().max() > 0.1


def test_causal_mask_hides_the_future(device: str):
    inputs = configurations.token_inputs()
    other = {"input_ids": inputs["input_ids"].clone()}
    other["input_ids"][:, -1] = PADDING + 1
    model = configurations.llama()
    first, second = logits_on(model, inputs, device), logits_on(model, other, device)
    assert torch.equal(first[:, :-1], second[:, :-1])


def test_window_hides_the_distant_past(device: str):
    """Two layers see twice the window less one; position 0 is beyond it for the last one."""
    inputs = configurations.token_inputs()
    other = {"input_ids": inputs["input_ids"].clone()}
    other["input_ids"][:, 0] = PADDING + 1
    model = configurations.mistral()
    first, second = logits_on(model, inputs, device), logits_on(model, other, device)
    assert torch.equal(first[:, -1], second[:, -1])
    assert not torch.equal(first[:, 7], second[:, 7])


def test_all_hidden_states_and_attentions(device: str):
    inputs = configurations.image_inputs()
    options = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        expected = configurations.vit("eager")(**inputs, **options)
        model = configurations.vit("eager").to(device, torch.float16)
        found = model(**placed(inputs, device, torch.float16), **options)
    for state, reference in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_logits_close(state, reference)
    for weights, reference in zip(found.attentions, expected.attentions, strict=True):
        assert_logits_close(weights, reference)
