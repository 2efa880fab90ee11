"""Inductor's lowerings for spyre: ``spyre::run``, views, and eager operations for all else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spyre.torch_backend.eager.copies import CONVERTED
from spyre.torch_backend.eager.masks import is_number_of
from spyre.torch_backend.inductor.compat import OpOverload, lowering
from spyre.torch_backend.inductor.graph_to_ir import GraphToIr, keep_apart
from spyre.torch_backend.inductor.program_op import RUN, graph_of, results_of

aten = torch.ops.aten

KEPT = frozenset(
    {
        RUN,
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.expand.default,
        aten.unsqueeze.default,
        aten.squeeze.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.slice.Tensor,
        aten.select.int,
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unbind.int,
        aten.alias.default,
        aten.detach.default,
        aten.as_strided.default,
        aten.full.default,
        aten.copy_.default,
    }
)
"""What Inductor lowers of operations on spyre tensors; all others run eagerly, between bundles."""


def install_lowerings() -> None:
    """Register the lowering of ``spyre::run``, once per process."""
    if RUN not in lowering.lowerings:
        lowering.register_lowering(RUN, type_promotion_kind=None)(_run)


def _run(operands: Sequence[Any], call: str, results: str) -> list[Any]:
    for box in operands:
        box.realize()
        keep_apart(box)
    maker = GraphToIr(operands)
    known = zip(graph_of(call), results_of(results), strict=True)
    return [maker.result(value, strides) for value, (_, _, strides) in known]


def mark_fallbacks_in(module: torch.nn.Module) -> None:
    """`mark_fallbacks` of a graph and of the graphs inside of it."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            mark_fallbacks(part.graph)


def mark_fallbacks(graph: torch.fx.Graph) -> None:
    """Have Inductor call eager mode for every node on spyre that is not `KEPT`.

    Nodes that only put others in an order have the marks of those, which are not theirs.
    """
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload):
            node.meta.pop("should_fallback", None)
        elif not _is_kept(node) and _is_on_spyre(node):
            if node.target not in lowering.lowerings:
                lowering.make_fallback(node.target, warn=False, override_decomp=True)
            node.meta["should_fallback"] = True


def _is_kept(node: torch.fx.Node) -> bool:
    """Copies onto tensors where there is nothing to convert, fills with what cards hold."""
    if node.target is aten.copy_.default:
        target, source = (a.meta["val"] for a in node.args[:2])
        alike = target.dtype == source.dtype and target.device == source.device
        return alike and target.dtype in CONVERTED and target.numel() > 0
    if node.target is aten.full.default:
        made = node.meta["val"]
        return made.dtype in CONVERTED and is_number_of(node.args[1], made.dtype) and made.numel()
    return node.target in KEPT


def _is_on_spyre(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    found = value if isinstance(value, (list, tuple)) else [value]
    given = [a.meta.get("val") for a in node.all_input_nodes]
    tensors = [t for t in (*found, *given) if isinstance(t, torch.Tensor)]
    return any(t.device.type == "spyre" for t in tensors)
