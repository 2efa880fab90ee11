"""Random operations whose tensors are divided over cores in their own ways: all legal."""

from __future__ import annotations

from math import lcm, prod

from hypothesis import strategies as st
from msgspec.structs import replace

from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.operation.operation import Component, Operation
from tests.hw.harness import region

DIMS = ("mb", "x", "out")
STICK = "out"


@st.composite
def factorings(draw: st.DrawFn, count: int) -> dict[str, int]:
    """``count`` as a product over the dims."""
    factors, rest = {}, count
    for dim in draw(st.permutations(DIMS)):
        options = [n for n in range(1, rest + 1) if rest % n == 0]
        factors[dim] = draw(st.sampled_from(options))
        rest //= factors[dim]
    factors[dim] *= rest
    return {dim: factors[dim] for dim in DIMS}


@st.composite
def divisions(
    draw: st.DrawFn, cores: int, complete: bool
) -> tuple[dict[str, int], tuple[dict[str, int], ...]]:
    """Slices per dim and per core: each slice with one core, or with several.

    ``complete``: every slice is with some core. Slices may be fewer than cores.
    """
    parts = draw(st.sampled_from([n for n in range(1, cores + 1) if cores % n == 0]))
    slices = draw(factorings(parts))
    places = list(range(parts)) + [draw(st.integers(0, parts - 1)) for _ in range(cores - parts)]
    if not complete:
        places = [draw(st.integers(0, parts - 1)) for _ in range(cores)]
    rows = []
    for place in draw(st.permutations(places)):
        row = {}
        for dim in DIMS:
            place, row[dim] = divmod(place, slices[dim])
        rows.append(row)
    return slices, tuple(rows)


@st.composite
def shuffles(draw: st.DrawFn) -> Operation:
    """S1 to S2 in LX: shards anywhere, some maybe twice; any part of them anywhere."""
    cores = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    splits = draw(factorings(cores))
    source, target = draw(divisions(cores, True)), draw(divisions(cores, False))
    lanes, data_format = draw(st.sampled_from([(64, "SEN169_FP16"), (32, "IEEE_FP32")]))
    tables = (splits, source[0], target[0])
    extents = {d: lcm(*(t[d] for t in tables)) * draw(st.integers(1, 2)) for d in DIMS}
    extents[STICK] *= lanes
    orders = [tuple(draw(st.permutations(DIMS))) for _ in range(2)]
    tensors = [
        OperandSpec(
            dims=order,
            stick=((STICK, lanes),),
            base=4096 + k * (1 << 20),
            data_format=data_format,
            component=Component.LX,
            role=f"R{k}",
            own_slices=slices,
            own_core_slices=rows,
        )
        for k, (order, (slices, rows)) in enumerate(zip(orders, (source, target), strict=True))
    ]
    spec = OperationSpec("shuffle", extents, tensors[:1], tensors[1:], splits)
    return _with_idle_cores(draw, build_operation(replace(spec, data_format=data_format)))


def _with_idle_cores(draw: st.DrawFn, op: Operation) -> Operation:
    """Now and then a core that gets nothing, or one that holds nothing others lack."""
    target = op.outputs[0]
    rows = [
        {} if draw(st.integers(0, 9)) == 0 and core else row
        for core, row in enumerate(target.own_core_slices)
    ]
    return replace(op, outputs=(replace(target, own_core_slices=tuple(rows)),))


@st.composite
def lookups(draw: st.DrawFn) -> Operation:
    """add or identity whose first input, in LX, is divided otherwise than the work."""
    cores = draw(st.sampled_from([2, 3, 4, 6, 8]))
    splits, own = draw(factorings(cores)), draw(divisions(cores, True))
    extents = {d: lcm(splits[d], own[0][d]) * draw(st.integers(1, 2)) for d in DIMS}
    extents[STICK] *= 64
    absent = draw(st.sampled_from([(), ("mb",), ("x",)]))
    divided = OperandSpec(
        dims=tuple(draw(st.permutations([d for d in DIMS if d not in absent]))),
        stick=((STICK, 64),),
        base=4096,
        component=Component.LX,
        role="S",
        own_slices={d: n for d, n in own[0].items() if d not in absent},
        own_core_slices=tuple({d: i for d, i in row.items() if d not in absent} for row in own[1]),
    )
    in_lx = draw(st.booleans())
    output = OperandSpec(
        dims=tuple(draw(st.permutations(DIMS))),
        stick=((STICK, 64),),
        base=1 << 20 if in_lx else region(1),
        component=Component.LX if in_lx else Component.HBM,
        role="T",
    )
    other = OperandSpec(DIMS, ((STICK, 64),), region(2), role="U")
    name, inputs = draw(st.sampled_from([("identity", [divided]), ("add", [divided, other])]))
    spec = OperationSpec(
        name, extents, inputs, [output], splits, core_order=draw(st.permutations(DIMS))
    )
    return build_operation(spec)


def elements(op: Operation) -> int:
    """Points of the iteration space."""
    return prod(op.extents.values())
