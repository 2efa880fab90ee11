"""Divisions that keep results in LX, after every operation was divided for itself.

A result stays in LX only if all its users divide it alike. A product takes another division, and a
pointwise operation next to a product that of the product, where the modelled time of the operation
and of all users of its buffers becomes less. Each is looked at once, products first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from spyre.hw.cost import MachineSpec, kernel_ns, splits_within
from spyre.torch_backend.inductor.bundles.kernel_op import KernelOp
from spyre.torch_backend.inductor.division import (
    MAX_SPAN_BYTES,
    WorkDivision,
    counts_of,
    device_tensors,
    read_iteration,
    spans_bytes,
)
from spyre.torch_backend.inductor.scratchpad import (
    UNDIVIDED_RULES,
    BufferAccess,
    CoreView,
    core_view,
)
from spyre.torch_backend.program import OpKind

LX_DIVISION = "lx_division"
"""Name of the pass."""


def divide_for_lx(
    ops: Sequence[KernelOp],
    divisions: Sequence[WorkDivision],
    capacity_bytes: int,
    machine: MachineSpec,
) -> dict[int, KernelOp]:
    """Return the operations, by number, that take another division, so that results stay in LX.

    ``ops``: divided, in program order. ``capacity_bytes``: of one core's LX.
    """
    chosen, users = dict(enumerate(ops)), _users(ops)
    products = [k for k, op in chosen.items() if op.kind is OpKind.MATMUL]
    beside = {k for p in products for t in ops[p].tensors for k in users.get(t.buffer, ())}
    pointwise = [k for k in sorted(beside) if ops[k].kind is OpKind.POINTWISE]
    for step in (*products, *pointwise):
        views = _other_views(step, chosen, users, capacity_bytes)
        steps = sorted({k for name in views for k in users[name]})
        least_ns, seen = 0.0, list[frozenset[str]]()
        for form in _forms(ops[step], divisions[step]) if views else ():
            kept = _kept(form, views)
            if any(kept <= other for other in seen):  # a faster form keeps as much
                continue
            group = (form if k == step else chosen[k] for k in steps)
            time_ns = sum(kernel_ns([counts_of(op, kept)], machine).total_ns for op in group)
            if not seen or time_ns < least_ns:
                chosen[step], least_ns = form, time_ns
            seen.append(kept)
            if kept == views.keys():
                break
    return {k: op for k, op in chosen.items() if op is not ops[k]}


def _other_views(
    step: int, ops: Mapping[int, KernelOp], users: Mapping[str, set[int]], capacity_bytes: int
) -> dict[str, CoreView]:
    """The buffers of an operation that LX can hold if it divides them as all other users do, and
    how these divide each.
    """
    whole, views = replace(ops[step], cores=()), dict[str, CoreView]()
    for name in {tensor.buffer for tensor in whole.tensors} & users.keys():
        accesses = [
            BufferAccess(k, op, number, any(tensor.strides))
            for k, op in ((k, whole if k == step else ops[k]) for k in sorted(users[name]))
            for number, tensor in enumerate(op.tensors)
            if tensor.buffer == name
        ]
        others = {core_view(a.op, a.number) for a in accesses if a.step != step}
        is_possible = len(others) == 1 and not any(rule(accesses) for rule in UNDIVIDED_RULES)
        view = others.pop()
        if is_possible and isinstance(view, CoreView) and view.size_bytes <= capacity_bytes:
            views[name] = view
    return views


def _kept(form: KernelOp, views: Mapping[str, CoreView]) -> frozenset[str]:
    """The buffers that the operation divides as their other users do."""
    differing = {
        tensor.buffer
        for number, tensor in enumerate(form.tensors)
        if core_view(form, number) != views.get(tensor.buffer)
    }
    if form.split_reductions:
        differing.add(form.output.buffer)
    return frozenset(views.keys() - differing)


def _users(ops: Sequence[KernelOp]) -> dict[str, set[int]]:
    """Numbers of the users of every buffer that is no argument and has several."""
    users: dict[str, set[int]] = {}
    for step, op in enumerate(ops):
        for tensor in op.tensors:
            if tensor.argument < 0:
                users.setdefault(tensor.buffer, set()).add(step)
    return {name: steps for name, steps in users.items() if len(steps) > 1}


def _forms(op: KernelOp, division: WorkDivision) -> Iterator[KernelOp]:
    """Yield the operation in its present division, then in others, the fastest first. An operation
    that a user's hints divide has no others.

    Of a product, all candidates, with its dims numbered forwards and backwards; of a pointwise
    operation, all divisions over as many cores, which take the same time.
    """
    yield op
    backwards = tuple(reversed(range(len(op.extents))))
    for row in division.candidates:
        yield replace(op, cores=row)
        yield replace(op, cores=row, numbering=backwards)
    if op.kind is OpKind.POINTWISE and not division.is_hinted:
        yield from (replace(op, cores=row) for row in _divisions_over(op, division.cores))


def _divisions_over(op: KernelOp, cores: int) -> Iterator[tuple[int, ...]]:
    """Splits per dim with which exactly ``cores`` cores reach their slices."""
    iteration = read_iteration(op)
    rows = splits_within([dim.splits(cores) for dim in iteration.dims], cores)
    rows = rows[rows.prod(axis=1) == cores]
    for number in device_tensors(iteration):
        rows = rows[spans_bytes(iteration, number, rows) <= MAX_SPAN_BYTES]
    yield from map(tuple, rows.tolist())
