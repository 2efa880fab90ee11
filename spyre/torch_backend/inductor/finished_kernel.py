"""The last steps of a kernel: specs, work division, LX and the pool, and the text of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spyre.torch_backend.cores import usable_cores
from spyre.torch_backend.eager.lowering import Lowering
from spyre.torch_backend.inductor.division.plan import divide_op, with_division
from spyre.torch_backend.inductor.loop_paths import LoopPath, looped
from spyre.torch_backend.inductor.op_spec import LoopSpec, OpSpec, Spec
from spyre.torch_backend.inductor.pool_planning import plan_pool, pool_buffers
from spyre.torch_backend.inductor.scratchpad.allocation import with_allocations
from spyre.torch_backend.inductor.scratchpad.eligibility import Surroundings
from spyre.torch_backend.inductor.scratchpad.plan import plan_scratchpad
from spyre.torch_backend.inductor.spec_text import spec_text
from spyre.torch_backend.inductor.spec_views import LX
from spyre.torch_backend.inductor.spec_writing import Place, spec_of
from spyre.torch_backend.program.value import Ints

MATMUL = "batchmatmul"
LX_PLANNING = __import__("os").environ.get("LX_PLANNING", "1") == "1"


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """A tensor a kernel is given: host extents and strides (elements), torch dtype name."""

    sizes: Ints
    strides: Ints
    dtype: str


@dataclass(frozen=True, slots=True)
class FinishedKernel:
    """``arguments``: tensors by arg_index; ``constants``: (number, dtype) of those behind them."""

    specs: tuple[Spec, ...]
    arguments: tuple[HostBuffer, ...]
    constants: tuple[tuple[float, str], ...]

    @property
    def text(self) -> str:
        """What generated code passes to ``async_compile.sdsc`` after the name."""
        arguments = [(a.sizes, a.strides, a.dtype) for a in self.arguments]
        more = f"arguments={arguments!r}"
        if self.constants:
            more += f", constants={list(self.constants)!r}"
        return f"{spec_text(self.specs)}, {more}"


def finished_kernel(
    low: Lowering, paths: Sequence[LoopPath], arguments: Sequence[HostBuffer]
) -> FinishedKernel:
    """The kernel of a program whose operations are complete; ``paths``: their loops."""
    places = _places(low)
    operations = zip(low.builder.specs, paths, strict=True)
    pairs = [spec_of(operation, places, path) for operation, path in operations]
    names = [row for _, row in pairs]
    specs = looped([_divided(spec) for spec, _ in pairs], paths)
    given = frozenset(place.name for place in places.values() if place.argument >= 0)
    surroundings = Surroundings(given)
    if LX_PLANNING:
        plan = plan_scratchpad(specs, names, surroundings=surroundings, rule="all")
        specs = with_allocations(specs, names, plan.allocations)
        in_lx = frozenset(plan.allocations)
    else:
        in_lx = frozenset()
    pool = plan_pool(pool_buffers(specs, names, surroundings=surroundings, in_lx=in_lx))
    specs = with_allocations(specs, names, pool.allocations)
    specs = [_plain_in_lx(spec) for spec in specs]
    constants = tuple((c.number, c.dtype) for _, c in sorted(low.constants.items()))
    return FinishedKernel(tuple(specs), tuple(arguments), constants)


def _plain_in_lx(spec: Spec) -> Spec:
    """Nothing moves in LX: its tensors need not say so, and the document's do not."""
    if isinstance(spec, LoopSpec):
        return replace(spec, body=[_plain_in_lx(inner) for inner in spec.body])
    if not isinstance(spec, OpSpec):
        return spec
    args = [
        replace(a, per_tile_fixed=a.per_tile_fixed and LX not in a.allocation) for a in spec.args
    ]
    return replace(spec, args=args)


def _divided(spec: OpSpec) -> OpSpec:
    """With the work divided; of reduced dims only K of a matmul: its partial sums are added up."""
    division = divide_op(spec, usable_cores())
    if spec.op != MATMUL:
        kept = set().union(*(c.free_symbols for c in spec.args[-1].device_coordinates))
        splits = {s: n if s in kept else 1 for s, n in division.splits.items()}
        division = replace(division, splits=splits)
    return with_division(spec, division)


def _places(low: Lowering) -> dict[int, Place]:
    """Every region's place; numbers stand behind the tensors among the arguments."""
    tensors = low.builder.arguments - len(low.constants)
    constants = {number: tensors + k for k, number in enumerate(sorted(low.constants))}
    others = (k for k in range(low.builder.arguments) if k not in constants)
    numbers = constants | {number: k for k, number in enumerate(others)}
    found = {}
    for region, memory in enumerate(low.builder.regions):
        number = numbers[memory.argument] if memory.argument >= 0 else -1
        name = f"arg_{number}" if number >= 0 else f"tmp_{region}"
        found[region] = Place(name, number, memory.span_bytes)
    return found
