"""A Llama block compiled by torch-spyre, run on the simulator, and its profile.

    SPYRE_FRONTEND=torch-spyre python examples/torch_spyre/llama_block.py

Exit code 1 if the block differs from the CPU's by more than torch-spyre's tests allow.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

TOLERANCE = 0.1
"""Relative and absolute, of torch-spyre's tests of 16-bit numbers."""


class LlamaBlock(nn.Module):
    """Attention over all tokens of a sequence, and the gated layers behind it."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.attention_norm, self.gate_norm = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.output(self.attend(self.attention_norm(x)))
        y = self.gate_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        heads = (batch, tokens, self.heads, width // self.heads)
        q, k, v = (f(x).view(heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q * self.scale, k.transpose(-1, -2))
        mixed = torch.matmul(torch.softmax(scores, -1), v)
        return mixed.transpose(1, 2).reshape(batch, tokens, width)


def main() -> int:
    torch.manual_seed(0)
    block = LlamaBlock(width=256, heads=4, inner=512).half().eval()
    x = torch.randn(2, 64, 256).half()
    with torch.no_grad():
        expected = block(x)
        on_card = torch.compile(block.to("spyre"))
        given = x.to("spyre")
        on_card(given)  # compiles
        with torch.spyre.profile() as profile:
            found = on_card(given)
    print(profile)
    worst = (found.cpu() - expected).abs().max().item()
    print(f"largest difference from the CPU: {worst:.4f}")
    return int(not torch.allclose(found.cpu(), expected, rtol=TOLERANCE, atol=TOLERANCE))


if __name__ == "__main__":
    sys.exit(main())
