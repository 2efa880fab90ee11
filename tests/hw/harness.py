"""Engine and reference side by side: the same bytes into two memories, one operation, compare.

An operation with literal addresses is linked and run on a Device, and executed by
:func:`spyre.hw.reference.run_reference` on a second reservation. Every byte of every operand is
compared afterwards, guard sticks on both sides included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from spyre.dtypes import (
    FORMATS,
    NumericRules,
    codes_to_bytes,
    decode_device,
    encode_device,
    find_stored_format,
)
from spyre.hw.device.device import Device
from spyre.hw.linking.binding import Allocation, Binding
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.linking.linker import Linker
from spyre.hw.memory.device_memory import DeviceMemory
from spyre.hw.numerics import parse_numerics
from spyre.hw.reference import run_reference
from spyre.hw.reference.agreement import ordered_codes
from spyre.hw.spec import HBM_BYTES, LX_BASE, LX_BYTES, REGION_BYTES
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.operation.operation import Component, Operation, Tensor, footprint
from spyre.mlir.program.program import LoopProgram
from spyre.mlir.text.lowering import lower
from spyre.mlir.text.parser import parse_module

GUARD_BYTES = 512
BASE_OFFSET = 1 << 16
"""Offset of every operand in its region, so that guards have room on both sides."""

Array = npt.NDArray[Any]
Fill = Callable[[np.random.Generator, int], Array]
"""(rng, elements) → numbers (float32) or, for index tensors, integers."""


@lru_cache(maxsize=8)
def engine(mode: str = "dl16", threads: int = 1) -> Device:
    """One device per number mode (in its text form) and thread count for the whole test run."""
    return Device(mode, threads=threads)


@lru_cache(maxsize=1)
def reference_memory() -> DeviceMemory:
    return DeviceMemory()


def region(k: int) -> int:
    """Base address for operand ``k``: one operand per region."""
    return k % 7 * REGION_BYTES + BASE_OFFSET + k // 7 * (1 << 30)


def make_program(executes: int, repeat: int = 1) -> LoopProgram:
    """A program that executes sdsc_0.json, sdsc_1.json, … ``repeat`` times."""
    body = "\n".join(
        f'sdscbundle.sdsc_execute () {{sdsc_filename="sdsc_{k}.json"}}' for k in range(executes)
    )
    lines = [f"%{n} = arith.constant {v} : index" for n, v in (("a", 0), ("b", repeat), ("c", 1))]
    lines.append(f"scf.for %i = %a to %b step %c {{\n{body}\n}}" if repeat > 1 else body)
    text = "module {\nfunc.func @sdsc_bundle() {\n" + "\n".join(lines) + "\nreturn\n}\n}\n"
    return lower(parse_module(text, "test"))


def link(
    device: Device,
    operations: Sequence[Operation],
    allocations: Sequence[Allocation],
    repeat: int = 1,
) -> LinkedProgram:
    """``operations`` in order, at literal addresses."""
    named = {f"sdsc_{k}.json": op for k, op in enumerate(operations)}
    program = make_program(len(operations), repeat)
    numerics = device.numerics
    linker = Linker(program, named, numerics, device.threads)
    ordered = sorted(allocations, key=lambda a: a.address_bytes)
    return linker.link(Binding(allocations=tuple(ordered)))


def literal_starts(op: Operation) -> Array:
    """``starts`` of an operation with literal addresses; LX follows HBM, core by core."""
    starts = np.array([tensor.starts for tensor in op.tensors], np.int64)
    lx = LX_BASE + np.array(op.cores, np.int64) * LX_BYTES
    for operand, tensor in enumerate(op.tensors):
        if tensor.component is Component.LX:
            starts[operand] += lx
    return starts


class Window(msgspec.Struct, frozen=True):
    """A byte range one operand touches (on one core, of a local tensor), guards excluded."""

    operand: int
    tensor: Tensor
    low: int
    high: int

    @property
    def guarded(self) -> tuple[int, int]:
        """Address and size with the guards; LX windows start where the core's LX does."""
        local = self.tensor.component is Component.LX
        room = (self.low - HBM_BYTES) % (2 << 20) if local else self.low % REGION_BYTES
        low = self.low - min(GUARD_BYTES, room)
        return low, self.high + GUARD_BYTES - low


def windows(op: Operation, sizes: Mapping[int, int] | None = None) -> list[Window]:
    """Return the memory each operand touches. ``sizes``: in bytes, where not derivable."""
    found = []
    starts = literal_starts(op)
    for k, tensor in enumerate(op.tensors):
        span = footprint(op, tensor).span_bytes
        if tensor.is_local:
            lows = [int(s) for s in starts[k]]
            span = (sizes or {}).get(k, span)
            found += [Window(k, tensor, low, low + span) for low in lows]
            continue
        low, high = int(starts[k].min()), int(starts[k].max()) + span
        if sizes and k in sizes:
            high = low + sizes[k]
        found.append(Window(k, tensor, low, high))
    return found


def allocations_of(found: Sequence[Window], tags: Sequence[str] = ()) -> list[Allocation]:
    """Exactly the windows in HBM."""
    return [
        Allocation(w.tensor.name, w.low, w.high - w.low, tags[w.operand] if tags else "STANDARD")
        for w in found
        if w.tensor.component is Component.HBM
    ]


# --- data -------------------------------------------------------------------------------------


def small_numbers(rng: np.random.Generator, count: int) -> Array:
    """Multiples of 1/4 from -2 to 2: sums of thousands of products are exact in float32."""
    return (rng.integers(-8, 9, count) / 4).astype(np.float32)


def powers(rng: np.random.Generator, count: int) -> Array:
    """±1, now and then ±2 or ±1/2: products stay exact and far from overflow."""
    signs = rng.choice(np.array([1, -1], np.float32), count)
    return signs * np.where(rng.random(count) < 0.02, rng.choice([2.0, 0.5], count), 1.0)


def normals(rng: np.random.Generator, count: int) -> Array:
    return rng.standard_normal(count, np.float32)


def any_numbers(rng: np.random.Generator, count: int) -> Array:
    """Numbers of all magnitudes a DL16 can hold, zeros of both signs included."""
    mantissa = rng.standard_normal(count)
    values = mantissa * np.exp2(rng.integers(-34, 34, count).astype(np.float64))
    values[rng.random(count) < 0.05] = 0.0
    return np.copysign(values, mantissa).astype(np.float32)


def truths(rng: np.random.Generator, count: int) -> Array:
    return rng.integers(0, 2, count).astype(np.float32)


def fill_window(
    window: Window, fill: Fill, mode: str, rng: np.random.Generator, memories: Sequence[Any]
) -> None:
    address, size = window.guarded
    name = window.tensor.data_format
    count = -(-8 * size // FORMATS[name].bits)
    values = fill(rng, count)
    if np.issubdtype(values.dtype, np.floating):
        values = encode_device(values, name, parse_numerics(mode).alu_rules)
    data = codes_to_bytes(values, name)
    for memory in memories:
        memory.write(address, data[:size])


# --- comparing --------------------------------------------------------------------------------


def order_key(codes: Array) -> Array:
    """16-bit float codes as integers in numeric order; both zeros are 0."""
    return ordered_codes(codes.view(np.uint8), find_stored_format("SEN169_FP16"))


def wrong_elements(
    found: Array, expected: Array, window: Window, mode: str, ulps: int | None
) -> Array:
    """Indices of elements that differ by more than ``ulps`` (None: bits differ; 0: but for ±0).

    Both NaN is equal. ``ulps`` are 16-bit codes, and 2^-17 relative for fp32 tensors.
    """
    dtype = f"u{max(window.tensor.word_length_bytes, 1)}"
    a, b = found.view(dtype), expected.view(dtype)
    different = a != b
    if not different.any():
        return np.flatnonzero(different)
    if window.tensor.data_format == "IEEE_FP32":
        x, y = a.view(np.float32), b.view(np.float32)
        different &= ~(np.isnan(x) & np.isnan(y))
        if ulps is not None:
            different &= ~np.isclose(x, y, rtol=ulps * 2.0**-17, atol=1e-37 * (ulps > 0))
    elif window.tensor.data_format == "SEN169_FP16":
        if mode == "ieee":
            x, y = (decode_device(v, "SEN169_FP16", NumericRules("ieee")) for v in (a, b))
            different &= ~(np.isnan(x) & np.isnan(y))
        if ulps is not None:
            different &= np.abs(order_key(a) - order_key(b)) > ulps
    return np.flatnonzero(different)


def describe(op: Operation, window: Window, wrong: Array, found: Array, expected: Array) -> str:
    dtype = f"u{max(window.tensor.word_length_bytes, 1)}"
    a, b = found.view(dtype), expected.view(dtype)
    shown = ", ".join(f"[{i}] {a[i]:#x} not {b[i]:#x}" for i in wrong[:6])
    return f"{op.name} {dict(op.extents)} {window.tensor.name}: {len(wrong)} wrong: {shown}"


class Trial(msgspec.Struct, frozen=True):
    """One comparison: how to fill the operands, and how exactly the outputs must agree."""

    fills: Sequence[Fill] | Fill = small_numbers
    mode: str = "dl16"
    threads: int = 1
    ulps: int | None = None
    tags: Sequence[str] = ()
    sizes: Mapping[int, int] | None = None
    seed: int = 0
    repeat: int = 1

    def fill_of(self, operand: int) -> Fill:
        return self.fills if callable(self.fills) else self.fills[operand]


def compare(operation: OperationSpec | Operation, trial: Trial | None = None) -> None:
    """Run one operation on both sides from equal memory; AssertionError where they differ."""
    trial = trial or Trial()
    op = build_operation(operation) if isinstance(operation, OperationSpec) else operation
    device, reference = engine(trial.mode, trial.threads), reference_memory()
    found = windows(op, trial.sizes)
    rng = np.random.default_rng(trial.seed)
    for window in found:
        fill_window(
            window, trial.fill_of(window.operand), trial.mode, rng, (device.memory, reference)
        )
    linked = link(device, [op], allocations_of(found, trial.tags), trial.repeat)
    device.executor.run(linked)
    for _ in range(trial.repeat):
        run_reference(op, reference, literal_starts(op), device.numerics, trial.tags)
    for window in found:
        assert_equal(op, window, device.memory, reference, trial)


def assert_equal(op: Operation, window: Window, memory: Any, reference: Any, trial: Trial) -> None:
    left, right = (m.read(*window.guarded) for m in (memory, reference))
    ulps = trial.ulps if window.operand == len(op.tensors) - 1 else None
    wrong = wrong_elements(left, right, window, trial.mode, ulps)
    assert not wrong.size, describe(op, window, wrong, left, right)


def output_bytes(op: Operation, trial: Trial, sizes: Mapping[int, int] | None = None) -> bytes:
    """Run the operation on deterministic inputs and return the bytes of the output's windows."""
    device = engine(trial.mode, trial.threads)
    found = windows(op, sizes)
    for window in found:
        rng = np.random.default_rng((trial.seed, window.operand))
        fill_window(window, trial.fill_of(window.operand), trial.mode, rng, (device.memory,))
    device.executor.run(link(device, [op], allocations_of(found, trial.tags)))
    last = len(op.tensors) - 1
    parts = [device.memory.read(w.low, w.high - w.low) for w in found if w.operand == last]
    return b"".join(part.tobytes() for part in parts)


def move_lx(op: Operation, rng: np.random.Generator, room_bytes: int = 1 << 18) -> Operation:
    """``op`` with another LX start on every core: starts that no loop nest describes."""

    def moved(tensor: Tensor) -> Tensor:
        if tensor.component is not Component.LX:
            return tensor
        shifts = rng.integers(0, room_bytes // 128, len(op.cores)) * 128
        return replace(tensor, starts=tuple(s + int(d) for s, d in zip(tensor.starts, shifts)))  # noqa: B905

    return map_tensors(op, moved)


def map_tensors(op: Operation, change: Callable[[Tensor], Tensor]) -> Operation:
    """``op`` with every tensor changed."""
    return replace(
        op,
        inputs=tuple(map(change, op.inputs)),
        index_tensors=tuple(map(change, op.index_tensors)),
        outputs=tuple(map(change, op.outputs)),
    )
