"""What can be divided of an operation: its dims in units that a core takes whole, and the ways to
share cores among them.

Which dims lie along sticks, which are reduced and which have to stay whole follows from the
coordinates of the tensors (hardware reference §4.1, steps 1 and 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, isqrt, lcm

import numpy as np
import numpy.typing as npt
import sympy

from spyre.errors import UnsupportedError
from spyre.hw.ops.coverage import SPEC_NAMES, Category
from spyre.hw.ops.table import Family, find_op
from spyre.torch_backend.inductor.bundles.op_spec import OpSpec, TensorArg

MODULO_NAMES = ("Mod", "PythonMod")
"""Remainders, as sympy and Inductor call them."""


@dataclass(frozen=True, slots=True)
class DivisibleDim:
    """One dim of an operation's iteration.

    ``elements``: its extent. ``unit``: elements a core takes as a whole, those of a stick along
    sticks, else 1. ``is_output``: the result has it (else it is reduced). ``along_sticks``: some
    tensor's sticks run along it. ``kept_whole``: why it cannot be divided, "" if it can.
    """

    symbol: sympy.Symbol
    elements: int
    unit: int
    is_output: bool
    along_sticks: bool
    kept_whole: str = ""

    @property
    def units(self) -> int:
        """The stick-adjusted size: what splits have to divide."""
        return -(-self.elements // self.unit)

    def splits(self, cores: int) -> list[int]:
        """The ways to divide the dim among at most ``cores``, ascending."""
        if self.kept_whole:
            return [1]
        return [n for n in divisors(self.units) if n <= cores]

    def elements_per_core(self, splits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Elements of the first slice for each of ``splits``."""
        return np.minimum(self.units // splits * self.unit, self.elements)


@dataclass(frozen=True, slots=True)
class Iteration:
    """The dims of an operation, in iteration order, and its tensors, inputs and outputs alike."""

    name: str
    is_matmul: bool
    dims: tuple[DivisibleDim, ...]
    tensors: tuple[TensorArg, ...]

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """One per dim."""
        return tuple(dim.symbol for dim in self.dims)

    @property
    def reduced(self) -> frozenset[sympy.Symbol]:
        """Symbols the result does not have."""
        return frozenset(dim.symbol for dim in self.dims if not dim.is_output)


def read_iteration(spec: OpSpec) -> Iteration:
    """The dims of ``spec``; the splits it says are not looked at.

    UnsupportedError SPY983 where an extent is no number.
    """
    known, listed = find_op(spec.op), SPEC_NAMES.get(spec.op)
    family = known.family if known is not None else None
    is_matmul = listed is not None and listed.category is Category.MATMUL
    elements = {symbol: _extent(symbol, size) for symbol, (size, _) in spec.iteration_space.items()}
    units = {symbol: _units(symbol, spec.args) for symbol in elements}
    outputs = _output_symbols(spec)
    dims = []
    for symbol, extent in elements.items():
        unit = lcm(*units[symbol]) or extent
        dim = DivisibleDim(symbol, extent, unit, symbol in outputs, bool(units[symbol]))
        dims.append(replace(dim, kept_whole=_reason_to_keep(dim, spec, family)))
    return Iteration(spec.op, is_matmul, tuple(dims), tuple(spec.args))


def symbols_of(coordinates: Iterable[sympy.Expr]) -> set[sympy.Symbol]:
    """All symbols in ``coordinates``."""
    return {symbol for expr in coordinates for symbol in sympy.sympify(expr).free_symbols}


def is_indirect(tensor: TensorArg, symbols: Iterable[sympy.Symbol]) -> bool:
    """True if some coordinate comes from an index tensor: it holds a symbol that is no dim."""
    return not symbols_of(tensor.device_coordinates) <= set(symbols)


def _extent(symbol: sympy.Symbol, size: sympy.Expr) -> int:
    expr = sympy.sympify(size)
    if not expr.is_Integer:
        raise UnsupportedError(
            "SPY983",
            f"the extent of {symbol} is not known",
            expected="a number",
            found=str(size),
            hint="divide with the size the program is compiled for",
        )
    return int(expr)


def _units(symbol: sympy.Symbol, tensors: Iterable[TensorArg]) -> list[int]:
    """Per tensor with sticks along ``symbol``: elements until the next stick begins.

    0 where that is not the same everywhere.
    """
    found = []
    for tensor in tensors:
        lane = sympy.sympify(tensor.device_coordinates[-1])
        if symbol in lane.free_symbols:
            found.append(_unit(symbol, _position(lane), int(tensor.device_size[-1])))
    return found


def _position(lane: sympy.Expr) -> sympy.Expr:
    """What a stick coordinate is the remainder of."""
    name = type(lane).__name__
    whole_steps = name == "ModularIndexing" and lane.args[1] == 1
    return lane.args[0] if name in MODULO_NAMES or whole_steps else lane


def _unit(symbol: sympy.Symbol, position: sympy.Expr, stick_elements: int) -> int:
    terms = position.expand().as_coefficients_dict()
    step = terms.pop(symbol, sympy.Integer(0))
    if not step.is_Integer or any(symbol in term.free_symbols for term in terms):
        return 0
    return stick_elements // gcd(int(step), stick_elements)


def _output_symbols(spec: OpSpec) -> set[sympy.Symbol]:
    """Dims of the result. Only reductions have others: those that no device dim of an output
    follows, its stick not counted.
    """
    if not spec.is_reduction:
        return set(spec.iteration_space)
    outputs = [arg for arg in spec.args if not arg.is_input]
    return {s for arg in outputs for s in symbols_of(arg.device_coordinates[:-1])}


def _reason_to_keep(dim: DivisibleDim, spec: OpSpec, family: Family | None) -> str:
    padded = dim.along_sticks and dim.elements % dim.unit != 0
    if family is Family.TOPK:
        return "topk runs on one core"
    if family is Family.RESTICKIFY and padded:
        return "a restickify does not divide dims it pads"
    if family is Family.REDUCTION and padded and not _in_outputs(dim.symbol, spec):
        return "its padding is masked by coordinates"
    if _indexes_a_shared_table(dim.symbol, spec):
        return "all cores read one table from one start"
    return ""


def _in_outputs(symbol: sympy.Symbol, spec: OpSpec) -> bool:
    outputs = [arg for arg in spec.args if not arg.is_input]
    return any(symbol in symbols_of(arg.device_coordinates) for arg in outputs)


def _indexes_a_shared_table(symbol: sympy.Symbol, spec: OpSpec) -> bool:
    """SDSC reference §6.4: a table read (or written) through an index is not divided."""
    dims = spec.iteration_space.keys()
    tables = [arg for arg in spec.args if is_indirect(arg, dims)]
    return any(symbol in symbols_of(arg.device_coordinates) for arg in tables)


Splits = npt.NDArray[np.int64]
"""One row per way to divide, one column per dim."""


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, ascending."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    large = [number // n for n in reversed(small) if n * n != number]
    return (*small, *large)


def core_split(units: int, cores: int) -> int:
    """The largest divisor of ``units`` that is at most ``cores`` (≥ 1)."""
    return max(n for n in range(1, min(units, cores) + 1) if units % n == 0)


def splits_within(candidates: Sequence[Sequence[int]], cores: int) -> Splits:
    """Every choice of one candidate per dim whose product is at most ``cores``.

    Rows are in the order of nested loops, the first dim outermost. Prefixes that use too many
    cores are dropped on the way, so the table stays small for any number of dims.
    """
    rows = np.ones((1, 0), np.int64)
    used = np.ones(1, np.int64)
    for options in candidates:
        column = np.asarray(options, np.int64)
        products = used[:, None] * column[None, :]
        kept, chosen = np.nonzero(products <= cores)
        rows = np.column_stack([rows[kept], column[chosen]])
        used = products[kept, chosen]
    return rows
