"""generate() of the causal families in float16 on the device, with and without a cache."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

from qa.models import configurations
from qa.models.configurations import ATTENTION, CAUSAL, SEQUENCE, Family, Inputs
from tests.torch_backend.models.comparison import assert_logits_close, assert_tokens_agree

NEW_TOKENS = 6 if "SPYRE_TEST_EXAMPLES" in os.environ else 4


def generated(model: nn.Module, inputs: Inputs, device: str, **options: object) -> Any:
    """Return the output of generate() on the device: sequences, logits of each step, cache."""
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False} | options
    found = model.to(device, torch.float16).generate(
        **{name: value.to(device) for name, value in inputs.items()},
        return_dict_in_generate=True,
        output_logits=True,
        **settings,
    )
    assert found.sequences.device.type == device
    return found


def full_inputs(inputs: Inputs, sequences: torch.Tensor) -> Inputs:
    """The whole sequences as one input, with the mask and positions generate() gives them."""
    prompt = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(prompt))
    new = sequences.shape[1] - prompt.shape[1]
    mask = torch.cat([mask, mask.new_ones(len(mask), new)], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    return {"input_ids": sequences, "attention_mask": mask, "position_ids": positions}


@torch.no_grad()
def logits_of_steps(model: nn.Module, inputs: Inputs, sequences: torch.Tensor) -> torch.Tensor:
    """Logits [batch, steps, vocabulary] for the new tokens, from one pass without a cache."""
    whole = full_inputs(inputs, sequences)
    device = next(model.parameters()).device
    logits = model(**{name: value.to(device) for name, value in whole.items()}, use_cache=False)
    return logits.logits[:, inputs["input_ids"].shape[1] - 1 : -1].cpu()


def steps_of(found: Any) -> torch.Tensor:
    """Logits [batch, steps, vocabulary] of a generate() result, on the CPU."""
    return torch.stack(found.logits, dim=1).cpu()


def assert_greedy(found: Any, reference: nn.Module, inputs: Inputs) -> None:
    """Each step's logits and token are the reference's for the prefix the device had chosen."""
    sequences = found.sequences.cpu()
    prompt = inputs["input_ids"]
    assert torch.equal(sequences[:, : prompt.shape[1]], prompt)
    assert sequences.shape[1] == prompt.shape[1] + NEW_TOKENS
    expected = logits_of_steps(reference, inputs, sequences)
    assert_logits_close(steps_of(found), expected)
    assert_tokens_agree(sequences[:, prompt.shape[1] :], expected)


@pytest.fixture(scope="module", params=CAUSAL, ids=str)
def run(request: pytest.FixtureRequest, device: str) -> tuple[Family, Any, torch.Tensor]:
    """A family, its generated output on the device, and its logits there without a cache."""
    family = request.param
    model = family.build("sdpa")
    found = generated(model, family.inputs(), device)
    return family, found, logits_of_steps(model, family.inputs(), found.sequences.cpu())


def test_greedy(run: tuple[Family, Any, torch.Tensor]):
    family, found, _ = run
    assert_greedy(found, family.build("sdpa"), family.inputs())


def test_cache_equals_no_cache_on_the_device(run: tuple[Family, Any, torch.Tensor]):
    _, found, without_cache = run
    assert_logits_close(steps_of(found), without_cache)


def test_cache_holds_keys_and_values(run: tuple[Family, Any, torch.Tensor], device: str):
    family, found, _ = run
    whole = full_inputs(family.inputs(), found.sequences.cpu()[:, :-1])
    with torch.no_grad():
        expected = family.build("sdpa")(**whole, use_cache=True).past_key_values
    cache = found.past_key_values
    assert cache.get_seq_length() == SEQUENCE + NEW_TOKENS - 1
    for layer, reference in zip(cache.layers, expected.layers, strict=True):
        assert layer.keys.device.type == device
        assert layer.keys.dtype == torch.float16
        assert_logits_close(layer.keys, reference.keys)
        assert_logits_close(layer.values, reference.values)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("family", CAUSAL, ids=str)
def test_greedy_with_padding_on_the_left(family: Family, attention: str, device: str):
    inputs = configurations.padded_inputs("left")
    found = generated(family.build(attention), inputs, device)
    assert_greedy(found, family.build(attention), inputs)


def test_without_cache(device: str):
    inputs = configurations.token_inputs()
    found = generated(configurations.llama(), inputs, device, use_cache=False)
    assert found.past_key_values is None
    assert_greedy(found, configurations.llama(), inputs)


@pytest.mark.parametrize("family", CAUSAL, ids=str)
def test_static_cache(family: Family, device: str):
    """Its keys and values are written in place at the position of the step."""
    inputs = family.inputs()
    found = generated(family.build("sdpa"), inputs, device, cache_implementation="static")
    assert_greedy(found, family.build("sdpa"), inputs)


def test_beams(device: str):
    inputs = configurations.token_inputs()
    found = generated(
        configurations.llama(), inputs, device, num_beams=3, output_scores=True, length_penalty=0.0
    )
    sequences = found.sequences.cpu()
    expected = logits_of_steps(configurations.llama(), inputs, sequences).log_softmax(dim=-1)
    chosen = expected.gather(-1, sequences[:, SEQUENCE:, None]).sum(dim=(1, 2))
    difference = (found.sequences_scores.cpu().float() - chosen).abs().max().item()
    assert difference < 0.02 * chosen.abs().max().item()


def test_sampling_follows_the_seed(device: str):
    inputs = configurations.token_inputs()
    model = configurations.gpt2()

    def sampled(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        options = {"do_sample": True, "top_k": 50, "max_new_tokens": 3}
        return generated(model, inputs, device, **options).sequences.cpu()

    first = sampled(0)
    assert torch.equal(first, sampled(0))
    assert not torch.equal(first, sampled(1))
    assert int(first.max()) < configurations.VOCABULARY


def test_longer_generation_than_the_window(device: str):
    inputs = configurations.token_inputs()
    found = generated(configurations.mistral(), inputs, device)
    for layer in found.past_key_values.layers:
        assert layer.keys.shape[-2] < SEQUENCE
