"""Work division of a kernel's operations: `divide_op` for each, with what compiled kernels add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spyre.torch_backend.inductor.division.plan import Division, divide_op, with_division
from spyre.torch_backend.inductor.op_spec import MATMUL, OpSpec
from spyre.torch_backend.inductor.settings import Settings


def divisions_of(specs: Sequence[OpSpec], chosen: Settings) -> list[Division]:
    """How the cores share every operation; of reduced dims only K of a matmul is divided, whose
    partial sums are added up.
    """
    return [_division(spec, chosen) for spec in specs]


def divided(specs: Sequence[OpSpec], divisions: Sequence[Division], after: str) -> list[OpSpec]:
    """``specs`` as they are after the pass ``after`` of work division."""
    pairs = zip(specs, divisions, strict=True)
    return [with_division(spec, division.after(after)) for spec, division in pairs]


def numbered(spec: OpSpec, chosen: Settings) -> OpSpec:
    """The operation, which says so where core numbers do not run along its K first."""
    if spec.op != MATMUL or chosen.core_id_k_fast_emission:
        return spec
    return replace(spec, op_info={**spec.op_info, "k_fast": False})


def _division(spec: OpSpec, chosen: Settings) -> Division:
    division = divide_op(
        spec, chosen.sencores, chosen.work_division, k_fast=chosen.core_id_k_fast_emission
    )
    if spec.op == MATMUL:
        return division
    kept = set().union(*(c.free_symbols for c in spec.args[-1].device_coordinates))
    splits = {s: n if s in kept else 1 for s, n in division.splits.items()}
    whole = [str(s) for s, n in division.splits.items() if n > 1 and s not in kept]
    why = division.why
    if whole:
        why += f"\nreduced dims stay whole: {', '.join(whole)}"
    return replace(division, splits=splits, why=why)
