"""The search for the best loops, on made-up costs."""

from __future__ import annotations

from itertools import product
from math import inf

from hypothesis import given, strategies as st

from spyre.hw.cost import divisors
from spyre.torch_backend.inductor.auto_tile import RISES, Outcome, best_levels, best_of


def trial(cost, tried):
    def look(levels):
        tried.append(levels)
        found = cost({level.dim: level.count for level in levels})
        if isinstance(found, str):
            return Outcome(levels, inf, why=found)
        time_ns, spilled = found if isinstance(found, tuple) else (found, 0)
        return Outcome(levels, time_ns, spills=bool(spilled))

    return look


@given(
    bytes_of_tile=st.integers(1, 64), per_run=st.floats(0.1, 50), extents=st.sampled_from([64, 96])
)
def test_the_best_count_of_one_dim(bytes_of_tile, per_run, extents):
    """Spills cost until a tile fits, then every run costs."""

    def cost(counts):
        n = counts.get("a", 1)
        spilled = 1000 * (extents * bytes_of_tile / n > 256)
        return 100 + spilled + per_run * n, spilled

    tried = []
    found = best_of(best_levels({"a": extents}, trial(cost, tried)))
    best = min(cost({"a": n})[0] for n in (1, *divisors(extents)[1:]))
    assert found.time_ns <= 1.05 * best
    assert len(set(tried)) == len(tried)


def test_two_loops_where_one_does_not_do():
    def cost(counts):
        rows, columns = 64 // counts.get("a", 1), 64 // counts.get("b", 1)
        spilled = 10 * (rows > 8) + 10 * (columns > 8)
        return spilled + 0.01 * (64 // rows) * (64 // columns), spilled

    found = best_of(best_levels({"a": 64, "b": 64}, trial(cost, [])))
    best = min(cost({"a": a, "b": b})[0] for a, b in product((1, *divisors(64)[1:]), repeat=2))
    assert found.time_ns == best
    assert len(found.levels) == 2


def test_the_search_ends_when_costs_rise():
    tried = []
    best_levels({"a": 1 << 10}, trial(lambda counts: float(counts.get("a", 1)), tried))
    assert len(tried) == 2 + RISES


def test_dims_that_cannot_be_are_left_at_once():
    tried = []
    best_levels({"a": 64}, trial(lambda c: "SPY977 reads" if c else 1.0, tried))
    assert len(tried) == 2
    best_levels({"a": 64}, trial(lambda c: "SPY973 cuts" if c else 1.0, tried))
    assert len(tried) == 2 + 1 + len(divisors(64)[1:])


def test_what_cannot_be_whole_is_not_searched():
    assert len(best_levels({"a": 64}, trial(lambda c: "no pitches", []))) == 1
