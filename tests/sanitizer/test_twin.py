"""The compiled checks against the slow twin: random operations, disturbed, over random memory."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace

from qa.sanitize_mutants.shadow_reference import ShadowReference
from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from spyre.hw.linking.binding import Allocation
from spyre.hw.spec import LX_BASE, LX_BYTES, REGION_BYTES
from spyre.mlir.builder.operations import build_operation
from spyre.mlir.operation.operation import Component, Operation, Tensor
from tests.examples import examples
from tests.hw.harness import Window, link, literal_starts, map_tensors, move_lx, windows
from tests.hw.strategies import elementwise_specs, matmul_specs, reduction_specs, seeds

REGIONS = [Allocation(f"region {k}", k * REGION_BYTES, REGION_BYTES) for k in range(7)]
DEVICE = Device(threads=1, sanitize="init,race,lx")

specs = st.one_of(elementwise_specs("add", 2, {}), reduction_specs("sum"), matmul_specs())


def disturb(op: Operation, rng: np.random.Generator) -> Operation:
    """Cores moved onto others, an input onto the output, scratchpads elsewhere."""
    kind = rng.integers(5)
    if kind == 0:
        return op
    if kind == 1:
        return move_lx(op, rng, 4096)
    if kind == 2:
        return map_tensors(op, lambda t: shuffled(t, rng) if t in op.outputs else t)
    if kind == 3:
        return map_tensors(op, lambda t: replace(t, starts=op.tensors[-1].starts))
    return map_tensors(op, lambda t: shuffled(replace(t, starts=op.tensors[-1].starts), rng))


def shuffled(tensor: Tensor, rng: np.random.Generator) -> Tensor:
    """Some cores start where others do, some a few sticks further."""
    if tensor.component is Component.LX:
        return tensor
    starts = np.array(tensor.starts)
    chosen = rng.random(len(starts)) < 0.3
    starts[chosen] = rng.choice(starts, int(chosen.sum()))
    starts[rng.random(len(starts)) < 0.2] += 128 * int(rng.integers(1, 9))
    return replace(tensor, starts=tuple(starts.tolist()))


def upload(window: Window, rng: np.random.Generator, twin: ShadowReference) -> None:
    """All of a window, or a part of it."""
    assert DEVICE.sanitizer is not None
    low, high = window.low // 128 * 128, window.high
    if rng.random() < 0.5:
        low += 128 * int(rng.integers(0, (high - low) // 128 + 1))
    if high > low:
        DEVICE.sanitizer.written(low, high - low)
        twin.upload(low, high - low)


def found_counts() -> Counter[tuple[str, str]]:
    assert DEVICE.sanitizer is not None
    counts: Counter[tuple[str, str]] = Counter()
    for finding in DEVICE.sanitizer.take():
        assert finding.tensor is not None
        counts[finding.tensor, finding.code] += finding.sticks
    return counts


@examples(60)
@given(data=st.data(), seed=seeds, repeat=st.sampled_from([1, 1, 3]))
def test_counts(data: st.DataObject, seed: int, repeat: int):
    rng = np.random.default_rng(seed)
    op = build_operation(data.draw(specs))
    operations = [disturb(op, rng) for _ in range(2)]
    DEVICE.reset()
    twin = ShadowReference()
    for window in windows(op):
        upload(window, rng, twin)
    try:
        linked = link(DEVICE, operations, REGIONS, repeat)
    except SpyreError:
        assume(False)
    DEVICE.executor.run(linked)
    for _ in range(repeat):
        for operation in operations:
            twin.execute(operation, literal_starts(operation))
    assert found_counts() == twin.counts


def test_scratchpads_of_all_cores_are_apart():
    """A stick of one scratchpad says nothing of the same stick of another."""
    assert DEVICE.sanitizer is not None
    DEVICE.reset()
    DEVICE.sanitizer.written(LX_BASE + 3 * LX_BYTES, 256, "core 3")
    words = DEVICE.sanitizer.shadow.words
    assert np.count_nonzero(words[words.size - 40 * LX_BYTES // 128 :]) == 2
