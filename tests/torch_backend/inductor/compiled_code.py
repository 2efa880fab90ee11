"""Compiled functions and the kernels they consist of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import spyre
from spyre.hw.device.device import Device
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.torch_backend.inductor.bundles import kernels
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims


@contextmanager
def collected() -> Iterator[list[InductorKernel]]:
    """The kernels that are made in the block, by this process and not from a cache."""
    found: list[InductorKernel] = []
    original = InductorKernel.__init__

    def init(self: InductorKernel, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        found.append(self)

    kernels.InductorKernel.__init__ = init  # type: ignore[method-assign]
    try:
        with torch._inductor.config.patch(force_disable_caches=True):
            yield found
    finally:
        kernels.InductorKernel.__init__ = original  # type: ignore[method-assign]


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Any, list[InductorKernel]]:
    """Return the compiled function's result, and its kernels."""
    torch._dynamo.reset()
    with collected() as kernels:
        result = torch.compile(function, fullgraph=True, dynamic=False)(*args)
    return result, kernels


def named(tensor: torch.Tensor, *names: str) -> torch.Tensor:
    """The tensor on the card, its dims named and declared."""
    card = tensor.to("spyre")
    for name, extent in zip(names, tensor.shape, strict=True):
        declare_tensor_dim(name, extent)
    name_tensor_dims(card, list(names))
    return card


def run_clean(kernel: InductorKernel, place: Path) -> Any:
    """The kernel's bundle, checked without a finding and run on made-up arguments with counters."""
    directory = write_bundle(kernel.bundle, place)
    assert load_bundle(directory).check() == ()
    return spyre.run(directory, device=Device(threads=2))
