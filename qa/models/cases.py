"""Twelve small models of `transformers` with random weights: how to build and feed them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import transformers
from torch import nn

from qa.models import configurations as small
from qa.models.configurations import HEADS, HIDDEN, LAYERS, VOCABULARY, Inputs


@dataclass(frozen=True)
class ModelCase:
    """``build``: makes the model in evaluation mode. ``inputs``: makes inputs on the CPU."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def _qwen3() -> nn.Module:
    config = transformers.Qwen3Config(**small._DECODER, head_dim=HIDDEN // HEADS)
    return small._built(lambda: transformers.Qwen3ForCausalLM(config))


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=HIDDEN,
        d_kv=HIDDEN // HEADS,
        d_ff=2 * HIDDEN,
        num_layers=LAYERS,
        num_heads=HEADS,
        decoder_start_token_id=0,
    )
    return small._built(lambda: transformers.T5ForConditionalGeneration(config))


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=20,
        d_model=HIDDEN,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=2 * HIDDEN,
        decoder_ffn_dim=2 * HIDDEN,
        max_source_positions=32,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
    )
    return small._built(lambda: transformers.WhisperForConditionalGeneration(config))


def _mamba2() -> nn.Module:
    config = transformers.Mamba2Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
        chunk_size=8,
    )
    return small._built(lambda: transformers.Mamba2ForCausalLM(config))


def resnet18() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=10,
    )
    return small._built(lambda: transformers.ResNetForImageClassification(config))


def _mobilenet() -> nn.Module:
    config = transformers.MobileNetV2Config(image_size=64, num_labels=10)
    return small._built(lambda: transformers.MobileNetV2ForImageClassification(config))


def _tokens() -> Inputs:
    return small.token_inputs()


def _few_tokens() -> Inputs:
    return {"input_ids": small.token_inputs()["input_ids"] % 64}


def _both_sides() -> Inputs:
    ids = small.token_inputs()["input_ids"]
    return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}


def _sounds() -> Inputs:
    generator = torch.Generator().manual_seed(1)
    sounds = torch.randn(2, 20, 64, generator=generator)
    return {"input_features": sounds, "decoder_input_ids": small.token_inputs()["input_ids"]}


def _images(size: int) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    return {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}


CASES = (
    ModelCase("Llama", small.llama, _tokens),
    ModelCase("Granite", small.granite, _tokens),
    ModelCase("Qwen3", _qwen3, _tokens),
    ModelCase("Mixtral", small.mixtral, _few_tokens),
    ModelCase("GPT-2", small.gpt2, _tokens),
    ModelCase("BERT", small.bert, small.padded_inputs),
    ModelCase("T5", _t5, _both_sides),
    ModelCase("Whisper", _whisper, _sounds),
    ModelCase("Mamba2", _mamba2, _tokens),
    ModelCase("ResNet-18", resnet18, partial(_images, 64)),
    ModelCase("MobileNetV2", _mobilenet, partial(_images, 64)),
    ModelCase("ViT", small.vit, small.image_inputs),
)
