"""The pool: buffers that live at one time do not overlap, and others share memory."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from spyre.errors import DeviceOutOfMemory
from spyre.torch_backend.inductor.scratchpad import (
    pack_pool,
    plan_scratchpad,
    pool_offsets,
    with_offsets,
)
from spyre.torch_backend.program.builder import LiveBuffer
from tests.torch_backend.inductor.scratchpad.kernels import chain, loop, named, softmax
from tests.torch_backend.inductor.scratchpad.test_plan import kernels, run

GIB = 1 << 30


MIB = 1 << 20


@st.composite
def buffers(draw):
    found = []
    for k in range(draw(st.integers(0, 25))):
        start = draw(st.integers(0, 30))
        end = draw(st.integers(start + 1, 34))
        found.append(LiveBuffer(f"b{k}", draw(st.integers(1, 2000)), start, end))
    return found


@given(buffers())
def test_no_two_living_buffers_overlap(given_buffers):
    offsets = pack_pool(given_buffers)
    assert list(offsets) == [b.name for b in given_buffers]
    size = max((offsets[b.name] + b.size_bytes for b in given_buffers), default=0)
    loads = []
    for step in range(40):
        taken: set[int] = set()
        for b in given_buffers:
            if b.start <= step < b.end:
                at = offsets[b.name]
                own = set(range(at, at + b.size_bytes))
                assert at % 128 == 0
                assert at >= 0
                assert not own & taken, f"{b.name} overwrites another buffer at operation {step}"
                taken |= own
        loads.append(len(taken))
    assert max(loads) <= size <= sum(b.size_bytes + 127 for b in given_buffers)


def test_a_chain_needs_two_buffers():
    specs, names = chain(*["exp"] * 10)
    found = pool_offsets(named(specs, names, ["x", "b9"]))
    assert list(found) == [f"b{k}" for k in range(9)]
    assert set(found.values()) == {0, MIB}


def test_the_lowest_free_offset_is_taken():
    found = pack_pool(
        [
            LiveBuffer("a", 256, 0, 2),
            LiveBuffer("b", 128, 0, 6),
            LiveBuffer("c", 100, 2, 6),
            LiveBuffer("d", 256, 3, 6),
            LiveBuffer("e", 128, 3, 6),
        ]
    )
    assert found == {"a": 0, "b": 256, "c": 0, "d": 384, "e": 128}


def test_freed_neighbours_are_one_gap():
    found = pack_pool(
        [
            LiveBuffer("a", 128, 0, 2),
            LiveBuffer("b", 128, 0, 2),
            LiveBuffer("top", 128, 0, 4),
            LiveBuffer("c", 256, 2, 4),
        ]
    )
    assert found["c"] == 0


def test_lifetimes_include_the_last_read():
    """max (0-1), sub (1-2), exp (2-4), sum (3-4), of 1 and 16 units of 64 KiB."""
    specs, names = softmax()
    found = pool_offsets(named(specs, names, ["x", "y"]))
    unit = 64 << 10
    assert found == {"max": 0, "sub": unit, "exp": 17 * unit, "sum": 0}


def test_arguments_and_buffers_in_lx_are_left_out():
    kernel = with_offsets(named(*softmax(), ["y", "sum"]), "lx", {"max": 0})
    found = pool_offsets(kernel)
    assert list(found) == ["sub", "exp"], "x is read before anything makes it"


def test_loops_keep_the_buffers_they_need():
    specs, names = chain("exp", "neg", "exp", "neg", sizes=(64, 64))
    looped = [specs[0], loop(3, *specs[1:3]), specs[3]]
    found = pool_offsets(named(looped, names, ["x"]))
    assert len({found[n] for n in ("b0", "b1", "b2")}) == 3


@given(kernels())
def test_kernels_compute_the_same_in_the_pool(kernel):
    specs, names = kernel
    assert run(specs, names, pool_offsets(named(specs, names, ["x"]))) == run(specs, names, {})


def test_buffers_that_do_not_fit_into_lx_go_into_the_pool():
    specs, names = softmax()
    kernel = named(specs, names, ["x", "y"])
    lx = plan_scratchpad(kernel, 1 << 18)
    kernel = with_offsets(kernel, "lx", lx.placed)
    pool = pool_offsets(kernel)
    assert set(lx.placed) == {"max", "sum"}
    assert pool == {"sub": 0, "exp": MIB}
    done = with_offsets(kernel, "pool", pool)
    assert [(t.memory, t.start_bytes) for t in done[2].tensors] == [("pool", 0), ("pool", MIB)]
    assert [t.memory for t in done[0].tensors] == ["hbm", "lx"]


def test_the_segment_is_16_gib():
    fits = [
        LiveBuffer("a", 8 * GIB, 0, 2),
        LiveBuffer("b", 8 * GIB, 1, 3),
        LiveBuffer("c", 8 * GIB, 2, 4),
    ]
    assert pack_pool(fits) == {"a": 0, "b": 8 * GIB, "c": 0}
    with pytest.raises(DeviceOutOfMemory, match="SPY987") as caught:
        pack_pool([*fits, LiveBuffer("late", 128, 1, 3)])
    finding = caught.value.finding
    assert "late does not fit" in finding.message
    assert finding.found == f"128 bytes besides {16 * GIB} of others"
    assert finding.expected == f"at most {16 * GIB} bytes alive at operation 1"
