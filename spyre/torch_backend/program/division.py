"""Dividing the dims of an operation over the cores."""

from __future__ import annotations

from collections.abc import Mapping

from spyre.torch_backend.cores import usable_cores


def divide(steps: Mapping[str, int]) -> dict[str, int]:
    """Slices per dim, at most SENCORES together.

    ``steps``: units along each dim that a core takes as a whole, the outermost dim first. Dims are
    divided in the order given, each by its largest divisor that leaves no core twice.
    """
    cores = usable_cores()
    found: dict[str, int] = {}
    for dim, count in steps.items():
        slices = max(n for n in range(1, min(cores, count) + 1) if count % n == 0)
        if slices > 1:
            found[dim] = slices
            cores //= slices
    return found
