"""`ReStickifyOpHBM` operations put into a graph, and operations led to what they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from spyre.layout import contiguous_strides
from spyre.torch_backend.inductor.compat import V, WrapperHandler, clear_caches, ir, ops
from spyre.torch_backend.inductor.graph_to_ir import ATTRIBUTE, DeviceOperation
from spyre.torch_backend.inductor.layouts import tiled
from spyre.torch_backend.inductor.tiling.full_buffers import register
from spyre.torch_backend.program.op_spec import OpKind
from spyre.torch_backend.program.value import Ints

RESTICKIFY = DeviceOperation(OpKind.RESTICKIFY, "ReStickifyOpHBM")


@dataclass(frozen=True, slots=True)
class Source:
    """Elements of a buffer: ``strides`` (elements) per index, from ``offset`` on."""

    buffer: str
    strides: Ints
    offset: int = 0

    def at(self, index: Sequence[Any]) -> Any:
        """The element's index in the buffer."""
        steps = (s * i for s, i in zip(self.strides, index, strict=True))
        return sympy.Add(self.offset, *steps)


def insert_restickify(graph: Any, before: Any, source: Source, sizes: Ints, lane: int) -> Any:
    """A copy of ``source``, a tensor of ``sizes`` and the dtype of its buffer, with sticks along
    ``lane``: a ComputedBuffer in front of operation ``before``, with its origins.
    """
    origin = graph.graph_inputs.get(source.buffer) or graph.get_buffer(source.buffer)
    data = _copy_of(source, sizes, origin.get_dtype(), before.get_device())
    layout = ir.FixedLayout(data.device, data.dtype, list(sizes), list(contiguous_strides(sizes)))
    with ir.IRNode.current_origins(before.get_origins()):
        found = ir.ComputedBuffer(name=None, layout=tiled(layout, lane), data=data)
    setattr(found, ATTRIBUTE, RESTICKIFY)
    _place(graph, found, before)
    return found


def split_memory(graph: Any, operation: Any, lane: int) -> Any:
    """Let ``operation`` compute into a new buffer of its strides with sticks along ``lane``, and
    its own buffer, which keeps its name, layout and readers, be a copy. Returns the new operation.
    """
    data = operation.data
    sizes = tuple(int(n) for n in data.ranges)
    strides = tuple(int(n) for n in operation.layout.stride)
    layout = ir.FixedLayout(data.device, data.dtype, list(sizes), list(strides))
    with ir.IRNode.current_origins(operation.get_origins()):
        computed = ir.ComputedBuffer(name=None, layout=tiled(layout, lane), data=data)
        _place(graph, computed, operation)
        source = Source(computed.get_name(), strides)
        operation.data = _copy_of(source, sizes, data.dtype, data.device)
    if (known := getattr(operation, ATTRIBUTE, None)) is not None:
        setattr(computed, ATTRIBUTE, known)
    setattr(operation, ATTRIBUTE, RESTICKIFY)
    clear_caches(operation)
    return computed


def _copy_of(source: Source, sizes: Ints, dtype: Any, device: Any) -> Any:
    def body(index: Sequence[Any]) -> Any:
        return ops.load(source.buffer, source.at(index))

    return ir.Pointwise(device=device, dtype=dtype, inner_fn=body, ranges=list(sizes))


def _place(graph: Any, operation: Any, before: Any) -> None:
    register(operation)
    places = [id(known) for known in graph.operations]
    graph.operations.insert(places.index(id(before)), operation)


class _Led(WrapperHandler):  # type: ignore[misc]
    """Counts loads; those with a new source go there."""

    def __init__(self, inner: Any, sources: Mapping[int, Source], index: Sequence[Any]) -> None:
        super().__init__(inner)
        self._sources, self._index, self._loads = sources, index, 0

    def load(self, name: str, index: Any) -> Any:
        source = self._sources.get(self._loads)
        self._loads += 1
        if source is None:
            return self._inner.load(name, index)
        return self._inner.load(source.buffer, source.at(self._index))


def lead(operation: Any, sources: Mapping[int, Source]) -> None:
    """Let loads of a body, by their number, read ``sources``; strides are per symbol of the
    iteration, the reduced ones last.
    """
    body = operation.data.inner_fn

    def inner_fn(*indices: Sequence[Any]) -> Any:
        index = [symbol for part in indices for symbol in part]
        with V.set_ops_handler(_Led(V.get_ops_handler(), sources, index)):
            return body(*indices)

    object.__setattr__(operation.data, "inner_fn", inner_fn)
    clear_caches(operation.data)
    clear_caches(operation)
