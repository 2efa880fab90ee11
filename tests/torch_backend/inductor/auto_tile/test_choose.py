"""Automatic tiling: same bits, less time by the model, near the best of all divisors, and counts
of the model that are those of the executed bundle.
"""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch.nn import functional as F

from spyre.hw.cost import divisors
from spyre.hw.counters.program import operation_counts
from spyre.torch_backend.inductor.auto_tile import best_levels, best_of, launch_counts, outcome_of
from spyre.torch_backend.inductor.base.notes import TILING_FILE, observing
from spyre.torch_backend.inductor.bundles.op_spec_form import LoopSpec
from spyre.torch_backend.inductor.hints import declare_tensor_dim, name_tensor_dims, spyre_hint
from spyre.torch_backend.inductor.tiling.groups import TileLevel
from tests.torch_backend.inductor.auto_tile.trials import (
    FUNCTIONS,
    chain,
    compiled,
    compiled_once,
    in_trials,
    inputs,
    mlp,
    searched,
    softmax,
)
from tests.torch_backend.inductor.compiled_code import run_clean

KEPT_IN_LX = ("chain", "softmax", "rms_norm")


def loops(kernels):
    return [spec for kernel in kernels for spec in kernel.specs if isinstance(spec, LoopSpec)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits(name):
    found, kernels, _ = compiled_once(name, True)
    expected, untiled, _ = compiled_once(name, False)
    assert torch.equal(found.cpu(), expected.cpu())
    assert not loops(untiled)
    # tiles of rows read the weights again, which is faster with no division of this mlp
    assert bool(loops(kernels)) == (name in KEPT_IN_LX)


@pytest.mark.parametrize("name", KEPT_IN_LX)
def test_what_was_tried_is_what_is_compiled(name):
    _, kernels, plans = compiled_once(name, True)
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
        yield from ((TileLevel(n, name),) for n in divisors(extent)[1:])
    for outer, inner in permutations(extents, 2):
        for n in divisors(extents[outer])[1:]:
            for m in divisors(extents[inner])[1:]:
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


OTHERS = {
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (128,), w, b), [(96, 128), (128,), (128,)]),
    "columns": (lambda x: x.sum(0), [(512, 256)]),
    "transposed": (lambda x, y: x + y.T, [(128, 256), (256, 128)]),
    "k split": (lambda x, y: x @ y, [(2, 2048), (2048, 64)]),
    "batched": (lambda x, y: torch.bmm(x, y), [(4, 64, 128), (4, 128, 64)]),
    "odd": (lambda x: torch.exp(x) + 1, [(7, 100)]),
}


def executed(kernel, place):
    """Records of a launch of the kernel's bundle."""
    (launch,) = run_clean(kernel, place).launches
    return list(operation_counts(launch.linked.view))


def assert_same(kernel, place):
    """Counts of a kernel that is only linked are those of the executed bundle."""
    assert list(launch_counts(kernel.kernel).operations) == executed(kernel, place)


@pytest.mark.parametrize("auto_tile", [False, True], ids=["whole", "tiled"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_counts_of_tiled_functions(name, auto_tile, tmp_path):
    _, kernels, _ = compiled_once(name, auto_tile)
    for k, kernel in enumerate(kernels):
        assert_same(kernel, tmp_path / str(k))


@pytest.mark.parametrize("name", OTHERS)
def test_counts_of_other_functions(name, tmp_path):
    function, sizes = OTHERS[name]
    _, kernels = compiled(function, *inputs(*sizes))
    for k, kernel in enumerate(kernels):
        assert_same(kernel, tmp_path / str(k))


def test_counts_of_what_is_read_again():
    """Each iteration reads the weights again."""
    x, w, v = inputs(*FUNCTIONS["mlp"][1])
    declare_tensor_dim("rows", 1024)
    name_tensor_dims(x, ["rows", None])

    def tiled(x, w, v):
        with spyre_hint(slices={"rows": 4}):
            return mlp(x, w, v)

    _, (kernel,) = compiled(tiled, x, w, v)
    operations = launch_counts(kernel.kernel).operations
    again = [c for c in operations if c.product and c.runs > 1]
    assert again
    assert all(0 < c.hbm_reread_bytes < c.counters.rdmem_bytes for c in again)
    assert not any(c.hbm_reread_bytes for c in operations if c.runs == 1)
