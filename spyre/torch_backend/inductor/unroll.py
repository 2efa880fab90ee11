"""Counted loops written out: one operation per iteration, at the addresses of that iteration.

Pure functions, for any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spyre.torch_backend.inductor.op_spec import LoopSpec, OpSpec, Spec, TensorArg, UnimplementedOp
from spyre.torch_backend.inductor.spec_views import Loops, arg_view, integer

Flat = OpSpec | UnimplementedOp
Iteration = Mapping[str, int]
"""Index by loop."""


def unroll(specs: Sequence[Spec]) -> list[Flat]:
    """``specs`` without loops, in the order they run; ``allocation`` of each tensor is where its
    tile lies. Tensors that loops do not advance stay where they are. Errors as of `arg_view`.
    """
    return list(_unrolled(specs, (), {}, {}))


def _unrolled(
    specs: Sequence[Spec],
    loops: Loops,
    iteration: Iteration,
    strides: dict[int, list[Mapping[str, int]]],
) -> Iterator[Flat]:
    """``strides``: loop strides of every tensor, by id of its operation, found so far."""
    for spec in specs:
        match spec:
            case LoopSpec():
                count, name = integer(spec.count, "loop count"), f"i_{len(loops)}"
                inside = (*loops, (name, count))
                for index in range(count):
                    moved = {**iteration, name: index}
                    yield from _unrolled(spec.body, inside, moved, strides)
            case UnimplementedOp():
                yield spec
            case OpSpec():
                if id(spec) not in strides:
                    found = [arg_view(spec, arg, loops).loop_strides for arg in spec.args]
                    strides[id(spec)] = found
                yield _at(spec, iteration, strides[id(spec)])


def _at(spec: OpSpec, iteration: Iteration, strides: Sequence[Mapping[str, int]]) -> OpSpec:
    args = [_moved(arg, iteration, s) for arg, s in zip(spec.args, strides, strict=True)]
    return replace(spec, args=args, tiled_symbols=())


def _moved(arg: TensorArg, iteration: Iteration, strides: Mapping[str, int]) -> TensorArg:
    moved_bytes = sum(iteration[loop] * stride for loop, stride in strides.items())
    if not moved_bytes:
        return arg
    return replace(arg, allocation={k: a + moved_bytes for k, a in arg.allocation.items()})
