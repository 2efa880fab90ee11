"""Modelled times of fused layers against times of a card: `python -m qa.layer_times [NAME ...]`.

Each function is compiled and run once on the simulated card; its bundles are counted and modelled.
The measured times (AdnanHoque/torch-spyre, 2026) are of torch-spyre's bundles for the same
functions, which have other operations and layouts: they compare compilers as much as models.
Granite: one layer of Granite 3.3 8B, 512 tokens, or 64 tokens behind a cache of 512. Flash
attention: 4 heads of 128 elements, 512 or 1,024 queries and 4,096 keys, without a mask.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from spyre.hw.cost import default_machine, kernel_ns
from spyre.torch_backend.inductor.design_point import compiled_with, counted_call

Function = Callable[..., Any]
HEADS, DEPTH, KEYS, CACHE = 4, 128, 4096, 512


@dataclass(frozen=True)
class Layer:
    """``make``: the function and its tensors. ``measured_us``: of a card, by variant."""

    make: Callable[[], tuple[Function, Sequence[torch.Tensor]]]
    measured_us: dict[str, float]


def granite(tokens: int, cached: int) -> tuple[Function, Sequence[torch.Tensor]]:
    """One layer with random weights; ``cached``: positions before the tokens."""
    from transformers import GraniteConfig
    from transformers.models.granite.modeling_granite import (
        GraniteDecoderLayer,
        apply_rotary_pos_emb,
    )

    config = GraniteConfig(
        hidden_size=4096, intermediate_size=12800, num_hidden_layers=1,
        num_attention_heads=32, num_key_value_heads=8,
        attention_multiplier=DEPTH**-1.0, residual_multiplier=0.22,
    )  # fmt: skip
    layer = GraniteDecoderLayer(config, 0).half().requires_grad_(False).eval()
    attention, mlp = layer.self_attn, layer.mlp
    layer.to("spyre")

    def block(x: Any, cos: Any, sin: Any, *past: Any) -> Any:
        y = layer.input_layernorm(x)
        shape = (1, tokens, -1, DEPTH)
        q, k, v = (
            project(y).view(shape).transpose(1, 2)
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        if past:
            k, v = (torch.cat(pair, 2) for pair in zip(past, (k, v), strict=True))
        found = scaled_dot_product_attention(q, k, v, is_causal=not past, enable_gqa=True)
        found = found.transpose(1, 2).reshape(1, tokens, -1)
        x = x + attention.o_proj(found) * 0.22
        return x + mlp(layer.post_attention_layernorm(x)) * 0.22

    sizes = [(1, tokens, 4096), (1, tokens, DEPTH), (1, tokens, DEPTH)]
    sizes += [(1, 8, cached, DEPTH)] * 2 if cached else []
    return block, [torch.randn(size).half().to("spyre") for size in sizes]


def flash(queries: int) -> tuple[Function, Sequence[torch.Tensor]]:
    """Attention with all of the softmax."""
    sizes = (queries, KEYS, KEYS)
    tensors = [torch.randn(1, HEADS, size, DEPTH).half().to("spyre") for size in sizes]
    return scaled_dot_product_attention, tensors


LAYERS = {
    "granite 512": Layer(lambda: granite(512, 0), {"main": 16149, "tuned divisions": 16574}),
    "granite 64": Layer(lambda: granite(64, CACHE), {"main": 14765, "tuned divisions": 10621}),
    "flash 512": Layer(lambda: flash(512), {"online": 306, "softmax": 296, "stable": 245}),
    "flash 1024": Layer(lambda: flash(1024), {"online": 439, "softmax": 430, "stable": 330}),
}


def report(name: str, auto_tile: bool) -> str:
    """A line: modelled time, its error bar and bound, bytes, operations, and the measured times."""
    function, tensors = LAYERS[name].make()
    torch.compiler.reset()
    counts = counted_call(compiled_with(function, {"auto_tile": auto_tile}, {}), tensors)
    time = kernel_ns(counts.operations, default_machine())
    measured = ", ".join(f"{which} {us:,}" for which, us in LAYERS[name].measured_us.items())
    form = "with automatic tiling" if auto_tile else "without tiles"
    return (
        f"{name} {form}: {time.total_ns / 1e3:,.0f} us (±{time.spread or 0:.0%}), {time.bound}, "
        f"{counts.hbm_bytes / 1e6:,.0f} MB in HBM, {len(counts.operations)} operations; "
        f"measured {measured}"
    )


def main() -> None:
    """Print a line per layer, without tiles and with automatic tiling."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*LAYERS, []], metavar="NAME")
    names = parser.parse_args().names or LAYERS
    for name in names:
        for auto_tile in (False, True) if name.startswith("flash") else (False,):
            print(report(name, auto_tile), flush=True)


if __name__ == "__main__":
    main()
