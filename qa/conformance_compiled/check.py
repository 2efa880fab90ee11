"""Compiles a real function in many settings, compares results, checks and reruns the bundles.

Bits may depend on a setting only where K of a matmul is divided into other parts: then partial sums
are added in another order before they are rounded to DL16, and results may differ by the case's
tolerance.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qa.conformance_compiled.kernel_runs import KeptBundles, KernelRun, recorded
from qa.conformance_compiled.outcome import (
    DIFFERENT,
    FORMS,
    ROUNDED,
    SAME,
    SETTINGS,
    Outcome,
    Setting,
)
from qa.conformance_compiled.real_functions import RealFunction
from spyre.mlir.builder.bundles import MAX_SEGMENTS
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
from spyre.torch_backend.inductor.bundles.op_spec_form import operations_of

Sums = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Reference:
    """Results of the first setting, which the other settings are compared with."""

    results: tuple[torch.Tensor, ...]
    sums: Sums


class FunctionChecks:
    """Checks functions that share one compiled form but have different inputs.

    ``place``: returns a new directory for a bundle at every call.
    """

    def __init__(self, functions: Sequence[RealFunction], place: Callable[[], Path]) -> None:
        self.functions = functions
        self._kept = KeptBundles(place)
        self._references: dict[str, Reference] = {}

    def outcomes(self, settings: Sequence[Setting] = SETTINGS) -> Iterator[Outcome]:
        """Yield the outcome of every function in every setting, compared with the first setting."""
        for setting in settings:
            torch._dynamo.reset()
            options = {
                "spyre.sencores": setting.cores,
                "spyre.bundle_symbolic_args": FORMS[setting.form],
            }
            call = torch.compile(
                self.functions[0].call, dynamic=False, fullgraph=True, options=options
            )
            for function in self.functions:
                outcome = Outcome(function.name, setting.form, setting.cores)
                try:
                    yield self._outcome(outcome, function, call)
                except Exception:
                    yield replace(outcome, bits=DIFFERENT, faults=(traceback.format_exc(),))

    def _outcome(self, outcome: Outcome, function: RealFunction, call: Any) -> Outcome:
        given = function.on_card()
        torch.spyre.reset_fallbacks()
        with recorded() as launches:
            found = _tensors(call(*given))
        results = tuple(map(_on_host, found))
        kernels = list({id(run.kernel): run.kernel for run in launches}.values())
        sums = tuple(s for kernel in kernels for s in _sums(kernel))
        reference = self._references.setdefault(function.name, Reference(results, sums))
        moved = _distance(function, results, reference.results)
        outcome = replace(
            outcome,
            worst=_distance(function, results, function.expected),
            bits=_compared(results, reference.results, sums == reference.sums, moved),
            moved=moved,
            kernels=len(kernels),
            arguments=max((len(k.memory.arguments) for k in kernels), default=0),
            operations=sum(1 for k in kernels for _ in operations_of(k.specs)),
            sums=sums,
            fallbacks=tuple(torch.spyre.fallbacks()),
        )
        faults = list(self._faults(outcome, launches))
        if not launches and not all(any(_is_view_of(t, x) for x in given) for t in found):
            faults.append("no kernel")
        if outcome.fallbacks:
            faults.append(f"calls to the CPU: {', '.join(outcome.fallbacks)}")
        return replace(outcome, faults=tuple(faults))

    def _faults(self, outcome: Outcome, launches: Sequence[KernelRun]) -> Iterator[str]:
        if not outcome.worst <= 1:
            yield f"{outcome.worst:.3f} of what is allowed"
        if outcome.bits == DIFFERENT:
            yield f"{outcome.moved:.3f} of what is allowed from the results with {SETTINGS[0]}"
        is_symbolic = FORMS[outcome.form]
        for launched in launches:
            kept = self._kept.run(launched, symbolic=is_symbolic)
            yield from kept.findings
            if is_symbolic:
                continue
            memory = launched.kernel.memory
            if len(memory.arguments) + bool(memory.pool_bytes) > MAX_SEGMENTS:
                yield f"{launched.kernel.name} has {len(memory.arguments)} arguments"
            if kept.outputs != self._kept.run(launched, symbolic=True).outputs:
                yield f"{launched.kernel.name}: baked addresses give other bits than symbolic ones"


def _sums(kernel: InductorKernel) -> Iterator[tuple[int, int]]:
    for spec in operations_of(kernel.specs):
        if spec.op == "batchmatmul":
            kept = set().union(*(c.free_symbols for c in spec.args[-1].device_coordinates))
            for symbol, (extent, parts) in spec.iteration_space.items():
                if symbol not in kept:
                    yield int(extent), int(parts)


def _tensors(found: Any) -> list[torch.Tensor]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def _is_view_of(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if the two share memory, so that no kernel was needed."""
    return tensor.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.device.type == "spyre"
    # Reading bfloat16 from the card truncates.
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).cpu().contiguous()


def _distance(
    function: RealFunction, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> float:
    """Return the largest difference divided by the case's tolerance; inf where that is zero."""
    assert len(found) == len(function.expected)
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        if not other.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(one.to(other.dtype), other) else float("inf"))
        elif one.numel():
            worst = max(worst, float(_errors(function, one.double(), other.double()).max()))
    return worst


def _errors(function: RealFunction, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return each element's difference divided by its tolerance; 0 for a NaN in both, else inf."""
    limit = function.tolerance["atol"] + function.tolerance["rtol"] * other.abs()
    alike = (one == other) | (one.isnan() & other.isnan())
    return torch.where(alike, 0.0, (one - other).abs() / limit).nan_to_num(float("inf"))


def _compared(
    found: Sequence[torch.Tensor],
    known: Sequence[torch.Tensor],
    has_same_sums: bool,
    moved: float,
) -> str:
    pairs = zip(found, known, strict=True)
    if all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs):
        return SAME
    return ROUNDED if not has_same_sums and moved <= 1 else DIFFERENT
