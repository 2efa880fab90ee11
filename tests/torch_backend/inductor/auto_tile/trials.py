"""Functions compiled with automatic tiling, and records of its search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

from spyre.torch_backend.inductor import auto_tile
from spyre.torch_backend.inductor.auto_tile import Outcome
from spyre.torch_backend.inductor.base.compat import inductor_config
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from spyre.torch_backend.inductor.hooks import pre_scheduling
from tests.torch_backend.inductor.compiled_code import collected

SMALL_LX = {"spyre.lx_fraction_kept": 0.98}
"""Scratchpads of 41 KiB: small tensors do not fit."""


def chain(a, b, c):
    return (a + b) * c


def softmax(x):
    return torch.softmax(x, -1)


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w)


def mlp(x, w, v):
    return F.gelu(x @ w) @ v


def inputs(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(size).half().to("spyre") for size in sizes]


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "chain": (chain, [(2048, 512)] * 3),
    "softmax": (softmax, [(2048, 1024)]),
    "rms_norm": (rms_norm, [(2048, 1024), (1024,)]),
    "mlp": (mlp, [(1024, 256), (256, 512), (512, 256)]),
}


def compiled(
    function: Callable[..., Any], *args: Any, **options: Any
) -> tuple[Any, list[InductorKernel]]:
    """Return the compiled function's result and kernels; ``options`` without ``spyre.``."""
    torch._dynamo.reset()
    given = {f"spyre.{name}": value for name, value in options.items()}
    with collected() as kernels:
        result = torch.compile(function, fullgraph=True, options={**SMALL_LX, **given})(*args)
    return result, kernels


@cache
def compiled_once(name: str, auto_tile: bool) -> tuple[Any, list[InductorKernel], list[Any]]:
    """Return the result of one of `FUNCTIONS`, its kernels, and the choices of automatic tiling."""
    function, sizes = FUNCTIONS[name]
    options = {"auto_tile": True} if auto_tile else {}
    with searched() as plans:
        return *compiled(function, *inputs(*sizes), **options), plans


@contextmanager
def searched() -> Iterator[list[Any]]:
    """(operations, choices) that automatic tiling makes in the block, per run of operations."""
    found: list[Any] = []
    original = auto_tile._planned

    def planned(run: Any, trials: Any) -> Any:
        plan = original(run, trials)
        found.append(plan)
        return plan

    with mock.patch.object(auto_tile, "_planned", planned):
        yield found


def in_trials(
    function: Callable[..., Any], args: list[torch.Tensor], look: Callable[..., Any]
) -> None:
    """Compile ``function``; where tiles are chosen, ``look(operations, results, outcome)`` is
    called with all operations, those others read, and what tries loops around all of them.
    """

    def groups(graph: Any, first: int = 0) -> list[Any]:
        (run,) = auto_tile.runs_of(graph)
        trials = auto_tile._Trials(graph, auto_tile.dim_classes(graph.operations))
        operations = [step.operation for step in run.steps]
        dims = {op.get_name(): auto_tile.dims_of(op, trials.classes) for op in operations}
        operations = auto_tile.hoisted(operations, dims)
        ((ends, extents),) = auto_tile.candidate_ranges(operations, dims)[:1]
        members = operations[slice(*ends)]

        def trial(levels: Any) -> Outcome:
            return trials.outcome(members, frozenset(run.results), levels)

        look(extents, trial)
        return []

    options = {**SMALL_LX, "spyre.auto_tile": True}
    torch._dynamo.reset()
    uncached = inductor_config.patch({"force_disable_caches": True})
    with mock.patch.object(pre_scheduling, "automatic_groups", groups), uncached:
        torch.compile(function, fullgraph=True, options=options)(*args)
