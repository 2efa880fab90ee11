"""The passes of work division together: span reduction, matmul cost model, distribution.

Order and rules: hardware reference §4.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import sympy

from spyre.errors import LaunchError
from spyre.hw.spec import CORES
from spyre.torch_backend.inductor.division.core_numbering import order_of
from spyre.torch_backend.inductor.division.default import distribute
from spyre.torch_backend.inductor.division.hints import checked_splits
from spyre.torch_backend.inductor.division.iteration import Iteration, read_iteration
from spyre.torch_backend.inductor.division.matmul_cost import PLANNERS, divide_matmul
from spyre.torch_backend.inductor.division.span import check_spans, reduce_spans, shown
from spyre.torch_backend.inductor.op_spec import OpSpec

DIVISION_PASSES = SPAN, MATMUL, DISTRIBUTION = (
    "span_reduction",
    "cost_model_matmul_division",
    "work_distribution",
)
"""Names of the passes, in their order."""


@dataclass(frozen=True, slots=True)
class Division:
    """How cores share an operation.

    ``splits``: per dim, in iteration order, how many cores share it (1: not divided).
    ``core_order``: dims in the order core numbers run through them, the fastest first.
    ``why``: a line per pass, what it did and on what grounds. ``before``: by name of an earlier
    pass, the dims that were divided after it.
    """

    splits: Mapping[sympy.Symbol, int]
    core_order: tuple[sympy.Symbol, ...]
    why: str
    before: Mapping[str, Mapping[sympy.Symbol, int]] = field(default_factory=dict)

    @property
    def cores(self) -> int:
        """Cores that are used."""
        return prod(self.splits.values())

    def after(self, name: str) -> Division:
        """The division as the pass ``name`` of `DIVISION_PASSES` left it."""
        if name == DIVISION_PASSES[-1]:
            return self
        found = self.before.get(name, {})
        return replace(self, splits={symbol: found.get(symbol, 1) for symbol in self.splits})


_Before = Mapping[str, Mapping[sympy.Symbol, int]]


def divide_op(
    spec: OpSpec,
    cores: int = CORES,
    planner: str = "june",
    hints: Mapping[sympy.Symbol, int] | None = None,
    *,
    committed: Mapping[sympy.Symbol, int] | None = None,
    k_fast: bool = True,
    overflow_raises: bool = True,
) -> Division:
    """Divide ``spec`` over at most ``cores`` cores (1 to 32).

    ``hints``: the division as the user wants it, dims not named undivided. ``committed``: splits
    that must not become smaller, as pass 1 makes them. ``planner``: a name of `PLANNERS`.
    ``k_fast``: see `core_order`. ``overflow_raises``: False logs what no core can reach, as the
    June compiler does.

    LaunchError SPY982 for hints, cores or planners that cannot be; UnsupportedError SPY980 for
    slices of over 256 MiB, SPY981 for several divided reductions, SPY983 for unknown sizes.
    """
    _check_request(cores, planner)
    iteration = read_iteration(spec)
    before: _Before = {}
    if hints:
        splits = checked_splits(iteration, hints, cores, "a work division hint")
        lines = [f"hints: {shown(splits)}"]
    else:
        splits, lines, before = _planned(iteration, cores, planner, committed or {})
    lines += check_spans(iteration, splits, raises=overflow_raises)
    splits = {symbol: splits[symbol] for symbol in iteration.symbols}
    order = order_of(iteration, splits, k_fast=k_fast)
    return Division(splits, order, "\n".join(lines), before)


def with_division(spec: OpSpec, division: Division) -> OpSpec:
    """``spec`` with the splits of ``division`` in its iteration space."""
    space = {s: (size, division.splits[s]) for s, (size, _) in spec.iteration_space.items()}
    return replace(spec, iteration_space=space)


def _planned(
    iteration: Iteration, cores: int, planner: str, committed: Mapping[sympy.Symbol, int]
) -> tuple[dict[sympy.Symbol, int], list[str], _Before]:
    """Splits of all dims by the three passes, a line for each, and the splits after the first."""
    spans = reduce_spans(
        iteration, cores, checked_splits(iteration, committed, cores, "an earlier pass")
    )
    default = distribute(iteration, cores, spans)
    before: _Before = {SPAN: spans, MATMUL: spans}
    lines = [f"{SPAN}: {_span_line(spans)}"]
    if spans:
        lines.append(f"matmul planner {planner}: not asked, splits are committed")
    else:
        choice = divide_matmul(iteration, cores, planner, default)
        lines.append(f"matmul planner {planner}: {choice.why}")
        if choice.splits is not None:
            lines.append(f"{DISTRIBUTION}: nothing left to divide")
            return choice.splits, lines, {**before, MATMUL: choice.splits}
    lines.append(f"{DISTRIBUTION}: {_distribution_line(iteration, default)}")
    return default, lines, before


def _span_line(spans: Mapping[sympy.Symbol, int]) -> str:
    if not spans:
        return "nothing to do, a core reaches every tensor"
    return f"{shown(spans)}, so that a core reaches its slices"


def _distribution_line(iteration: Iteration, splits: Mapping[sympy.Symbol, int]) -> str:
    sizes = ", ".join(f"{dim.symbol}={dim.units}" for dim in iteration.dims)
    kept = [f"{dim.symbol} whole: {dim.kept_whole}" for dim in iteration.dims if dim.kept_whole]
    return "; ".join([f"{shown(splits)} of {sizes}", *kept])


def _check_request(cores: int, planner: str) -> None:
    if not 1 <= cores <= CORES:
        raise LaunchError(
            "SPY982",
            "an operation cannot be divided over these cores",
            expected=f"1 to {CORES}",
            found=str(cores),
        )
    if planner not in PLANNERS:
        raise LaunchError(
            "SPY982",
            "there is no such planner of matmul divisions",
            expected=", ".join(PLANNERS),
            found=planner,
        )
