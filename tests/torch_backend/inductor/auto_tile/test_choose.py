"""Automatic tiling: same bits, less time by the model, near the best of all divisors."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from spyre.torch_backend.inductor.auto_tile import best_levels, best_of, counts_of, outcome_of
from spyre.torch_backend.inductor.base.notes import TILING_FILE, observing
from spyre.torch_backend.inductor.bundles.op_spec_form import LoopSpec
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint
from spyre.torch_backend.inductor.tiling.groups import TileLevel
from tests.torch_backend.inductor.auto_tile.trials import (
    FUNCTIONS,
    chain,
    compiled,
    in_trials,
    inputs,
    searched,
    softmax,
)

KEPT_IN_LX = ("chain", "softmax", "rms_norm")


def loops(kernels):
    return [spec for kernel in kernels for spec in kernel.specs if isinstance(spec, LoopSpec)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits(name):
    function, sizes = FUNCTIONS[name]
    args = inputs(*sizes)
    found, kernels = compiled(function, *args, auto_tile=True)
    expected, untiled = compiled(function, *args)
    assert torch.equal(found.cpu(), expected.cpu())
    assert not loops(untiled)
    assert bool(loops(kernels))


@pytest.mark.parametrize("name", KEPT_IN_LX)
def test_what_was_tried_is_what_is_compiled(name):
    function, sizes = FUNCTIONS[name]
    with searched() as plans:
        _, kernels = compiled(function, *inputs(*sizes), auto_tile=True)
    ((choice,),) = (choices for _, choices in plans)
    (kernel,) = kernels
    best = best_of(choice.outcomes)
    assert choice.levels == best.levels
    cost = outcome_of(kernel.kernel)
    if name != "rms_norm":  # whose weight is converted before the loop
        assert (cost.time_ns, cost.hbm_bytes) == (best.time_ns, best.hbm_bytes)
        assert not cost.spills
    assert cost.lx_bytes == best.lx_bytes <= 0.02 * (2 << 20)
    assert choice.outcomes[0].spills


def all_levels(extents):
    """One loop on any dim and two on any pair, with all divisors."""
    for name, extent in extents.items():
        yield from ((TileLevel(n, name),) for n in counts_of(extent))
    for outer, inner in permutations(extents, 2):
        for n in counts_of(extents[outer]):
            for m in counts_of(extents[inner]):
                yield (TileLevel(n, outer), TileLevel(m, inner))


SMALL = {
    "chain": [(512, 256)] * 3,
    "softmax": [(512, 512)],
    "rms_norm": [(512, 512), (512,)],
    "mlp": [(128, 64), (64, 256), (256, 64)],
}


@pytest.mark.parametrize("name", SMALL)
def test_near_the_best_of_all_divisors(name):
    """Within 5 % of the exhaustive search over one and two loops, in few trials."""
    results = []

    def look(extents, trial):
        found = best_levels(extents, trial)
        exhaustive = [trial(levels) for levels in all_levels(extents)]
        results.append((found, [found[0], *exhaustive]))

    in_trials(FUNCTIONS[name][0], inputs(*SMALL[name]), look)
    ((found, exhaustive),) = results
    assert best_of(found).time_ns <= 1.05 * best_of(exhaustive).time_ns
    assert len(exhaustive) >= 8


def test_what_fits_stays_whole():
    (x,) = inputs((64, 128))
    with searched() as plans:
        _, kernels = compiled(softmax, x, auto_tile=True)
    assert not loops(kernels)
    ((),) = (choices for _, choices in plans)


def test_hints_come_first():
    a, b, c = inputs(*[(2048, 512)] * 3)
    declare_tensor_dim("rows", 2048)
    name_tensor_dims(a, ["rows", None])

    def hinted(a, b, c):
        with spyre_hint(slices={"rows": 2}):
            y = chain(a, b, c)
        return chain(y.T.contiguous(), b.T, c.T)

    found, kernels = compiled(hinted, a, b, c, auto_tile=True)
    counts = [int(loop.count) for loop in loops(kernels)]
    assert counts[0] == 2
    assert len(counts) == 2
    expected, _ = compiled(hinted, a, b, c, coarse_tiling=False)
    assert torch.equal(found.cpu(), expected.cpu())


def test_the_report_is_a_note_of_the_kernel():
    args = inputs(*FUNCTIONS["chain"][1])
    with observing():
        _, (kernel,) = compiled(chain, *args, auto_tile=True)
    first, *rows = kernel.notes[TILING_FILE].splitlines()
    assert first.startswith("buf0, buf1: dim")
    assert "of the modelled time" in first
    assert any(row.startswith("    no tiles: ") for row in rows)
