"""How operations walk arguments: which host dims, from where, and whether all of them.

A dim can be tiled if every operation does the same at every element of it. So the operands of one
execute must start at the same element, and an operation must not leave a part of the dim to
another one. Used by :mod:`.kernel_dims`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from spyre.hw.nest import Int64Array
from spyre.mlir.footprint import core_extent, window_of
from spyre.runtime.arguments import ArgumentSpec
from spyre.runtime.tiling.device_dims import device_dims
from spyre.runtime.tiling.dim_classes import ArgumentDim, DimClasses, ExecuteDim
from spyre.runtime.tiling.operand_dims import WalkedDim, start_coordinates, walked_dims
from spyre.runtime.tiling.operand_uses import OperandUse

Starts = Mapping[ExecuteDim, Int64Array]
"""Element every core starts at, [instance, core], by dim of an execute statement."""


@dataclass(frozen=True)
class Walk:
    """One dim of an operand in an argument.

    ``starts``: element of the host dim, [instance, core]; ``share``: elements of one core;
    ``extent``: of the host dim. They mean nothing for a walk that is not plain.
    """

    use: OperandUse
    walked: WalkedDim
    starts: Int64Array
    share: int
    extent: int

    @property
    def node(self) -> ExecuteDim:
        """The dim of the execute statement."""
        return ExecuteDim(self.use.execute, self.walked.dim)

    @property
    def is_plain(self) -> bool:
        """True if it walks one host dim, and slides no window along it."""
        windowed = window_of(self.use.op, self.use.tensor, self.walked.dim) is not None
        return len(self.walked.host_dims) == 1 and not windowed


def argument_walks(
    uses: Sequence[OperandUse], specs: Mapping[int, ArgumentSpec]
) -> list[tuple[Walk, ...]]:
    """The walks of every operand that lies in one of the arguments ``specs``."""
    return [
        _walks_of(use, specs[use.owner])
        for use in uses
        if use.owner is not None and use.owner in specs
    ]


def _walks_of(use: OperandUse, spec: ArgumentSpec) -> tuple[Walk, ...]:
    device = device_dims(spec.layout, spec.shape, spec.strides)
    walks = []
    for walked in walked_dims(use, device):
        host_dim = walked.host_dims[0] if walked.host_dims else -1
        starts = start_coordinates(use, device, host_dim)
        share = core_extent(use.op, use.tensor, walked.dim)
        extent = spec.shape[host_dim] if walked.host_dims else 0
        walks.append(Walk(use, walked, starts, share, extent))
    return tuple(walks)


def link_arguments(classes: DimClasses, operands: Sequence[tuple[Walk, ...]]) -> Starts:
    """Join dims of executes and host dims; where executes start along the dims they walk."""
    starts: dict[ExecuteDim, Int64Array] = {}
    for walk in (walk for walks in operands for walk in walks):
        use = walk.use
        assert use.owner is not None
        for host_dim in walk.walked.host_dims:
            classes.join(walk.node, ArgumentDim(use.owner, host_dim))
        if walk.walked.fault:
            classes.fix(walk.node, f"{use.op.name} {walk.walked.fault} of {use.tensor.name}")
        if not walk.is_plain:
            continue
        known = starts.setdefault(walk.node, walk.starts)
        if not (known == walk.starts).all():
            reason = f"operands of {use.op.name} start at different places along it"
            classes.fix(walk.node, reason)
    return starts


def check_coverage(classes: DimClasses, operands: Sequence[tuple[Walk, ...]]) -> None:
    """Fix dims of which an operation, over all its executes alike, walks only a part."""
    groups: dict[object, list[tuple[Walk, ...]]] = {}
    for walks in operands:
        if walks:
            groups.setdefault(_kind(walks), []).append(walks)
    for group in groups.values():
        _check_group(classes, group)


def _kind(walks: tuple[Walk, ...]) -> object:
    """Equal for operands of executes that do the same at different places."""
    use = walks[0].use
    op = use.op
    owners = tuple((t.component, t.dims, tuple(t.scale.items())) for t in op.tensors)
    constants = tuple(sorted(op.constants.items()))
    walked = tuple((walk.walked, walk.share) for walk in walks)
    return op.name, constants, tuple(op.extents.items()), owners, use.operand, use.owner, walked


def _check_group(classes: DimClasses, group: Sequence[tuple[Walk, ...]]) -> None:
    """Each dim must be walked whole, and all places along one at every place along the others."""
    plain = [place for place, walk in enumerate(group[0]) if walk.is_plain]
    if not plain:
        return
    columns = [np.concatenate([w[place].starts.ravel() for w in group]) for place in plain]
    counts = [len(np.unique(column)) for column in columns]
    for place, count in zip(plain, counts, strict=True):
        if count * group[0][place].share < group[0][place].extent:
            _fix(classes, group, [place])
    if len(np.unique(np.stack(columns, axis=1), axis=0)) < prod(counts):
        _fix(classes, group, plain)


def _fix(classes: DimClasses, group: Sequence[tuple[Walk, ...]], places: Sequence[int]) -> None:
    for walks in group:
        for place in places:
            use = walks[place].use
            reason = f"{use.op.name} walks only a part of argument {use.owner}"
            classes.fix(walks[place].node, reason)
