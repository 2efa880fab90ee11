"""A ViT of two layers with random weights sorts images into ten classes on the device."""

import torch
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(0)
config = ViTConfig(
    image_size=32,
    patch_size=8,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_labels=10,
    initializer_range=0.1,
)
model = ViTForImageClassification(config).eval()
images = torch.randn(4, 3, 1, 1) + torch.randn(4, 3, 32, 32)

with torch.no_grad():
    on_cpu = model(images).logits
    model.to("spyre", torch.float16)
    on_device = model(images.to("spyre", torch.float16)).logits

error = (on_device.cpu().float() - on_cpu).abs().max().item()
print(f"classes: {on_device.argmax(dim=-1).tolist()}")
print(f"largest difference from float32 on the CPU: {error:.4f} of {on_cpu.abs().max():.4f}")
