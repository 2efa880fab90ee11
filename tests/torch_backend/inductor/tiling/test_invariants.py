"""Invariants of the coarse-tiling document on the real backend: each is broken, or seen to hold."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch._inductor.exc import InductorError

from spyre.errors import SpyreError
from spyre.torch_backend.inductor import config
from spyre.torch_backend.inductor.bundles.op_spec_form import LoopSpec, operations_of
from spyre.torch_backend.inductor.hints import spyre_hint
from tests.torch_backend.inductor.compiled_code import compiled, named
from tests.torch_backend.inductor.tiling import toy_backend

SEEN = []


def chain(a, b, c):
    return ((a + b) * c) - b


def hinted(a, b, c):
    with spyre_hint(slices={"A": 2}):
        return chain(a, b, c)


def in_loop_and_behind(a, b, c):
    with spyre_hint(slices={"A": 2}), spyre_hint(slices={"B": 2}):
        y = a + b
    return y.sum(0)


def of_columns(operations):
    return [(list(operations), 4, [1])]


def torn(operations):
    return [([operations[0], operations[2]], 2)]


def keeping(operations):
    SEEN.append([op.get_name() for op in operations])
    return []


@pytest.fixture
def card():
    torch.manual_seed(0)
    return [named(torch.randn(64, 256).half(), "A", "B") for _ in range(3)]


def counts(specs):
    return [(int(s.count), counts(s.body)) for s in specs if isinstance(s, LoopSpec)]


def refusal(function, *given):
    """The error of compiling, which Inductor wraps."""
    with pytest.raises(InductorError) as caught:
        compiled(function, *given)
    error = caught.value.inner_exception
    assert isinstance(error, SpyreError)
    return error


def test_a_groups_function_overrides_hints(card):
    with config.patch(coarse_tiling_groups_fn=of_columns):
        found, (kernel,) = compiled(hinted, *card)
    assert counts(kernel.specs) == [(4, [])]
    assert torch.equal(found.cpu(), chain(*card).cpu())


def test_no_hints_no_loops(card):
    _, (kernel,) = compiled(chain, *card)
    assert counts(kernel.specs) == []


def test_the_flag_turns_tiling_off(card):
    with config.patch(coarse_tiling=False, coarse_tiling_groups_fn=torn):
        _, (kernel,) = compiled(hinted, *card)
    assert counts(kernel.specs) == []


def test_groups_that_are_not_contiguous(card):
    with config.patch(coarse_tiling_groups_fn=torn):
        error = refusal(chain, *card)
    assert isinstance(error, RuntimeError)
    assert error.code == "SPY971"


def test_groups_see_operations_with_layouts_restickified():
    """Tiling comes after layouts: its pass sees the copy that one operand needs."""
    a, b = (torch.randn(n).half().to("spyre") for n in ((64, 128), (128, 64)))
    SEEN.clear()
    with config.patch(coarse_tiling_groups_fn=keeping):
        compiled(lambda a, b: a + b.t(), a, b)
    assert [len(names) for names in SEEN] == [2]


def test_work_is_divided_within_a_tile(card):
    with config.patch(sencores=32):
        _, (kernel,) = compiled(hinted, *card)
    for spec in operations_of(kernel.specs):
        extents = [int(extent) for extent, _ in spec.iteration_space.values()]
        cores = [parts for _, parts in spec.iteration_space.values()]
        assert sorted(extents) == [32, 256]
        assert max(cores) == 32


def test_tiled_symbols_stand_in_loops_and_nowhere_else(card):
    _, (kernel,) = compiled(in_loop_and_behind, *card)
    (outer,) = (s for s in kernel.specs if isinstance(s, LoopSpec))
    inside = list(operations_of([outer]))
    outside = [s for s in kernel.specs if not isinstance(s, LoopSpec)]
    assert inside
    assert outside
    for spec in inside:
        rows, columns = spec.tiled_symbols
        assert spec.iteration_space[rows][0] == 32
        assert spec.iteration_space[columns][0] == 128
    assert not any(spec.tiled_symbols for spec in outside)


def test_arguments_in_loops_are_counted(card):
    _, (kernel,) = compiled(in_loop_and_behind, *card)
    indices = {arg.arg_index for s in operations_of(kernel.specs) for arg in s.args}
    assert set(range(len(kernel.memory.arguments))) == indices - {-1}


def test_ranges_are_frozen(abc):
    seen = []
    toy_backend.compiled(chain, *abc, tile=lambda operations, names: seen.extend(operations))
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen[0].data.ranges = [1]
