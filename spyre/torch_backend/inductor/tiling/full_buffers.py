"""Full-sized buffers for what tiling loops make, and how operations are led to them.

A tiled operation computes one tile at a time; who reads its result outside of the loop reads a
buffer of full size, which `FullBuffer` allocates before the loop. Loads in the bodies of
operations are redirected by name, as their indices are always made with the full strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spyre.torch_backend.inductor.compat import V, WrapperHandler, clear_caches, ir
from spyre.torch_backend.inductor.tiling.accesses import recombined


class FullBuffer(ir.NopKernel):  # type: ignore[misc]
    """Memory of full size that loops fill; the wrapper allocates it where this node stands."""

    def should_allocate(self) -> bool:
        """Always: no kernel makes it."""
        return True

    def has_side_effects(self) -> bool:
        """None; it goes away with what is written to it."""
        return False


def make_full_buffer(like: Any, layout: Any) -> FullBuffer:
    """A registered buffer with ``layout``, of the origins of operation ``like``; not yet placed."""
    with ir.IRNode.current_origins(like.get_origins()):
        full = FullBuffer(name=None, layout=layout, inputs=[])
    register(full)
    return full


def register(operation: Any) -> None:
    """Give an operation and its buffer names of the graph; it is in no list of operations yet."""
    graph = V.graph
    operation.name = _unused("buf", len(graph.buffers), graph.name_to_buffer, graph)
    graph.buffers.append(operation)
    graph.name_to_buffer[operation.name] = operation
    operation.operation_name = _unused("op", len(graph.operations), graph.name_to_op, graph)
    graph.name_to_op[operation.operation_name] = operation


def _unused(prefix: str, first: int, taken: Mapping[str, Any], graph: Any) -> str:
    number = first
    while (name := graph.qualify_name(f"{prefix}{number}")) in taken:
        number += 1
    return str(name)


def redirect_storage(operations: Iterable[Any], old: Any, new: Any) -> None:
    """Graph outputs, external calls and views of ``old`` refer to ``new`` from now on.

    Bodies of loop operations hold names: `redirect_loads` is for these.
    """
    V.graph.graph_outputs[:] = _replaced(list(V.graph.graph_outputs), old, new)
    for op in operations:
        if isinstance(op, ir.InputsKernel):
            op.inputs = _replaced(list(op.inputs), old, new)
        _replaced(getattr(op, "layout", None), old, new)


def _replaced(node: Any, old: Any, new: Any) -> Any:
    """``node`` with ``new`` in the place of ``old``; boxes around it change themselves."""
    if node is old:
        return new
    if isinstance(node, (list, tuple)):
        return type(node)(_replaced(part, old, new) for part in node)
    if isinstance(node, ir.StorageBox) and node.data is old:
        node.data = new
    elif isinstance(node, (ir.MutableBox, ir.BaseView)):
        _replaced(node.data, old, new)
    elif isinstance(node, ir.MutationLayoutSHOULDREMOVE):
        _replaced(node.target, old, new)
    elif isinstance(node, ir.NonOwningLayout):
        _replaced(node.view, old, new)
    return node


@dataclass(frozen=True, slots=True)
class Redirect:
    """Loads of a buffer go to ``name``; with strides ``new`` in the place of ``old``, if given."""

    name: str
    size: Sequence[Any] = ()
    old: Sequence[Any] = ()
    new: Sequence[Any] = ()

    def index(self, index: Any) -> Any:
        """The index in the other buffer."""
        return recombined(index, self.size, self.old, self.new) if self.new else index


class _Redirected(WrapperHandler):  # type: ignore[misc]
    def __init__(self, inner: Any, redirects: Mapping[str, Redirect]) -> None:
        super().__init__(inner)
        self._redirects = redirects

    def load(self, name: str, index: Any) -> Any:
        found = self._redirects.get(name)
        if found is None:
            return self._inner.load(name, index)
        return self._inner.load(found.name, found.index(index))


def redirect_loads(operation: Any, redirects: Mapping[str, Redirect]) -> None:
    """Let the body of a loop operation load from other buffers."""
    body: Callable[..., Any] = operation.data.inner_fn

    def inner_fn(*indices: Any) -> Any:
        with V.set_ops_handler(_Redirected(V.get_ops_handler(), redirects)):
            return body(*indices)

    object.__setattr__(operation.data, "inner_fn", inner_fn)
    clear_caches(operation.data)
    clear_caches(operation)


def keep_indices(operation: Any) -> None:
    """Loads of ``operation``'s buffer are indexed by the layout it has now, whatever it gets.

    Bodies hold loaders of the buffer, some through views with strides of their own.
    """
    indexer = operation.get_layout().make_indexer()
    operation.make_indexer = lambda: indexer
