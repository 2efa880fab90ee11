"""The order of scheduled nodes in which the fewest bundles do the work.

What does not run in bundles keeps its order, as random numbers and other side effects want it, and
comes as early as what it needs allows; the operations of bundles then follow together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def in_few_runs(nodes: Sequence[Any], is_bundled: Callable[[Any], bool]) -> list[Any]:
    """``nodes`` in another order that their dependencies allow; theirs is one already."""
    makers = {b.get_name(): k for k, node in enumerate(nodes) for b in node.get_outputs()}
    needs = [
        {makers[dep.name] for dep in node.unmet_dependencies if dep.name in makers} - {k}
        for k, node in enumerate(nodes)
    ]
    bundled = [k for k, node in enumerate(nodes) if is_bundled(node)]
    others = sorted(set(range(len(nodes))) - set(bundled))
    done: dict[int, None] = {}
    while bundled or others:
        while others and needs[others[0]] <= done.keys():
            done[others.pop(0)] = None
        for k in bundled:
            if needs[k] <= done.keys():
                done[k] = None
        bundled = [k for k in bundled if k not in done]
    return [nodes[k] for k in done]
