"""``torch.spyre.ktir``: KTIR functions that are launched on tensors of the device."""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from spyre.errors import LaunchError
from spyre.layout import contiguous_strides
from spyre.lru_cache import LruCache
from spyre.mlir.tiles import KtirArgument, KtirProgram, load_ktir
from spyre.runtime.flex import LaunchPlan, LoadedKernel
from spyre.runtime.kernel import Kernel, Launch
from spyre.runtime.run import TilePointer, Traces, traced_function
from spyre.torch_backend.device import name_of
from spyre.torch_backend.tensors import DeviceBuffer, buffer_of

if TYPE_CHECKING:
    from spyre.hw.tiles import TracedKernel

MOST_LOADED = 64
"""Traced functions that are kept on the card, per `KtirFunction`."""


def ktir(source: str | os.PathLike[str], function: str | None = None) -> KtirFunction:
    """The function of a KTIR text, or of a file, to be called with its arguments in order.

    ``function``: its name, if there are several. Errors of `spyre.load_ktir`; ValidationError for
    a text with errors.
    """
    program = load_ktir(source)
    program.check(raise_on_error=True)
    return KtirFunction(program, program.function(function).name)


class KtirFunction:
    """Launches a function on the current stream: tensors of the device at its pointers, numbers.

    A pointer sees a tensor's elements row by row, or as they are in device memory if its view has
    the shape of that. Tensors that are not row by row in device memory are copied, and copied back
    if the function stores to them. Nothing is returned: results are in the tensors.
    """

    def __init__(self, program: KtirProgram, name: str) -> None:
        self.program, self.name = program, name
        self.arguments = program.arguments(name)
        self._traces: Traces = LruCache(MOST_LOADED)
        self._loaded: LruCache[tuple[int, int, int], tuple[LoadedKernel, torch.Tensor]] = LruCache(
            MOST_LOADED
        )

    def __call__(self, *values: Any) -> None:
        """LaunchError SPY342 for values that do not fit the arguments; errors of the trace."""
        arguments = self.arguments
        if len(values) != len(arguments):
            names = ", ".join(argument.name for argument in arguments)
            raise self._error(f"{self.name} has {len(arguments)} arguments", names, len(values))
        pointers: dict[str, TilePointer] = {}
        numbers: dict[str, float] = {}
        memory: list[torch.Tensor] = []
        owners: dict[int, str] = {}
        stored: list[tuple[torch.Tensor, torch.Tensor]] = []
        for argument, value in zip(arguments, values, strict=True):
            name, kind = argument.name, type(value).__name__
            if not argument.is_pointer:
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise self._error(f"argument {name} is a number", argument.element, kind)
                numbers[name] = value
                continue
            if not isinstance(value, torch.Tensor) or value.device.type != "spyre":
                found = value.device if isinstance(value, torch.Tensor) else kind
                message, expected = f"argument {name} is a pointer", "a tensor on the device spyre"
                raise self._error(message, expected, found)
            used, count = _in_memory(argument, value)
            if used is not value and argument.is_stored:
                stored.append((value, used))
            memory.append(used)
            shared = owners.setdefault(used.untyped_storage().data_ptr(), name)
            pointers[name] = TilePointer.of(name, (count,), name_of(value.dtype), shared=shared)
        self._launch(pointers, numbers, memory)
        for tensor, used in stored:
            tensor.copy_(used.view(tensor.shape))

    def _launch(
        self,
        pointers: dict[str, TilePointer],
        numbers: dict[str, float],
        memory: list[torch.Tensor],
    ) -> None:
        buffers = [buffer_of(tensor) for tensor in memory]
        if len({buffer.card for buffer in buffers}) != 1:
            raise self._error("tensors of one card are needed", "at least one tensor", "others")
        card = buffers[0].card
        numerics = card.device.numerics
        traced = traced_function(self.program, self.name, pointers, numbers, numerics, self._traces)
        key = (id(traced), id(card), card.device.resets)
        loaded, table = self._loaded.get_or_make(key, lambda: _load(traced, card, buffers[0]))
        buffers.append(buffer_of(table))
        launch = Launch({k: buffer.tensor for k, buffer in enumerate(buffers)}, None)
        plan = LaunchPlan.of(loaded.kernel, launch)
        loaded.kernel.link_at(plan.signature, launch.addresses, plan.names)
        work = loaded.bind_at(plan, launch.addresses, [buffer.memory for buffer in buffers])
        card.streams.current.submit(work)

    def _error(self, message: str, expected: str, found: object) -> LaunchError:
        place = self.program.module.locate(self.program.function(self.name).position)
        return LaunchError("SPY342", message, place, expected=expected, found=str(found))


def _load(traced: TracedKernel, card: Any, like: DeviceBuffer) -> tuple[LoadedKernel, torch.Tensor]:
    """The kernel on the card, and the memory of its constants."""
    kernel = Kernel(traced, card.device)
    loaded = card.blocking.load(kernel)
    kernel.reserve_scratch()
    words = torch.from_numpy(traced.constants.view(np.int32))
    return loaded, words.to(torch.device("spyre", card.index))


def _in_memory(argument: KtirArgument, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The tensor whose memory the function uses, and its elements: the tensor itself if its memory
    is as the function expects it, else its elements in a row.
    """
    layout = buffer_of(tensor).tensor.layout
    size = tuple(layout.device_size)
    is_whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    if is_whole and argument.shape == size != tuple(tensor.shape):
        return tensor, prod(size)
    steps = zip(size, layout.stride_map, contiguous_strides(size), strict=True)
    in_rows = all(extent == 1 or step == stride for extent, step, stride in steps)
    if is_whole and tensor.is_contiguous() and in_rows:
        return tensor, tensor.numel()
    row = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return row.copy_(tensor.reshape(-1)), tensor.numel()
