"""Functions compiled with chosen settings and tiles, for design-space runs and benchmarks.

Settings are options of ``torch.compile``; tiles are hints around the whole function.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from spyre.hw.counters import LaunchCounts
from spyre.torch_backend import autoload
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint
from spyre.torch_backend.observe import counting

Function = Callable[..., Any]
_forms = itertools.count()


class ExampleTensor(msgspec.Struct, frozen=True):
    """Host sizes, a name per dim ("" for none) and a torch dtype name."""

    sizes: tuple[int, ...]
    names: tuple[str, ...]
    dtype: str = "float16"


def example_tensors(examples: Sequence[ExampleTensor], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Tensors on spyre with random numbers in [0, 1), integers 0 and 1, and their dims named."""
    autoload()
    generator = torch.Generator().manual_seed(seed)
    return tuple(_tensor(example, generator) for example in examples)


def _tensor(example: ExampleTensor, generator: torch.Generator) -> torch.Tensor:
    dtype = getattr(torch, example.dtype)
    values = torch.rand(example.sizes, generator=generator)
    tensor = (values if dtype.is_floating_point else values.round()).to(dtype).to("spyre")
    for name, size in zip(example.names, example.sizes, strict=True):
        if name:
            declare_tensor_dim(name, size)
    if any(example.names):
        name_tensor_dims(tensor, [name or None for name in example.names])
    return tensor


def compiled_with(
    function: Function, options: Mapping[str, Any], tiles: Mapping[str, int]
) -> Function:
    """``function`` for torch.compile with ``options``, its operations in ``tiles``.

    ``options``: settings of compiled functions by name, without "spyre.". ``tiles``: loops over
    named dims, the outermost first; a count of 1 is no loop. Several forms of one function may be
    used together: each has a separate code object, which Dynamo's cache is keyed by.
    """
    autoload()
    slices = {name: count for name, count in tiles.items() if count > 1}

    def tiled(*args: Any) -> Any:
        with spyre_hint(slices=slices):
            return function(*args)

    def whole(*args: Any) -> Any:
        return function(*args)

    form = tiled if slices else whole
    form.__code__ = form.__code__.replace(co_name=f"{form.__name__}_{next(_forms)}")
    chosen = {f"spyre.{name}": value for name, value in options.items()}
    compiled: Function = torch.compile(form, options=chosen, dynamic=False)
    return compiled


def forget_compiled() -> None:
    """Free Dynamo's compiled code of all forms; a later call compiles them again."""
    torch.compiler.reset()


def counted_call(function: Function, tensors: Sequence[torch.Tensor]) -> LaunchCounts:
    """Counts of the launches of one call, after a first call that compiles; without copies."""
    with torch.no_grad():
        function(*tensors)
        with counting() as counted:
            function(*tensors)
    return counted.cards[tensors[0].device.index]


def call_seconds(function: Function, tensors: Sequence[torch.Tensor]) -> float:
    """Host time of a call until the card is idle."""
    with torch.no_grad():
        begin = time.perf_counter()
        result = function(*tensors)
        torch.accelerator.synchronize()
        seconds = time.perf_counter() - begin
    del result
    return seconds
