"""The cases of golden vectors of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from spyre.mlir.builder.operations import OperationSpec
from spyre.mlir.builder.recipes import host_tensor, round_up
from spyre.mlir.operation.operation import Padding
from tests.hw.golden_case import Case
from tests.hw.golden_packed_shapes import FORMATS, contracted, stick_of
from tests.hw.golden_shapes import at, code
from tests.mlir.window_recipes import SPATIAL, WINDOW_DIMS, Windows, conv2d, pool

PADDED = Windows((3, 3), (2, 1), padding=((1, 0), (1, 1)))
WIDE = Windows((2, 2), (2, 1))
DILATED = Windows((2, 3), (1, 1), (2, 1))
SPLIT = Windows((2, 3), (1, 2), padding=((1, 0), (2, 1)))
STORED = Windows((2, 3), (1, 1), padding=((1, 0), (2, 1)), kind=Padding.STORED_ZEROS)
Plan = tuple[tuple[int, int, int, int], Windows, dict[str, int]]
"""(images, height, width, channels), windows, work slices.

Positions along the width, and it with its padding, are even: 4-bit sticks hold pairs of it.
"""
PLANS: dict[str, Plan] = {
    "implied": ((1, 5, 6, 70), PADDED, {}),
    "split": ((2, 4, 7, 128), SPLIT, {"mb": 2, "i": 4, "out": 2}),
    "without": ((2, 8, 5, 64), WIDE, {"i": 2, "j": 2}),
    "dilated": ((1, 6, 6, 40), DILATED, {"i": 2}),
    "stored": ((2, 3, 5, 64), STORED, {"mb": 2, "i": 3}),
}


def convolutions(kind: str) -> tuple[Case, ...]:
    """Padding not stored, stored and none; channels in and out padded, and split."""
    plans = [
        ("implied", 40, 20, {}),
        ("split", 130, 70, {"in": 2} if kind else {}),
        ("dilated", 24, 33, {}),
        ("stored", 64, 64, {}),
    ]
    return tuple(
        convolution(name, kind, inner, channels, more) for name, inner, channels, more in plans
    )


def convolution(
    name: str, kind: str, inner: int, channels: int, more_splits: Mapping[str, int]
) -> Case:
    """The plan ``name`` with ``inner`` channels in and ``channels`` out, packed as ``kind`` is."""
    (*outer, _), windows, splits = PLANS[name]
    shape, data_format = (*outer, inner), FORMATS[kind]
    operands = at(0, (), data_format), at(1, (), data_format), at(2)
    spec = conv2d(shape, channels, windows, *operands, name=f"conv2d{kind}")
    extents = {
        **spec.extents,
        "out": round_up(channels, 64),
        "in": round_up(inner, 128 if kind else 64),
    }
    packings = contracted(kind, "in", "j", "out")
    inputs = [
        replace(tensor, stick=stick_of(packings[k])) if k in packings else tensor
        for k, tensor in enumerate(spec.inputs)
    ]
    spec = replace(spec, extents=extents, inputs=inputs, splits={**splits, **more_splits})
    real = {**extents, "out": channels, "in": inner}
    return Case(name, spec, real, held_sizes(spec, shape), padding=0.0, packings=packings)


def held_sizes(spec: OperationSpec, shape: Sequence[int]) -> dict[int, dict[str, int]]:
    """Spatial extents the first input's memory holds: with the padding where it is stored."""
    stored = spec.inputs[0].padding["i"] is not Padding.IMPLIED
    extents = dict(zip(SPATIAL, shape[1:3], strict=True))
    return {0: {dim: w.total if stored else extents[dim] for dim, w in spec.windows.items()}}


def pooled(
    name: str, plans: Sequence[str], constants: Mapping[str, int] | None = None
) -> tuple[Case, ...]:
    """Pooling, and what slides over one channel at a time; a second input where it has one."""
    cases = []
    for plan in plans:
        shape, windows, splits = PLANS[plan]
        spec = pool(name, shape, windows, at(0), at(2), splits, constants)
        lanes = {}
        if name == "depthwiseconv2dnative":
            kernel = replace(host_tensor(at(1), (*WINDOW_DIMS, "out")), role="KERNEL")
            spec = replace(spec, inputs=[*spec.inputs, kernel], unit="pt")
        if name == "avgpoolnmapfwd":
            kernel = replace(host_tensor(at(1, (0, 3)), ("mb", *SPATIAL, "out")), role="KERNEL")
            spec, lanes = replace(spec, inputs=[*spec.inputs, kernel]), {1: 1}
        real = {**spec.extents, "out": shape[3]}
        cases.append(Case(plan, spec, real, held_sizes(spec, shape), lanes))
    return tuple(cases)


NMAP = {"nmap": code(0.25)}
EXTREMES = ("implied", "split", "without", "dilated")
TOTALS = ("implied", "split", "without")
CHANNELS = (*EXTREMES, "stored")
