"""The pool: what lives together does not overlap, and the rest shares memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from spyre.errors import DeviceOutOfMemory
from spyre.torch_backend.inductor.scratchpad.accesses import LiveBuffer
from spyre.torch_backend.inductor.scratchpad.plan import Surroundings, plan_scratchpad
from spyre.torch_backend.inductor.scratchpad.pool import plan_pool, pool_buffers, with_allocations
from tests.torch_backend.inductor.scratchpad.kernels import chain, loop, softmax
from tests.torch_backend.inductor.scratchpad.test_plan import kernels, run

GIB = 1 << 30


@st.composite
def buffers(draw):
    found = []
    for k in range(draw(st.integers(0, 25))):
        start = draw(st.integers(0, 30))
        last = draw(st.integers(start, 31))
        held = (max(0, start - 1), last + 2) if draw(st.booleans()) else None
        uses = tuple(sorted({start, last}))
        found.append(LiveBuffer(f"b{k}", draw(st.integers(1, 2000)), uses, held=held))
    return found


@given(buffers())
def test_no_two_living_buffers_overlap(given_buffers):
    plan = plan_pool(given_buffers)
    assert list(plan.offsets) == [b.name for b in given_buffers]
    loads = []
    for step in range(40):
        taken: set[int] = set()
        for b in given_buffers:
            if b.start <= step < b.end:
                at = plan.offsets[b.name]
                own = set(range(at, at + b.size_bytes))
                assert at % 128 == 0
                assert 0 <= at <= plan.size_bytes - b.size_bytes
                assert not own & taken, f"{b.name} overwrites another buffer at operation {step}"
                taken |= own
        loads.append(len(taken))
    assert max(loads) <= plan.size_bytes <= plan.unshared_bytes
    assert plan.size_bytes % 128 == 0


def test_a_chain_needs_two_buffers():
    specs, names = chain(*["exp"] * 10)
    found = pool_buffers(specs, names, surroundings=Surroundings.of(["x"], ["b9"]))
    assert [b.name for b in found] == [f"b{k}" for k in range(9)]
    plan = plan_pool(found)
    assert plan.size_bytes == 2 << 20
    assert plan.unshared_bytes == 9 << 20
    assert set(plan.offsets.values()) == {0, 1 << 20}


def test_the_lowest_free_place_is_taken():
    found = plan_pool(
        [
            LiveBuffer("a", 256, (0, 1)),
            LiveBuffer("b", 128, (0, 5)),
            LiveBuffer("c", 100, (2, 5)),
            LiveBuffer("d", 256, (3, 5)),
            LiveBuffer("e", 128, (3, 5)),
        ]
    )
    assert found.offsets == {"a": 0, "b": 256, "c": 0, "d": 384, "e": 128}
    assert found.size_bytes == 640


def test_freed_neighbours_are_one_place():
    found = plan_pool(
        [
            LiveBuffer("a", 128, (0, 1)),
            LiveBuffer("b", 128, (0, 1)),
            LiveBuffer("top", 128, (0, 3)),
            LiveBuffer("c", 256, (2, 3)),
        ]
    )
    assert found.offsets["c"] == 0


def test_live_ranges_include_the_last_read():
    specs, names = softmax()
    found = pool_buffers(specs, names, surroundings=Surroundings.of(["x"], ["y"]))
    assert {b.name: (b.start, b.end) for b in found} == {
        "max": (0, 2), "sub": (1, 3), "exp": (2, 5), "sum": (3, 5),
    }  # fmt: skip
    assert [b.size_bytes for b in found] == [65536, 1 << 20, 1 << 20, 65536]


def test_only_what_is_made_and_used_here_and_not_in_lx():
    specs, names = softmax()
    around = Surroundings.of(graph_outputs=["y"], used_outside=["sum"])
    found = pool_buffers(specs, names, surroundings=around, in_lx=["max"])
    assert [b.name for b in found] == ["sub", "exp"], "x is read before anything makes it"


def test_loops_keep_what_they_need():
    specs, names = chain("exp", "neg", "exp", "neg", sizes=(64, 64))
    looped = [specs[0], loop(3, *specs[1:3]), specs[3]]
    found = {b.name: b for b in pool_buffers(looped, names, surroundings=Surroundings.of(["x"]))}
    assert (found["b0"].start, found["b0"].end) == (0, 3)
    plan = plan_pool(list(found.values()))
    assert len({plan.offsets[n] for n in ("b0", "b1", "b2")}) == 3


@given(kernels())
@settings(deadline=None)
def test_kernels_compute_the_same_in_the_pool(kernel):
    specs, names = kernel
    plan = plan_pool(pool_buffers(specs, names, surroundings=Surroundings.of(["x"])))
    assert run(specs, names, plan.offsets) == run(specs, names, {})


def test_what_does_not_fit_lx_goes_into_the_pool():
    specs, names = softmax()
    around = Surroundings.of(["x"], ["y"])
    lx = plan_scratchpad(specs, names, surroundings=around, capacity_bytes=1 << 18)
    pool = plan_pool(pool_buffers(specs, names, surroundings=around, in_lx=lx.allocations))
    assert set(lx.allocations) == {"max", "sum"}
    assert pool.allocations == {"sub": {"pool": 0}, "exp": {"pool": 1 << 20}}
    done = with_allocations(specs, names, lx.allocations | pool.allocations)
    assert [(t.memory, t.start_bytes) for t in done[2].tensors] == [("pool", 0), ("pool", 1 << 20)]
    assert [t.memory for t in done[0].tensors] == ["hbm", "lx"]


def test_the_segment_is_16_gib():
    fits = [
        LiveBuffer("a", 8 * GIB, (0, 1)),
        LiveBuffer("b", 8 * GIB, (1, 2)),
        LiveBuffer("c", 8 * GIB, (2, 3)),
    ]
    assert plan_pool(fits).size_bytes == 16 * GIB
    with pytest.raises(DeviceOutOfMemory, match="SPY987") as caught:
        plan_pool([*fits, LiveBuffer("late", 128, (1, 2))])
    finding = caught.value.finding
    assert "late has no place" in finding.message
    assert finding.found == f"128 bytes besides {16 * GIB} of others"
    assert finding.expected == f"at most {16 * GIB} bytes alive at operation 1"
