"""Which dims of a kernel's arguments go together, from what its operations do with them.

Shapes alone cannot tell the rows of a matmul from its columns, or a broadcast operand from a
tensor that is too small. The operations can: their dims (mb, out, in, …) are traced to host dims
of the arguments, through loops and through intermediates in the pool and in scratchpads. A dim
that an operation reduces, slides a window over, masks, or reads shifted is said to be so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from spyre.hw.ops import Family, find_op
from spyre.mlir.footprint import indexed_dims
from spyre.runtime.arguments import ArgumentSpec, KernelArguments
from spyre.runtime.tiling.argument_walks import argument_walks, check_coverage, link_arguments
from spyre.runtime.tiling.dim_classes import ArgumentDim, DimClasses, ExecuteDim, Node
from spyre.runtime.tiling.intermediates import link_intermediates
from spyre.runtime.tiling.launch_tensors import ExpectedTensor, KernelDim
from spyre.runtime.tiling.operand_uses import OperandUse

ACCUMULATED_BY: Mapping[str, str] = {
    "sum": "add",
    "sumnonstick": "add",
    "batchmatmul": "add",
}
"""Operations whose result over a dim is the sum of those over its tiles (§6, `accumulate`)."""


def expected_tensors(
    arguments: KernelArguments, uses: Sequence[OperandUse]
) -> tuple[ExpectedTensor, ...]:
    """What a kernel was compiled for, in argument order, with the dims that go together.

    ``uses``: all operands of its execute statements. Pure.
    """
    specs = {spec.arg_index: spec for spec in arguments.arguments}
    specs |= {alias.arg_index: alias for alias, _ in arguments.aliases}
    classes = DimClasses()
    operands = argument_walks(uses, specs)
    starts = link_arguments(classes, operands)
    check_coverage(classes, operands)
    link_intermediates(classes, [use for use in uses if use.owner not in specs], starts)
    for execute in _by_execute(uses):
        _remark_operation(classes, execute)
    dims = _kernel_dims(classes, _combiner(uses))
    dims |= _unwalked_dims(specs, dims)
    return tuple(_expected(specs[index], dims) for index in sorted(specs))


def _by_execute(uses: Sequence[OperandUse]) -> list[list[OperandUse]]:
    groups: dict[int, list[OperandUse]] = {}
    for use in uses:
        groups.setdefault(use.execute, []).append(use)
    return list(groups.values())


def _combiner(uses: Sequence[OperandUse]) -> str:
    """What combines partial results of the kernel: only where it is one plain sum."""
    once = {(use.execute, len(use.offsets_bytes)) for use in uses}
    if len(once) != 1 or next(iter(once))[1] != 1:
        return ""
    return ACCUMULATED_BY.get(uses[0].op.name, "")


def _expected(spec: ArgumentSpec, dims: Mapping[tuple[int, int], KernelDim]) -> ExpectedTensor:
    return ExpectedTensor(
        spec.arg_index,
        spec.name,
        spec.role,
        spec.shape,
        spec.strides,
        spec.dtype_name,
        spec.layout,
        tuple(dims.get((spec.arg_index, h)) for h in range(len(spec.shape))),
    )


# --- operations -------------------------------------------------------------------------------


def _remark_operation(classes: DimClasses, execute: Sequence[OperandUse]) -> None:
    op, number = execute[0].op, execute[0].execute
    spec = find_op(op.name)
    selects = spec is not None and spec.family is Family.TOPK
    windows = {*op.windows, *(w.window_dim for w in op.windows.values())}
    for dim in op.dims:
        node = ExecuteDim(number, dim)
        read = any(t.holds(dim) for t in op.inputs)
        written = any(t.holds(dim) for t in op.outputs)
        if dim in windows:
            classes.fix(node, f"{op.name} slides a window along it")
        elif read and not written and not _is_looked_up(execute, dim):
            classes.reduce(node, op.name)
        elif selects and written and not read:
            classes.fix(node, f"{op.name} selects along it")
        if op.masks.get(dim):
            classes.fix(node, f"{op.name} masks part of it")


def _is_looked_up(execute: Sequence[OperandUse], dim: str) -> bool:
    """True for rows of a table, which only an index counts."""
    op = execute[0].op
    return any(dim in indexed_dims(op, tensor) for tensor in op.tensors)


# --- classes → dims ---------------------------------------------------------------------------


def _kernel_dims(classes: DimClasses, combiner: str) -> dict[tuple[int, int], KernelDim]:
    """The dim of every (argument, host dim), numbered in the order of arguments and their dims."""
    known = []
    for members in classes.classes():
        arguments = [node for node in members if isinstance(node, ArgumentDim)]
        if arguments:
            known.append((min(arguments), arguments, members))
    found: dict[tuple[int, int], KernelDim] = {}
    for index, (_, arguments, members) in enumerate(sorted(known, key=lambda row: row[0])):
        dim = _kernel_dim(classes, members, index)
        if dim.reduced_by:
            dim = replace(dim, accumulated_by=combiner)
        found |= {(node.arg_index, node.host_dim): dim for node in arguments}
    return found


def _kernel_dim(classes: DimClasses, members: tuple[Node, ...], index: int) -> KernelDim:
    names = [node.dim for node in members if isinstance(node, ExecuteDim)]
    fixed = classes.remark(members, classes.fixed)
    arguments = [node.arg_index for node in members if isinstance(node, ArgumentDim)]
    twice = next((k for k in arguments if arguments.count(k) > 1), None)
    if twice is not None:
        fixed = fixed or f"the kernel walks two dims of argument {twice} as one"
    return KernelDim(index, names[0], classes.remark(members, classes.reduced), "", fixed)


def _unwalked_dims(
    specs: Mapping[int, ArgumentSpec], known: Mapping[tuple[int, int], KernelDim]
) -> dict[tuple[int, int], KernelDim]:
    """Dims of extent 1 that no operation walks: those at one place of all outputs and some input.

    Tiles of them are independent, whatever the kernel does.
    """
    outputs = [spec for spec in specs.values() if spec.is_output]
    ranks = {len(spec.shape) for spec in outputs}
    found: dict[tuple[int, int], KernelDim] = {}
    for h in range(max(ranks)) if len(ranks) == 1 else ():
        alike = [
            spec
            for spec in specs.values()
            if len(spec.shape) in ranks and spec.shape[h] == 1 and (spec.arg_index, h) not in known
        ]
        if all(spec in alike for spec in outputs) and any(spec.is_input for spec in alike):
            dim = KernelDim(len(known) + h, f"dim{h}")
            found |= {(spec.arg_index, h): dim for spec in alike}
    return found
