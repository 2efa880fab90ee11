"""Damaged operations over packed sticks and windows: a SpyreError or a clean run, nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from spyre.errors import SpyreError
from spyre.hw import plan_table as tb
from spyre.hw.ops.elementwise import Family
from spyre.hw.ops.table import OPS
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.operation.operation import Component, Operation, Padding, Tensor
from tests.hw.golden_cases import GOLDEN
from tests.hw.harness import allocations_of, engine, link, windows

FAMILIES = (Family.PACKED_MATMUL, Family.REQUANTIZE, Family.WINDOWING)
NAMES = [spec.name for spec in OPS.values() if spec.family in FAMILIES]

NUMBERS = (-(1 << 40), -1, 0, 1, 2, 3, 8, 63, 64, 128, 1 << 20, 1 << 33, 1 << 62)
FORMATS = ("SEN169_FP16", "SENINT8", "SENINT4", "SEN143_FP8", "IEEE_FP32", "IEEE_INT32")
STEPS = (128, -128, 1 << 20, -(1 << 20), 1, 64)
MOST_NS = 500_000_000


def number(rng: random.Random, old: int) -> int:
    return rng.choice([rng.choice(NUMBERS), old + 1, old - 1, old // 2])


def one_number(rng: random.Random, values: Mapping[str, int]) -> dict[str, int]:
    name = rng.choice(list(values))
    return {**values, name: number(rng, values[name])}


def one_entry(rng: random.Random, values: tuple, change: Callable) -> tuple:
    at = rng.randrange(len(values))
    return (*values[:at], change(values[at]), *values[at + 1 :])


def damaged_tensor(rng: random.Random, op: Operation, t: Tensor) -> Tensor:
    kinds: dict[str, Callable[[], Tensor]] = {
        "dims": lambda: replace(t, dims=tuple(rng.sample(t.dims, len(t.dims)))),
        "scale": lambda: replace(t, scale={**t.scale, rng.choice(t.dims): rng.choice([-1, -2])}),
        "sticks": lambda: replace(t, stick_dims=tuple(rng.choice(op.dims) for _ in t.stick_dims)),
        "sizes": lambda: replace(
            t, stick_sizes=one_entry(rng, t.stick_sizes, lambda n: rng.choice(NUMBERS[3:]))
        ),
        "starts": lambda: replace(
            t, starts=one_entry(rng, t.starts, lambda start: start + rng.choice(STEPS))
        ),
        "gap": lambda: replace(t, gap_elements={rng.choice(t.dims): rng.choice(NUMBERS)}),
        "size": lambda: replace(t, device_dim_sizes={rng.choice(t.dims): rng.choice(NUMBERS[3:])}),
        "padding": lambda: replace(t, padding={rng.choice(op.dims): rng.choice(list(Padding))}),
        "format": lambda: replace(t, data_format=rng.choice(FORMATS)),
        "memory": lambda: replace(t, component=Component.LX, starts=(4096,) * len(t.starts)),
        "own": lambda: replace(t, per_core_in_hbm=True),
    }
    return kinds[rng.choice(list(kinds))]()


def damaged_window(rng: random.Random, op: Operation) -> Operation:
    dim = rng.choice(list(op.windows))
    field = rng.choice(["total", "stride", "dilation", "pad_front", "pad_back", "window_dim"])
    old = getattr(op.windows[dim], field)
    new = rng.choice(op.dims) if field == "window_dim" else number(rng, old)
    return replace(op, windows={**op.windows, dim: replace(op.windows[dim], **{field: new})})


def damaged(rng: random.Random, op: Operation) -> Operation:
    kind = rng.choice(["name", "extent", "slices", "core", "window", "tensor", "tensor", "tensor"])
    if kind == "name":
        return replace(op, name=rng.choice(NAMES))
    if kind == "extent":
        return replace(op, extents=one_number(rng, op.extents))
    if kind == "slices":
        return replace(op, slices=one_number(rng, op.slices))
    if kind == "core":
        rows = one_entry(rng, op.core_slices, lambda row: one_number(rng, row))
        return replace(op, core_slices=rows)
    if kind == "window" and op.windows:
        return damaged_window(rng, op)
    if rng.random() < 0.6:
        inputs = one_entry(rng, op.inputs, lambda t: damaged_tensor(rng, op, t))
        return replace(op, inputs=inputs)
    return replace(op, outputs=(damaged_tensor(rng, op, op.outputs[0]),))


@pytest.mark.parametrize("name", NAMES)
def test_damage(name: str):
    device, refused = engine("dl16", 1), 0
    for seed in range(60):
        rng = random.Random(f"{name} {seed}")
        whole = build_operation(GOLDEN[name].cases[seed % 2].spec)
        op = whole
        for _ in range(rng.choice([1, 1, 2])):
            op = damaged(rng, op)
        try:
            linked = link(device, [op], allocations_of(windows(whole)))
        except SpyreError:
            refused += 1
            continue
        if linked.tables[linked.tables[:, tb.KIND] != tb.EXTRA, tb.COST_NS].sum() < MOST_NS:
            device.executor.run(linked)
    assert 0 < refused < 60
