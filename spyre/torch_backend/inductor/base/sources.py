"""Argument names of the user's function, and the source lines of a graph's operations.

Generated code is shared: by functions with equal graphs, by processes, and by calls of one kernel.
A call therefore contains only names in the graph that Dynamo made (`KernelCall`), which are part of
Inductor's cache key. Source lines change with every edit and differ between functions, so they are
looked up in this process.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from spyre.runtime.flex import SourcePlace

TAG = "spyre_source"
"""Key of a node's ``meta["custom"]``, which nodes derived from it inherit."""
Tag = tuple[str, str]
"""Identity of a graph, and the name of a node in it."""
_RESUMED = "torch_dynamo_resume_in_"
_TORCH = os.path.dirname(torch.__file__) + os.sep
_LINE = re.compile(r'File "([^"]*)", line (\d+)')
_MEMBER = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
_LOCAL = re.compile(r"L\['(\w+)'\]")

_lines: dict[str, list[Mapping[str, SourcePlace]]] = {}
"""Lines of a graph's nodes in each function with it, by the graph's identity; threads only add."""


def sources_of(model: Any) -> tuple[str, tuple[str, ...]]:
    """Tag the nodes of a graph made by Dynamo and record their source lines.

    Returns its identity, the same for equal graphs and for graphs derived from them, and the names
    of the arguments of ``compile_fx`` in the user's function, "" for an argument without one.
    """
    if not isinstance(model, torch.fx.GraphModule):
        return "", ()
    arguments = model.graph.find_nodes(op="placeholder")
    if not any("grapharg" in node.meta for node in arguments):
        known = {tag[0] for node in model.graph.nodes if (tag := _tag(node)) is not None}
        return "+".join(sorted(known)), ()
    nodes = list(_operations(model))
    traces = [str(node.meta.get("stack_trace") or "") for _, node in nodes]
    # the locals of a function resumed after a graph break are not its arguments
    is_whole = not any(_RESUMED in trace for trace in traces)
    origins = [getattr(node.meta.get("grapharg"), "source", None) for node in arguments]
    names = tuple(readable(str(o.name)) if o is not None and is_whole else "" for o in origins)
    modules = [_module_path(node) for _, node in nodes]
    called = [name for name, _ in nodes]
    code = [part.code for part in _graphs(model).values()]
    digest = hashlib.sha256(repr((names, called, modules, code)).encode()).hexdigest()[:16]
    for name, node in nodes:
        node.meta["custom"] = {**(node.meta.get("custom") or {}), TAG: (digest, name)}
    functions = _lines.setdefault(digest, [])
    places = map(_place, modules, traces)
    lines = {name: place for name, place in zip(called, places, strict=True) if place is not None}
    if lines not in functions:
        functions.append(lines)
        _places.cache_clear()
    return digest, names


def _operations(model: torch.fx.GraphModule) -> Iterator[tuple[str, torch.fx.Node]]:
    """Operations of a graph and its subgraphs, by unique names."""
    for path, part in _graphs(model).items():
        prefix = f"{path}." if path else ""
        for node in part.graph.nodes:
            if node.op not in ("placeholder", "output", "get_attr"):
                yield prefix + node.name, node


def _graphs(model: torch.fx.GraphModule) -> dict[str, torch.fx.GraphModule]:
    """A graph and its subgraphs, by path."""
    parts = model.named_modules()
    return {path: part for path, part in parts if isinstance(part, torch.fx.GraphModule)}


def readable(source: str) -> str:
    """``self.fc.weight`` for the source of an argument as Dynamo writes it."""
    return _LOCAL.sub(r"\1", _MEMBER.sub(r".\1", source), count=1)


def _module_path(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    return readable(str(next(reversed(stack.values()))[0])) if stack else ""


def _place(module: str, trace: str) -> SourcePlace | None:
    """The innermost line of a stack trace outside of torch, else that in torch, if there is any."""
    found = _LINE.match(trace, max(trace.rfind('File "'), 0))
    if found is None:
        return None
    if found[1].startswith(_TORCH):
        every = list(_LINE.finditer(trace))
        found = next((line for line in every[::-1] if not line[1].startswith(_TORCH)), found)
    return SourcePlace(module, found[1], int(found[2]))


# --- calls of kernels -------------------------------------------------------------------------


def tags_of(operation: Any) -> tuple[Tag, ...]:
    """Sorted tags of an ir.Operation: of its node, or else of its origins."""
    node = getattr(operation, "origin_node", None)
    nodes = [node] if node is not None and _tag(node) else operation.get_origins()
    return tuple(sorted({tag for node in nodes if (tag := _tag(node)) is not None}))


def aten_op_of(operation: Any) -> str:
    """The aten operation of an ir.Operation's first tagged node, "" without one."""
    node = getattr(operation, "origin_node", None)
    nodes = [node] if node is not None and _tag(node) else operation.get_origins()
    made = [str(n.meta.get("original_aten") or "") for n in nodes if _tag(n) is not None]
    return next((name for name in sorted(made) if name.startswith("aten.")), "")


def _tag(node: torch.fx.Node) -> Tag | None:
    found: Tag | None = (node.meta.get("custom") or {}).get(TAG)
    return found


class KernelCall(msgspec.Struct, frozen=True):
    """A call of a kernel in generated code. ``names``: of its arguments, by arg_index, "" for
    arguments without one. ``executes``: per execute, its nodes in the graph ``identity``.
    ``origins``: per execute, its aten operation, after a name that counts that operation's nodes.
    """

    identity: str
    names: tuple[str, ...] = ()
    executes: tuple[tuple[str, ...], ...] = ()
    is_backward: bool = False
    origins: tuple[tuple[str, str], ...] = ()

    def places_of(self, execute: int) -> tuple[SourcePlace, ...]:
        """Source lines of an execute, in every function with this graph."""
        if execute >= len(self.executes):
            return ()
        return _places(self.identity, self.executes[execute], self.is_backward)


NO_CALL = KernelCall("")


@functools.lru_cache(4096)
def _places(identity: str, names: Sequence[str], is_backward: bool) -> tuple[SourcePlace, ...]:
    graphs = _lines.get(identity, [])
    found = (lines[name] for lines in graphs for name in names if name in lines)
    each = (SourcePlace(p.module, p.file, p.line, is_backward) for p in found)
    return tuple(dict.fromkeys(each))


def kernel_call(
    names: Sequence[str],
    executes: Sequence[Sequence[Tag]],
    is_backward: bool,
    aten_ops: Sequence[str] = (),
) -> KernelCall:
    """The call of a kernel; tags of other graphs than the first one are ignored."""
    identity = next((tag[0] for tags in executes for tag in tags), "")
    known = tuple(tuple(name for graph, name in tags if graph == identity) for tags in executes)
    origins = tuple(_origins(known, aten_ops)) if any(aten_ops) else ()
    return KernelCall(identity, tuple(names), known, is_backward, origins)


def _origins(
    executes: Sequence[tuple[str, ...]], aten_ops: Sequence[str]
) -> Iterator[tuple[str, str]]:
    known: dict[tuple[tuple[str, ...], str], str] = {}
    counts: Counter[str] = Counter()
    for nodes, op in zip(executes, aten_ops, strict=True):
        name = op.removeprefix("aten.").partition(".")[0].strip("_")
        if name and (nodes, op) not in known:
            known[nodes, op] = f"{name}_{counts[name]}" if counts[name] else name
            counts[name] += 1
        yield known.get((nodes, op), ""), op
