"""Writing places into specs: the same specs, with some tensors in LX or the pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spyre.errors import BundleError
from spyre.torch_backend.inductor.op_spec import LoopSpec, OpSpec, Spec, TensorArg


def with_allocations(
    specs: Sequence[Spec],
    names: Sequence[Sequence[str]],
    allocations: Mapping[str, Mapping[str, int]],
) -> list[Spec]:
    """``specs`` with ``allocations`` by buffer name, such as {"y": {"lx": 0}} (bytes).

    ``names`` as in `operations_of`; those without an allocation are left alone. A tensor that gets
    one is no argument of the kernel any more (arg_index -1); others keep their numbers.
    BundleError SPY988 if the names do not fit.
    """
    rest = iter(names)
    found = _allocated(specs, rest, allocations)
    if next(rest, None) is not None:
        raise _misfit("the kernel", "no more names than operations")
    return found


def with_arguments_numbered(specs: Sequence[Spec]) -> tuple[list[Spec], tuple[int, ...]]:
    """``specs`` whose arguments are numbered from 0 without gaps, and the old number of each.

    For kernels that lost arguments to LX or the pool. The order of arguments stays.
    """
    old = tuple(sorted({arg.arg_index for arg in _arguments(specs) if arg.arg_index >= 0}))
    return _renumbered(specs, {index: k for k, index in enumerate(old)}), old


def _arguments(specs: Sequence[Spec]) -> Iterator[TensorArg]:
    for spec in specs:
        if isinstance(spec, LoopSpec):
            yield from _arguments(spec.body)
        elif isinstance(spec, OpSpec):
            yield from spec.args


def _renumbered(specs: Sequence[Spec], numbers: Mapping[int, int]) -> list[Spec]:
    found: list[Spec] = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            spec = replace(spec, body=_renumbered(spec.body, numbers))
        elif isinstance(spec, OpSpec):
            args = [replace(a, arg_index=numbers.get(a.arg_index, -1)) for a in spec.args]
            spec = replace(spec, args=args)
        found.append(spec)
    return found


def _allocated(
    specs: Sequence[Spec],
    names: Iterator[Sequence[str]],
    allocations: Mapping[str, Mapping[str, int]],
) -> list[Spec]:
    found: list[Spec] = []
    for spec in specs:
        if isinstance(spec, LoopSpec):
            found.append(replace(spec, body=_allocated(spec.body, names, allocations)))
            continue
        named = next(names, None)
        if named is None:
            raise _misfit("the kernel", "names for every operation")
        found.append(_operation(spec, named, allocations) if isinstance(spec, OpSpec) else spec)
    return found


def _operation(
    spec: OpSpec, names: Sequence[str], allocations: Mapping[str, Mapping[str, int]]
) -> OpSpec:
    if len(spec.args) != len(names):
        raise _misfit(spec.op, f"{len(spec.args)} names")
    args = [
        replace(arg, arg_index=-1, allocation=dict(allocations[name]))
        if name in allocations
        else arg
        for arg, name in zip(spec.args, names, strict=True)
    ]
    return replace(spec, args=args)


def _misfit(what: str, expected: str) -> BundleError:
    return BundleError("SPY988", f"names do not fit the tensors of {what}", expected=expected)
