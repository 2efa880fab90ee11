"""What is different about Inductor while it compiles a graph on spyre.

Inductor has one configuration per process. While a graph with tensors on spyre is compiled, and at
no other time, these settings and hooks are in force; the backward graph, which is compiled later,
enters the same context.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from spyre.torch_backend.inductor.cache_key import cache_key
from spyre.torch_backend.inductor.compat import (
    CustomGraphPass,
    GraphLowering,
    inductor_config,
    ir,
    joint_graph,
)
from spyre.torch_backend.inductor.lowerings import mark_fallbacks, mark_fallbacks_in
from spyre.torch_backend.inductor.observing import Graph, is_observed, note
from spyre.torch_backend.inductor.passes import order
from spyre.torch_backend.inductor.pre_scheduling import pre_scheduling
from spyre.torch_backend.inductor.scheduling import PostFusionPasses

SETTINGS = {
    "always_keep_tensor_constants": True,
    "split_reductions": False,
    "benchmark_harness": False,
    "unroll_reductions_threshold": 1,
    "permute_fusion": False,
    "allow_buffer_reuse": False,
    "inplace_buffers": False,
    "fallback_random": True,
    "online_softmax": False,
    "layout_optimization": False,
    "pattern_matcher": False,
    "loop_ordering_after_fusion": False,
    "pick_loop_orders": False,
    "reorder_for_locality": False,
    "reorder_for_peak_memory": False,
}
"""Settings under which one ir.Operation is one device operation, and dims keep their places."""


class PostGradPasses(CustomGraphPass):  # type: ignore[misc]
    """What runs on FX graphs before they are lowered."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Change ``graph`` in place."""
        mark_fallbacks(graph)
        note(Graph(str(graph)) if is_observed() else None)

    def uuid(self) -> str | None:
        """Changes with all that graphs and their inputs do not say."""
        key = cache_key()
        return None if key is None else key + order.settings()


class _Depth(threading.local):
    value = 0


_depth = _Depth()


@contextmanager
def spyre_context() -> Iterator[None]:
    """Compile for spyre; entering it again within changes nothing."""
    _depth.value += 1
    try:
        if _depth.value > 1:
            yield
        else:
            with _hooks(), inductor_config.patch(_settings()):
                yield
    finally:
        _depth.value -= 1


def _settings() -> dict[str, Any]:
    passes = {
        "post_grad_custom_post_pass": PostGradPasses(),
        "_post_fusion_custom_pass": PostFusionPasses(),
    }
    return SETTINGS | passes


@contextmanager
def _hooks() -> Iterator[None]:
    """Places where Inductor asks nobody: every operation is realised, passes before scheduling.

    Patterns of joint graphs are not traced, which takes seconds: ``pattern_matcher`` is off.
    """
    update, is_large = GraphLowering._update_scheduler, ir.Loops.has_large_inner_fn
    run, trace_patterns = GraphLowering.run, joint_graph.lazy_init
    ir.Loops.has_large_inner_fn = joint_graph.lazy_init = _always

    def passes_first(graph: Any) -> None:
        pre_scheduling(graph)
        update(graph)

    def fallbacks_marked(graph: Any, *args: Any) -> Any:
        mark_fallbacks_in(graph.module)
        return run(graph, *args)

    GraphLowering._update_scheduler = passes_first
    GraphLowering.run = fallbacks_marked
    try:
        yield
    finally:
        GraphLowering._update_scheduler, ir.Loops.has_large_inner_fn = update, is_large
        GraphLowering.run = run
        joint_graph.lazy_init = trace_patterns


def _always(*_: Any, **__: Any) -> bool:
    return True
