"""Tiny random models of the families the device must run, built without files or network.

Two layers, hidden size 64, four heads, two key/value heads where the family has them, 128 tokens,
16 positions. Every layer affects the result: the scale of linear weights keeps activations near
one, and norms and biases are not at their neutral values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

transformers = pytest.importorskip("transformers", reason="model tests need transformers")

VOCABULARY = 128
SEQUENCE = 16
HIDDEN = 64
LAYERS = 2
HEADS = 4
KEY_VALUE_HEADS = 2
IMAGE = 16
PATCH = 4
CLASSES = 10
PADDING = 1
"""Token of padding, which random inputs do not contain."""

_SCALE = HIDDEN**-0.5
_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "max_position_embeddings": 4 * SEQUENCE,
    "initializer_range": _SCALE,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": PADDING,
}
_ENCODER = {
    "hidden_size": HIDDEN,
    "intermediate_size": 2 * HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "initializer_range": _SCALE,
}
_TEXT_ENCODER = _ENCODER | {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4 * SEQUENCE,
    "pad_token_id": PADDING,
}

Inputs = dict[str, torch.Tensor]


def _built(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Return the model in evaluation mode; norms' weights and biases get noise of scale 0.1."""
    torch.manual_seed(seed)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def llama(attention: str = "sdpa", **changes: object) -> nn.Module:
    """A Llama: grouped heads, rotary positions, RMS norm, gated SiLU."""
    config = transformers.LlamaConfig(**_DECODER | changes, attn_implementation=attention)
    return _built(lambda: transformers.LlamaForCausalLM(config))


def granite(attention: str = "sdpa") -> nn.Module:
    """A Granite: a Llama with four multipliers, none of which is one here; tied head."""
    config = transformers.GraniteConfig(
        **_DECODER | {"tie_word_embeddings": True},
        embedding_multiplier=3.0,
        logits_scaling=2.0,
        residual_multiplier=0.5,
        attention_multiplier=0.125,
        attn_implementation=attention,
    )
    return _built(lambda: transformers.GraniteForCausalLM(config))


def mistral(attention: str = "sdpa") -> nn.Module:
    """A Mistral: a Llama whose window is shorter than the sequence."""
    config = transformers.MistralConfig(
        **_DECODER, sliding_window=SEQUENCE // 2, attn_implementation=attention
    )
    return _built(lambda: transformers.MistralForCausalLM(config))


_MIXTURE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
}


def mixtral() -> nn.Module:
    """A Mixtral: a Llama whose tokens choose two of four feed-forward networks."""
    config = transformers.MixtralConfig(**_MIXTURE, num_local_experts=4)
    return _built(lambda: transformers.MixtralForCausalLM(config))


def qwen3_moe() -> nn.Module:
    """A Qwen3-MoE: as a Mixtral, with norms of queries and keys."""
    config = transformers.Qwen3MoeConfig(
        **_MIXTURE, head_dim=32, num_experts=4, moe_intermediate_size=32
    )
    return _built(lambda: transformers.Qwen3MoeForCausalLM(config))


def granite_moe() -> nn.Module:
    """A GraniteMoE: experts' weights in one tensor."""
    config = transformers.GraniteMoeConfig(**_MIXTURE, num_local_experts=4)
    return _built(lambda: transformers.GraniteMoeForCausalLM(config))


MIXTURES = {"mixtral": mixtral, "qwen3_moe": qwen3_moe, "granite_moe": granite_moe}
"""Mixtures of experts."""


def gpt2(attention: str = "sdpa") -> nn.Module:
    """A GPT-2: learned positions, layer norm, tanh GELU, fused projections; the head is tied."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=4 * SEQUENCE,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        initializer_range=_SCALE,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=PADDING,
        attn_implementation=attention,
    )
    return _built(lambda: transformers.GPT2LMHeadModel(config))


def bert(attention: str = "sdpa") -> nn.Module:
    """A BERT with the masked-token head: post-norm, exact GELU."""
    config = transformers.BertConfig(**_TEXT_ENCODER, attn_implementation=attention)
    return _built(lambda: transformers.BertForMaskedLM(config))


def roberta(attention: str = "sdpa") -> nn.Module:
    """A RoBERTa: a BERT that counts positions from the padding mask."""
    config = transformers.RobertaConfig(**_TEXT_ENCODER, attn_implementation=attention)
    return _built(lambda: transformers.RobertaForMaskedLM(config))


def vit(attention: str = "sdpa") -> nn.Module:
    """A ViT that sorts 16 x 16 images into ten classes, in 16 patches."""
    config = transformers.ViTConfig(
        **_ENCODER,
        image_size=IMAGE,
        patch_size=PATCH,
        num_channels=3,
        num_labels=CLASSES,
        attn_implementation=attention,
    )
    return _built(lambda: transformers.ViTForImageClassification(config))


def token_inputs(batch: int = 2, seed: int = 1) -> Inputs:
    """Two full rows of random tokens without padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(PADDING + 1, VOCABULARY, (batch, SEQUENCE), generator=generator)
    return {"input_ids": ids}


def padded_inputs(side: str = "right", seed: int = 1) -> Inputs:
    """Two rows of tokens; five positions of the second are padding, masked out."""
    ids = token_inputs(2, seed)["input_ids"]
    mask = torch.ones_like(ids)
    hidden = slice(SEQUENCE - 5, None) if side == "right" else slice(0, 5)
    ids[1, hidden] = PADDING
    mask[1, hidden] = 0
    return {"input_ids": ids, "attention_mask": mask}


def image_inputs(batch: int = 2, seed: int = 1) -> Inputs:
    """Normally distributed images, float32 [batch, 3, IMAGE, IMAGE]."""
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(batch, 3, IMAGE, IMAGE, generator=generator)}


@dataclass(frozen=True)
class Family:
    """A model family: ``build`` takes the attention implementation, ``inputs`` makes inputs."""

    name: str
    build: Callable[..., nn.Module]
    inputs: Callable[[], Inputs]

    def __str__(self) -> str:
        return self.name


CAUSAL = (
    Family("llama", llama, token_inputs),
    Family("granite", granite, token_inputs),
    Family("mistral", mistral, token_inputs),
    Family("gpt2", gpt2, token_inputs),
)
TEXT_ENCODERS = (
    Family("bert", bert, padded_inputs),
    Family("roberta", roberta, padded_inputs),
)
FAMILIES = (*CAUSAL, *TEXT_ENCODERS, Family("vit", vit, image_inputs))
ATTENTION = ("sdpa", "eager")
