"""``python -m qa.models.speed``: times of two full-size image models on the card and on the CPU.

ResNet-18 and ViT-Base on one image of 224 x 224, float16 on the card, eager and compiled, against
float32 on the CPU with all of torch's threads; in one process, by turns. Prints medians, which are
valid on an idle machine only.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import torch
import transformers
from torch import nn

from qa.models.cases import resnet18
from spyre.torch_backend import autoload

ROUNDS = 7


def _vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig()).eval()


def measure(build: Callable[[], nn.Module], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the seconds of a call until the result is on the host, by the name of the call."""
    torch.manual_seed(0)
    model, image = build(), torch.randn(1, 3, 224, 224)
    on_card = build().half().to("spyre")
    given, compiled = image.half().to("spyre"), torch.compile(on_card)
    calls: dict[str, Callable[[], object]] = {
        "CPU": lambda: model(image).logits,
        "eager": lambda: on_card(given).logits.cpu(),
        "compiled": lambda: compiled(given).logits.cpu(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for number in range(rounds + 2):  # two to warm up
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                if number >= 2:
                    seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    """Print the table."""
    autoload()
    warnings.simplefilter("ignore")
    print("| model | CPU, float32 | eager | compiled |\n| --- | --- | --- | --- |")
    for name, build in (("ResNet-18", resnet18), ("ViT-Base", _vit)):
        seconds = measure(build)
        cpu = seconds["CPU"]
        ratios = " | ".join(f"{seconds[way] / cpu:.2f} ×" for way in ("eager", "compiled"))
        print(f"| {name} | {cpu * 1e3:.1f} ms | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
