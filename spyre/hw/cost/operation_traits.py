"""What the models need to know of an operation beyond its counts, by the dims its operands have.

For whoever makes `OperationCounts`, be it from SDSCs or from what the compiler plans: a *dim* is
what stands for one in either, a name or a symbol.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import TypeVar

from spyre.hw.cost.operation_counts import ProductShape

Dim = TypeVar("Dim")


def product_dims(
    dims: Sequence[Dim], first: Collection[Dim], second: Collection[Dim], result: Collection[Dim]
) -> dict[str, list[Dim]]:
    """``dims`` of a product by what they are: m, n, k, batch. The others: which of them each has.

    Rows (m) are dims of the first operand and the result, columns (n) of the second and the result,
    batches of all three; what the result lacks is reduced.
    """
    found: dict[str, list[Dim]] = {"m": [], "n": [], "k": [], "batch": []}
    for dim in dims:
        if dim not in result:
            found["k"].append(dim)
        elif dim not in second:
            found["m"].append(dim)
        else:
            found["batch" if dim in first else "n"].append(dim)
    return found


def product_shape(
    dims: Mapping[str, Sequence[Dim]], extents: Mapping[Dim, int], cores: Mapping[Dim, int]
) -> ProductShape:
    """The shape of a product. ``dims``: of :func:`product_dims`; ``extents``: elements of each,
    ``cores``: among how many it is divided, where it is.
    """
    size = {kind: prod(extents[dim] for dim in held) for kind, held in dims.items()}
    split = {kind: prod(cores.get(dim, 1) for dim in held) for kind, held in dims.items()}
    return ProductShape(
        m=size["m"],
        k=size["k"],
        n=size["n"],
        batch=size["batch"],
        m_cores=split["m"],
        n_cores=split["n"],
        k_cores=split["k"],
        batch_cores=split["batch"],
    )


def is_broadcast(operand: Collection[Dim], result: Collection[Dim]) -> bool:
    """True if an operand lacks some dims of the result, but not all. Dims of 1 are left out."""
    held = sum(dim in operand for dim in result)
    return 0 < held < len(result)
