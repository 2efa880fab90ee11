"""The passes of a compilation, in their order (hardware reference §4; the coarse-tiling document).

Padding and constants come where operands have layouts and numbers have memory: in kernels, after
tiling. Tiles of K are whole sticks, so that tiling sees what it would see of padded factors.
"""

from __future__ import annotations

GRAPH_PASSES = (
    "remove_dead_code",
    "propagate_layouts",
    "restickify",
    "propagate_named_dims",
    "assign_dim_hints",
    "coarse_tile",
)
"""On the ir.Operations of a graph, before it is scheduled."""

KERNEL_PASSES = (
    "remove_unread",
    "insert_bmm_padding",
    "dedup_and_promote_constants",
    "span_reduction",
    "cost_model_matmul_division",
    "work_distribution",
    "scratchpad_planning",
    "hbm_pool_planning",
)
"""On the operations of each bundle; division and planning of memory see them as OpSpecs."""
