"""A BERT of two layers with random weights reads a padded batch on the device."""

import torch
from transformers import BertConfig, BertModel

torch.manual_seed(0)
config = BertConfig(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)
model = BertModel(config).eval()
tokens = torch.randint(1, 128, (2, 16))
mask = torch.ones_like(tokens)
mask[1, 10:] = 0  # the second text is shorter

with torch.no_grad():
    on_cpu = model(tokens, attention_mask=mask).last_hidden_state
    model.to("spyre", torch.float16)
    on_device = model(tokens.to("spyre"), attention_mask=mask.to("spyre")).last_hidden_state

error = (on_device.cpu().float() - on_cpu).abs().max().item()
print(f"hidden states: {tuple(on_device.shape)} {on_device.dtype} on {on_device.device}")
print(f"largest difference from float32 on the CPU: {error:.4f} of {on_cpu.abs().max():.4f}")
