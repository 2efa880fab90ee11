"""Operations of a kernel, and how long its buffers live, in straight code and in loops."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given, strategies as st

from spyre.torch_backend.inductor.scratchpad import accesses_of, first_is_write, live_range
from tests.torch_backend.inductor.scratchpad.kernels import (
    FULL,
    ROWS,
    chain,
    loop,
    named,
    pointwise,
    softmax,
)


def lives(specs, names):
    accesses, loops = accesses_of(named(specs, names))
    return {n: live_range(a, loops) for n, a in accesses.items()}


def test_straight_code():
    found = lives(*softmax())
    assert found == {
        "x": (0, 2), "max": (0, 2), "sub": (1, 3), "exp": (2, 5), "sum": (3, 5), "y": (4, 5),
    }  # fmt: skip


def test_the_first_operation_writes_a_result_and_reads_an_input():
    accesses, _ = accesses_of(named(*softmax()))
    assert [access.step for access in accesses["exp"]] == [2, 3, 4]
    assert first_is_write(accesses["exp"])
    assert not first_is_write(accesses["x"])


def test_a_result_of_an_iteration_lives_in_it():
    specs, names = chain("exp", "neg", "exp")
    found = lives([specs[0], loop(4, *specs[1:])], names)
    assert found["b1"] == (1, 3)


def test_what_a_loop_reads_from_outside_lives_through_it():
    specs, names = chain("exp", "neg", "exp", "neg")
    found = lives([specs[0], loop(4, *specs[1:3]), specs[3]], names)
    assert found["b0"] == (0, 3), "read again in every iteration"
    assert found["b2"] == (1, 4), "made in every iteration"


def test_what_is_carried_lives_through_the_loop():
    specs = [pointwise("exp", (64, 64), [FULL, FULL]) for _ in range(3)]
    found = lives([loop(2, *specs)], [("t", "a"), ("a", "b"), ("b", "t")])
    assert found["t"] == (0, 3)
    assert found["a"] == (0, 2)


def test_an_accumulator_lives_through_the_loop():
    add = pointwise("add", (64, 64), [FULL, FULL, FULL])
    fill, copy = (pointwise("identity", (64, 64), [FULL, FULL]) for _ in range(2))
    inner = loop(3, add)
    found = lives([loop(2, fill, inner, copy)], [("z", "acc"), ("acc", "x", "acc"), ("acc", "y")])
    assert found["acc"] == (0, 3)
    assert found["x"] == (0, 3), "read first in both loops"


def test_loops_are_numbered_from_outside():
    specs, names = chain("exp", "neg", "exp")
    nested = [loop(2, specs[0], loop(3, specs[1])), loop(2, specs[2])]
    assert accesses_of(named(nested, names))[1] == [(0, 2), (1, 2), (2, 3)]


def test_a_moving_buffer_lives_through_its_loop():
    specs = [
        pointwise("exp", (64, 64), [FULL, FULL], tiled=(ROWS,)),
        pointwise("exp", (64, 64), [FULL, FULL], tiled=(ROWS,)),
        pointwise("exp", (64, 64), [FULL, FULL], tiled=(ROWS,)),
    ]
    names = [("x", "a"), ("a", "b"), ("b", "y")]
    assert lives([loop(2, *specs)], names)["b"] == (0, 3)
    fixed = [pointwise("exp", (64, 64), [FULL, FULL], tiled=(ROWS,), fixed=True) for _ in range(3)]
    assert lives([loop(2, *fixed)], names)["b"] == (1, 3)
    other = [pointwise("exp", (64, 64), [FULL, FULL], tiled=(-1, -1)) for _ in range(3)]
    assert lives([loop(2, loop(2, *other))], names)["b"] == (1, 3)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), min_size=4, max_size=10),
    st.data(),
)
def test_nothing_needed_is_dead(events, data):
    """Unrolled, every value that is read was written and lives at every operation in between."""
    count = len(events)
    begin = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(begin + 1, count))
    inner = data.draw(st.integers(begin, stop - 1))
    inner_stop = data.draw(st.integers(inner + 1, stop))
    loops = ((begin, stop), (inner, inner_stop))
    once = [*range(begin, inner), *[*range(inner, inner_stop)] * 2, *range(inner_stop, stop)]
    order = [*range(begin), *once, *once, *range(stop, count)]
    found = {}
    for step, (name, is_write) in enumerate(events):
        access = SimpleNamespace(step=step, is_write=is_write, moves=False)
        found.setdefault(name, []).append(access)
    for name, accesses in found.items():
        start, end = live_range(accesses, loops)
        needed: list[int] | None = None
        for step in order:
            if needed is not None:
                needed.append(step)
            if events[step][0] != name:
                continue
            if events[step][1]:
                needed = [step]
            elif needed is not None:
                assert all(start <= s < end for s in needed), (name, needed, start, end)
