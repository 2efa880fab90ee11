"""A small language model with random weights and its tokenizer, in a folder that vLLM can load.

    SPYRE_FRONTEND=spyre python examples/serving/make_model.py granite models/granite

Two layers, a vocabulary of bytes: no network is needed, and its text means nothing. A server of it
says whether the stack works, and whether the numbers are the CPU's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
)

VOCABULARY = 512
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
DECODER = {
    **SIZES,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}
ENCODER = {**SIZES, "intermediate_size": 1024, "num_attention_heads": 8}
ROBERTA = {**ENCODER, "max_position_embeddings": 514}
GRANITE = {
    "attention_multiplier": 128**-0.5,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
OPT = {
    **SIZES,
    "ffn_dim": 1024,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": True,
}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "granite": (GraniteForCausalLM, GraniteConfig, {**DECODER, **GRANITE}),
    "llama": (LlamaForCausalLM, LlamaConfig, DECODER),
    "mistral": (MistralForCausalLM, MistralConfig, {**DECODER, "sliding_window": None}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, DECODER),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {**DECODER, "head_dim": 128}),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig, {**DECODER, "head_dim": 128}),
    "opt": (OPTForCausalLM, OPTConfig, OPT),
    "roberta": (RobertaModel, RobertaConfig, ROBERTA),
    "reranker": (RobertaForSequenceClassification, RobertaConfig, {**ROBERTA, "num_labels": 1}),
    "bert": (BertModel, BertConfig, {**ENCODER, "max_position_embeddings": 512}),
}


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """A token per byte, special ones before them and unused ones behind."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    names += [f"<x{k}>" for k in range(len(names), size)]
    vocabulary = {name: k for k, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    roles = ("bos_token", "eos_token", "pad_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(
        tokenizer_object=made, chat_template=CHAT, **dict(zip(roles, SPECIAL, strict=True))
    )


def write_model(name: str, folder: Path, size: int = VOCABULARY) -> int:
    """Write the model and its tokenizer of ``size`` tokens; returns the number of parameters."""
    torch.manual_seed(0)
    kind, configuration, values = MODELS[name]
    model = kind(configuration(**values | {"vocab_size": size}))
    for parameter in model.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.05)
    model.half().save_pretrained(folder)
    tokenizer(size).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY, help="number of tokens")
    options = parser.parse_args()
    count = write_model(options.name, options.folder, options.vocabulary)
    print(f"{options.folder}: {options.name}, {count / 1e6:.1f} million parameters")


if __name__ == "__main__":
    main()
