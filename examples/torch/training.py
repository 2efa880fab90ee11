"""A two-layer network learns one batch on the device, under autocast."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).to("spyre")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
inputs = torch.randn(32, 64).to("spyre")
labels = torch.randint(10, (32,)).to("spyre")

for step in range(10):
    optimizer.zero_grad()
    with torch.autocast("spyre", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
