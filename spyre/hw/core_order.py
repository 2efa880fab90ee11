"""Running the cores of an execute one after another, in shuffled order.

Planners fold cores into loop axes, which fixes an order that hides dependences between cores. With
a seed, an operation is planned share by share instead: a *share* is the cores that must stay
together because they combine partial results.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from spyre.errors import LaunchError
from spyre.hw.nest import Int64Array
from spyre.mlir.operation import Operation


def parse_core_order(text: str | None) -> int | None:
    """Seed of "random" (0) or "random:SEED"; None for None. LaunchError SPY739 for other texts."""
    if text is None:
        return None
    name, _, seed = text.partition(":")
    if name == "random" and (seed.isdigit() or text == "random"):
        return int(seed or 0)
    raise LaunchError(
        "SPY739", "unknown order of cores", expected="random or random:SEED", found=text
    )


def shares(op: Operation) -> list[Int64Array]:
    """Positions of the cores of each share, in order of their first cores."""
    output = op.outputs[0]
    split = [d for d in op.dims if op.slices.get(d, 1) > 1]
    reduced = [d for d in split if not output.holds(d) and any(t.holds(d) for t in op.inputs)]
    if not reduced:
        return [np.array([position]) for position in range(len(op.cores))]
    kept = [d for d in split if d not in reduced]
    members: dict[tuple[int, ...], list[int]] = {}
    for position, slices in enumerate(op.core_slices):
        members.setdefault(tuple(slices.get(d, 0) for d in kept), []).append(position)
    return [np.array(positions) for positions in members.values()]


def shuffled(
    op: Operation, starts: Int64Array, seed: int
) -> Iterator[tuple[Operation, Int64Array]]:
    """The operation restricted to one share after another, with the starts of its cores.

    ``starts``: bytes, [operand, core]. The order depends on seed and SDSC only.
    """
    parts = shares(op)
    rng = np.random.default_rng((seed, zlib.crc32(op.file.encode())))
    for k in rng.permutation(len(parts)):
        chosen = parts[int(k)]
        part = replace(
            op,
            cores=tuple(op.cores[p] for p in chosen),
            core_slices=tuple(op.core_slices[p] for p in chosen),
        )
        yield part, starts[:, chosen]
