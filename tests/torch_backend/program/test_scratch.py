"""Scratch memory is shared by results that are not needed at the same time, and by no others."""

from __future__ import annotations

from hypothesis import given, strategies as st

from spyre.torch_backend.program.builder import place_scratch

SIZES = st.sampled_from([128, 256, 384, 1024])


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=12),
    st.data(),
)
def test_living_results_do_not_overlap(uses, data):
    regions = sorted({region for step in uses for region in step})
    sizes = {region: data.draw(SIZES) for region in regions}
    offsets, total = place_scratch(uses, sizes)
    living = {region: [k for k, step in enumerate(uses) if region in step] for region in regions}
    for a in regions:
        assert 0 <= offsets[a] <= total - sizes[a]
        for b in regions:
            together = living[a][0] <= living[b][-1] and living[b][0] <= living[a][-1]
            if a < b and together:
                apart = offsets[a] + sizes[a] <= offsets[b] or offsets[b] + sizes[b] <= offsets[a]
                assert apart, f"{a} and {b} are in use together"


def test_memory_is_used_again():
    chain = [(k, k + 1) for k in range(10)]
    offsets, total = place_scratch(chain, dict.fromkeys(range(11), 128))
    assert total == 256
    assert offsets[0] == offsets[2]


def test_arguments_take_none():
    assert place_scratch([(0, 1)], {}) == ({}, 0)
