"""Tables of docs/cost-model.md: constants with their sources, errors against measured kernels."""

from __future__ import annotations

from collections.abc import Iterator

from spyre.hw.cost import candidates_of, cores_text, product_counts, ranked
from spyre.hw.cost.estimate import Estimates, estimate_rows
from spyre.hw.cost.machine import Value, default_machine
from spyre.hw.cost.rows import measured_rows
from spyre.hw.counters import ProductShape
from tools import planner

Rows = Iterator[tuple[object, ...]]
CONSTANTS_HEAD = ("constant", "value", "unit", "kind", "rows", "error", "source")
SPREADS_HEAD = ("class", "rows", "error bar")
ERRORS_HEAD = ("kernels", "rows", "median", "nine of ten within", "bias")
CHOICES_HEAD = ("problem", "rows", "cost of the choice", "pairs in order", "chosen", "")
DIVISIONS_HEAD = (
    *("product", "planner's division", "modelled us", "measured us", "our division"),
    *("modelled us", "measured us", "gain"),
)


def constants() -> Rows:
    """Yield every constant of the shipped machine except error bars."""
    for name, constant in default_machine().constants.items():
        if not name.startswith("spread."):
            error = f"{constant.spread:.1%}" if constant.spread else ""
            known = (_value(constant.value), constant.unit, constant.kind, constant.rows or "")
            yield f"`{name}`", *known, error, constant.source


def _value(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{x:g}: {y:g}" for x, y in value)
    return str(value) if isinstance(value, int) else f"{value:g}"


def spreads() -> Rows:
    """Yield the error bar of every class."""
    machine = default_machine()
    for kind, spread in machine.spread.items():
        rows = machine.constants[f"spread.{kind}"].rows
        yield kind.replace("_", " "), rows, f"±{spread:.0%}"


def estimates() -> Estimates:
    """Return estimates of the shipped measurements."""
    return estimate_rows(measured_rows())


def errors() -> Rows:
    """Yield errors per group of measured kernels."""
    for each in estimates().errors:
        numbers = (f"{each.median:.1%}", f"{each.tenth:.1%}", f"{each.bias:+.1%}")
        yield each.name, each.rows, *numbers


def choices() -> Rows:
    """Yield the problems with at least three measured divisions."""
    for each in estimates().choices:
        if each.rows > 2:
            numbers = (f"{each.cost:.1%}", f"{each.ordered} of {each.pairs}")
            close = "too close to call" if each.is_close else ""
            yield each.title, each.rows, *numbers, each.chosen, close


def divisions() -> Rows:
    """Yield products of two models with torch-spyre's and this compiler's divisions."""
    for name, shape in planner.products().items():
        theirs = planner.planner_division(shape)
        candidates = (theirs, *candidates_of(shape, planner.CORES))
        counts = product_counts(shape, "SEN169_FP16")
        found = ranked(counts, candidates, default_machine())
        # the first candidate is one of the others too, unless it uses few cores
        best = candidates[found.order[0]]
        gain = found.times_ns[0] / found.best_ns - 1.0
        times = (f"{ns / 1e3:,.4g}" for ns in (found.times_ns[0], found.best_ns))
        one, other = (_measured(shape, cores) for cores in (theirs, best))
        yield (name, cores_text(theirs), next(times), one, cores_text(best), next(times), other,
               f"{gain:.0%}" if gain > 0.005 else "")  # fmt: skip


def _measured(shape: ProductShape, cores: tuple[int, ...]) -> str:
    """Return the measured time of a division at LX fraction 0.2, in us, or ""."""
    sizes = {"B": shape.batch, "M": shape.m, "N": shape.n, "K": shape.k}
    for row in measured_rows():
        is_same = row.sizes is not None and {"B": 1, **row.sizes} == sizes
        split = tuple((row.split or {}).get(dim, 1) for dim in "bmnk")
        if is_same and row.split and split == cores and row.lx_fraction == 0.2:
            return f"{row.us:,.4g}"
    return ""
