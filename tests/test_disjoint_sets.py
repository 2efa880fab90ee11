"""The union-find against sets that are merged one by one."""

from __future__ import annotations

from hypothesis import given, strategies as st

from spyre.disjoint_sets import DisjointSets

PAIRS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=20)


@given(PAIRS)
def test_joined_nodes_are_in_one_set(pairs):
    found, sets = DisjointSets[int](), [{k} for k in range(13)]
    for one, other in pairs:
        found.join(one, other)
        merged = next(s for s in sets if one in s) | next(s for s in sets if other in s)
        sets = [s for s in sets if not s & merged] + [merged]
    for one in range(13):
        for other in range(13):
            together = any({one, other} <= s for s in sets)
            assert (found.find(one) == found.find(other)) == together
    assert sorted(map(sorted, found.sets())) == sorted(map(sorted, sets))


def test_the_first_node_represents_the_set():
    found = DisjointSets[str]()
    found.join("a", "b")
    found.join("c", "b")
    assert {found.find(node) for node in "abc"} == {"c"}
    assert found.find("alone") == "alone"
    assert list(found.sets()) == [("a", "b", "c"), ("alone",)]
