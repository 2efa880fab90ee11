"""Dims of a kernel: host dims of its arguments that are the same dim of its operations.

Shapes alone cannot distinguish the rows of a matmul from its columns, or a broadcast operand from a
tensor that is too small. The operations can: their dims (mb, out, in, …) are traced to host dims
of the arguments, through loops and through intermediates in the pool and in scratchpads. Dims that
an operation reduces, slides a window over, masks, or reads shifted are marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import numpy as np

from spyre.disjoint_sets import DisjointSets
from spyre.hw.linking import Walk
from spyre.hw.ops import Family, find_op
from spyre.layout import Int64Array
from spyre.mlir.operation import footprint, indexed_dims
from spyre.runtime.arguments import ArgumentSpec, KernelArguments
from spyre.runtime.tiling.device_dims import DeviceDims, device_dims, walked_dims, whole_steps


class SharedDim(msgspec.Struct, frozen=True):
    """One dim of a kernel as its arguments share it; equal in all of them.

    ``name``: of the operation that has it first. ``reduced_by``: the operation that reduces it.
    ``accumulated_by``: the operation that combines results of its tiles ('' where none does).
    ``fixed``: why it cannot be tiled.
    """

    index: int
    name: str
    reduced_by: str = ""
    accumulated_by: str = ""
    fixed: str = ""


class ExpectedTensor(ArgumentSpec, frozen=True):
    """An argument as the kernel was compiled for it.

    ``dims``: the kernel's dim of every host dim, None where no operation walks it.
    """

    dims: tuple[SharedDim | None, ...] = ()

    @property
    def device_dims(self) -> DeviceDims:
        return device_dims(self.layout, self.shape, self.strides)


ArgumentDim = tuple[int, int]
"""Argument index, and one of its host dims."""
ExecuteDim = tuple[int, str]
"""Number of an execute statement, and one of its dims."""
DimNode = ArgumentDim | ExecuteDim


class DimClasses(DisjointSets[DimNode]):
    """Sets of nodes that are the same dim. For use within one call.

    ``fixed``: first reason why a node's dim cannot be tiled; ``reduced``: operation that reduces
    the node's dim.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fixed: dict[DimNode, str] = {}
        self.reduced: dict[DimNode, str] = {}

    def fix(self, node: DimNode, reason: str) -> None:
        """Mark the dim of ``node`` as not tileable."""
        self.find(node)
        self.fixed.setdefault(node, reason)

    def reduce(self, node: DimNode, operation: str) -> None:
        """Mark the dim of ``node`` as reduced by ``operation``."""
        self.find(node)
        self.reduced.setdefault(node, operation)

    def remark(self, members: tuple[DimNode, ...], remarks: dict[DimNode, str]) -> str:
        """The first of ``remarks`` on one of ``members``, or ''."""
        return next((remarks[node] for node in members if node in remarks), "")


Starts = Mapping[ExecuteDim, Int64Array]
"""Element every core starts at, [instance, core], by dim of an execute statement."""


class ArgumentWalk(msgspec.Struct, frozen=True):
    """One dim of an operand in an argument: the ``host_dims`` it walks.

    ``fault``: why it is no plain walk of them, "" if it is. ``starts``: element of the host dim,
    [instance, core]; ``share``: elements of one core; ``extent``: of the host dim. These three are
    valid for plain walks only.
    """

    use: Walk[int]
    dim: str
    host_dims: tuple[int, ...]
    fault: str
    starts: Int64Array
    share: int
    extent: int

    @property
    def node(self) -> ExecuteDim:
        return self.use.execute.index, self.dim

    @property
    def is_plain(self) -> bool:
        """True if it walks one host dim, and slides no window along it."""
        return len(self.host_dims) == 1 and self.use.op.window_of(self.use.tensor, self.dim) is None


def _walks_of(use: Walk[int], spec: ArgumentSpec) -> tuple[ArgumentWalk, ...]:
    device = device_dims(spec.layout, spec.shape, spec.strides)
    walks = []
    for dim, (host_dims, fault) in walked_dims(use, device).items():
        starts = device.coordinates(host_dims[0] if host_dims else -1, use.offsets)
        share = use.op.tensor_extent(use.tensor, dim)
        extent = spec.shape[host_dims[0]] if host_dims else 0
        walks.append(ArgumentWalk(use, dim, host_dims, fault, starts, share, extent))
    return tuple(walks)


def link_arguments(classes: DimClasses, operands: Sequence[tuple[ArgumentWalk, ...]]) -> Starts:
    """Join dims of executes and host dims; returns the start elements of the executes."""
    starts: dict[ExecuteDim, Int64Array] = {}
    for walk in (walk for walks in operands for walk in walks):
        use = walk.use
        assert use.owner is not None
        for host_dim in walk.host_dims:
            classes.join(walk.node, (use.owner, host_dim))
        if walk.fault:
            classes.fix(walk.node, f"{use.op.name} {walk.fault} of {use.tensor.name}")
        if not walk.is_plain:
            continue
        known = starts.setdefault(walk.node, walk.starts)
        if not (known == walk.starts).all():
            reason = f"operands of {use.op.name} start at different places along it"
            classes.fix(walk.node, reason)
    return starts


def check_coverage(classes: DimClasses, operands: Sequence[tuple[ArgumentWalk, ...]]) -> None:
    """Fix dims of which an operation, over all its similar executes, walks only a part."""
    groups: dict[object, list[tuple[ArgumentWalk, ...]]] = {}
    for walks in operands:
        if walks:
            groups.setdefault(_kind(walks), []).append(walks)
    for group in groups.values():
        _check_group(classes, group)


def _kind(walks: tuple[ArgumentWalk, ...]) -> object:
    """A key that is equal for operands of executes that differ only in their addresses."""
    use = walks[0].use
    op = use.op
    owners = tuple((t.component, t.dims, tuple(t.scale.items())) for t in op.tensors)
    constants = tuple(sorted(op.constants.items()))
    walked = tuple((w.dim, w.host_dims, w.fault, w.share) for w in walks)
    return op.name, constants, tuple(op.extents.items()), owners, use.operand, use.owner, walked


def _check_group(classes: DimClasses, group: Sequence[tuple[ArgumentWalk, ...]]) -> None:
    """Fix dims that are not walked whole, or not for every position of the other dims."""
    plain = [k for k, walk in enumerate(group[0]) if walk.is_plain]
    if not plain:
        return
    columns = [np.concatenate([w[k].starts.ravel() for w in group]) for k in plain]
    counts = [len(np.unique(column)) for column in columns]
    for k, count in zip(plain, counts, strict=True):
        if count * group[0][k].share < group[0][k].extent:
            _fix(classes, group, [k])
    if len(np.unique(np.stack(columns, axis=1), axis=0)) < prod(counts):
        _fix(classes, group, plain)


def _fix(
    classes: DimClasses, group: Sequence[tuple[ArgumentWalk, ...]], walk_numbers: Sequence[int]
) -> None:
    for walks in group:
        for k in walk_numbers:
            use = walks[k].use
            reason = f"{use.op.name} walks only a part of argument {use.owner}"
            classes.fix(walks[k].node, reason)


class _Range(msgspec.Struct, frozen=True):
    """Bytes a use touches over all its instances and cores."""

    use: Walk[int]
    low: int
    high: int

    @classmethod
    def of(cls, use: Walk[int]) -> _Range:
        span = footprint(use.op, use.tensor).span_bytes
        low, high = int(use.offsets.min()), int(use.offsets.max()) + span
        return cls(use, low, high)

    def overlaps(self, other: _Range) -> bool:
        """True if both touch a byte of one memory."""
        return self._memory == other._memory and self.low < other.high and other.low < self.high

    def covers(self, other: _Range) -> bool:
        """True if it touches all bytes from the first to the last of ``other``."""
        return self.low <= other.low and other.high <= self.high

    @property
    def _memory(self) -> tuple[object, object]:
        return self.use.tensor.component, self.use.owner


def link_intermediates(classes: DimClasses, uses: Sequence[Walk[int]], starts: Starts) -> None:
    """Join dims of writers and readers of intermediates.

    ``uses``: operands outside of arguments, in textual order. ``starts``: start elements of the
    executes along dims of arguments; writer and reader must start at the same element. The uses
    are walked twice, so that values a loop passes to its next iteration are linked too.
    """
    known = dict(starts)
    ranges = [_Range.of(use) for use in uses]
    written: list[_Range] = []
    # Twice: in the second round, a reader at the top of a loop body finds the writers below it.
    for access in (*ranges, *ranges):
        if access.use.is_output:
            written.append(access)
            continue
        for writer in reversed(written):
            if writer.overlaps(access):
                _link(classes, writer, access, known)
                if writer.covers(access):
                    break


def _link(
    classes: DimClasses, writer: _Range, reader: _Range, known: dict[ExecuteDim, Int64Array]
) -> None:
    one, other = writer.use, reader.use
    same = (writer.low, writer.high) == (reader.low, reader.high)
    if same and _structure(one) == _structure(other):
        pairs = list(zip(_held(one), _held(other), strict=True))
    else:
        pairs = _by_pitch(one, other) if same else []
    reason = f"{one.op.name} and {other.op.name} see an intermediate differently"
    for dim, dim2 in pairs:
        ours, theirs = (one.execute.index, dim), (other.execute.index, dim2)
        classes.join(ours, theirs)
        if ours in known and not _agree(known[ours], other, theirs, known):
            classes.fix(theirs, reason)
    for dim in set(_held(one)) - {ours for ours, _ in pairs}:
        classes.fix((one.execute.index, dim), reason)
    for dim in set(_held(other)) - {theirs for _, theirs in pairs}:
        classes.fix((other.execute.index, dim), reason)


def _agree(
    writer: Int64Array, use: Walk[int], reader: ExecuteDim, known: dict[ExecuteDim, Int64Array]
) -> bool:
    """True if the reader ``use`` starts at the element the writer does along its dim ``reader``.

    In per-core memory each core must start there, else all cores together. A reader without a
    known start takes the writer's.
    """
    local = use.tensor.is_local
    ours = writer if local else writer.min(axis=1, keepdims=True)
    if reader not in known:
        numbers = np.array([row.get(reader[1], 0) for row in use.op.core_slices], np.int64)
        known[reader] = ours if local else ours + numbers * use.op.core_extent(reader[1])
    theirs = known[reader] if local else known[reader].min(axis=1, keepdims=True)
    repeated = len(ours) == len(theirs) or min(len(ours), len(theirs)) == 1
    return repeated and ours.shape[1] == theirs.shape[1] and bool((ours == theirs).all())


def _held(use: Walk[int]) -> list[str]:
    return [dim for dim in dict.fromkeys(use.tensor.dims) if use.tensor.holds(dim)]


def _steps(use: Walk[int]) -> dict[str, tuple[int, int]]:
    pitches = footprint(use.op, use.tensor).pitch_bytes
    return {dim: (pitches[dim], whole_steps(use.op, use.tensor, dim)) for dim in _held(use)}


def _structure(use: Walk[int]) -> tuple[object, ...]:
    """Steps, pitches and sticks by position; the pitch of a single step is ignored."""
    dims = _held(use)
    walked = tuple((pitch if steps > 1 else 0, steps) for pitch, steps in _steps(use).values())
    stick = tuple(dims.index(d) if d in dims else -1 for d in use.tensor.stick_dims)
    return walked, stick, use.tensor.stick_sizes


def _by_pitch(writer: Walk[int], reader: Walk[int]) -> list[tuple[str, str]]:
    """Dims of several steps with equal pitch and steps, and the stick dim of both."""
    ours, theirs = _steps(writer), _steps(reader)
    pairs = [
        (one, other)
        for one, step in ours.items()
        for other, step2 in theirs.items()
        if step == step2 and step[1] > 1
    ]
    one_stick, other_stick = writer.tensor.stick_dims, reader.tensor.stick_dims
    if len(one_stick) == len(other_stick) == 1:
        pair = one_stick[0], other_stick[0]
        if pair[0] in ours and pair[1] in theirs and pair not in pairs:
            pairs.append(pair)
    return pairs


ACCUMULATED_BY: Mapping[str, str] = {"sum": "add", "sumnonstick": "add", "batchmatmul": "add"}
"""Operations whose result over a dim is the sum of those over its tiles (§6, `accumulate`)."""


def expected_tensors(
    arguments: KernelArguments, uses: Sequence[Walk[int]]
) -> tuple[ExpectedTensor, ...]:
    """The arguments a kernel was compiled for, in order, with the kernel's dim of each host dim.

    ``uses``: all operands of its execute statements.
    """
    specs = {spec.arg_index: spec for spec in arguments.arguments}
    specs |= {alias.arg_index: alias for alias, _ in arguments.aliases}
    classes = DimClasses()
    operands = [_walks_of(use, specs[use.owner]) for use in uses if use.owner in specs]
    starts = link_arguments(classes, operands)
    check_coverage(classes, operands)
    link_intermediates(classes, [use for use in uses if use.owner not in specs], starts)
    for use in {use.execute.index: use for use in uses}.values():
        _remark_operation(classes, use)
    dims = _kernel_dims(classes, _combiner(uses))
    dims |= _unwalked_dims(specs, dims)
    return tuple(_expected(specs[index], dims) for index in sorted(specs))


def _combiner(uses: Sequence[Walk[int]]) -> str:
    """The operation that combines partial results; "" unless the kernel is a single sum."""
    once = {(use.execute.index, len(use.offsets)) for use in uses}
    if len(once) != 1 or next(iter(once))[1] != 1:
        return ""
    return ACCUMULATED_BY.get(uses[0].op.name, "")


def _expected(spec: ArgumentSpec, dims: Mapping[ArgumentDim, SharedDim]) -> ExpectedTensor:
    own = tuple(dims.get((spec.arg_index, h)) for h in range(len(spec.shape)))
    return ExpectedTensor(**msgspec.structs.asdict(spec), dims=own)


# --- operations -------------------------------------------------------------------------------


def _remark_operation(classes: DimClasses, use: Walk[int]) -> None:
    op, number = use.op, use.execute.index
    spec = find_op(op.name)
    selects = spec is not None and spec.family is Family.TOPK
    # Rows of a table are selected by an index.
    looked_up = {dim for tensor in op.tensors for dim in indexed_dims(op, tensor)}
    windows = {*op.windows, *(w.window_dim for w in op.windows.values())}
    for dim in op.dims:
        node = number, dim
        read = any(t.holds(dim) for t in op.inputs)
        written = any(t.holds(dim) for t in op.outputs)
        if dim in windows:
            classes.fix(node, f"{op.name} slides a window along it")
        elif read and not written and dim not in looked_up:
            classes.reduce(node, op.name)
        elif selects and written and not read:
            classes.fix(node, f"{op.name} selects along it")
        if op.masks.get(dim):
            classes.fix(node, f"{op.name} masks part of it")


# --- classes → dims ---------------------------------------------------------------------------


def _kernel_dims(classes: DimClasses, combiner: str) -> dict[ArgumentDim, SharedDim]:
    """The dim of every (argument, host dim), numbered in the order of arguments and their dims."""
    known = []
    for members in classes.sets():
        arguments = [(index, dim) for index, dim in members if isinstance(dim, int)]
        if arguments:
            known.append((min(arguments), arguments, members))
    dims: dict[ArgumentDim, SharedDim] = {}
    for number, (_, arguments, members) in enumerate(sorted(known, key=lambda row: row[0])):
        names = [dim for _, dim in members if isinstance(dim, str)]
        reduced_by = classes.remark(members, classes.reduced)
        fixed = classes.remark(members, classes.fixed)
        indices = [index for index, _ in arguments]
        twice = next((k for k in indices if indices.count(k) > 1), None)
        if twice is not None:
            fixed = fixed or f"the kernel walks two dims of argument {twice} as one"
        dim = SharedDim(number, names[0], reduced_by, combiner if reduced_by else "", fixed)
        dims |= dict.fromkeys(arguments, dim)
    return dims


def _unwalked_dims(
    specs: Mapping[int, ArgumentSpec], known: Mapping[ArgumentDim, SharedDim]
) -> dict[ArgumentDim, SharedDim]:
    """Dims of extent 1 that no operation walks, at the same position of all outputs and an input.

    Tiles along them are independent for every kernel.
    """
    outputs = [spec for spec in specs.values() if spec.is_output]
    ranks = {len(spec.shape) for spec in outputs}
    dims: dict[ArgumentDim, SharedDim] = {}
    for h in range(max(ranks)) if len(ranks) == 1 else ():
        alike = [
            spec
            for spec in specs.values()
            if len(spec.shape) in ranks and spec.shape[h] == 1 and (spec.arg_index, h) not in known
        ]
        if all(spec in alike for spec in outputs) and any(spec.is_input for spec in alike):
            dim = SharedDim(len(known) + h, f"dim{h}")
            dims |= {(spec.arg_index, h): dim for spec in alike}
    return dims
