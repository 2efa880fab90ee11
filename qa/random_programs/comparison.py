"""Runs a program in eager and compiled modes and compares its results.

Eager mode is compared with the CPU statement by statement, each on the card's current values, so
that roundings do not add up and the wrong statement is known. Compiled code is compared with eager
mode bit for bit, except for sums. The lanes of the terms in their sticks decide the order in which
the card adds them. A compiled function reads a view in place, whose first element may be within a
stick or whose sticks may be along another dim, so it adds in another order than eager mode, which
copies the view first. Equal orders would need that copy in compiled code too, which compilation is
there to avoid; so sums may differ by roundings of float32.

Some of torch's CPU functions are less exact than the card's: its float32 gelu of -3.6 has a
relative error of 3e-4. A differing statement is therefore repeated in float64 before it counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from qa.random_programs.programs import HALF, Program, Statement, execute, input_tensors, ordered
from spyre.errors import SpyreError, UnsupportedError

EPSILON = {True: 2.0**-9, False: 2.0**-20}
"""Relative error of a rounding, by whether floats have 16 bits (DL16 has 9 bits of mantissa)."""
REFUSALS = ("SPY901",)
"""Codes of values without a device format, such as a partial sum of int64 may be."""
MODES = ("eager", "compiled", "dynamic")


@dataclass(frozen=True)
class Failure:
    """A failed program. ``kind``: different, refused (an unsupported feature), crashed, or torch's
    (a failure before any device is used).
    """

    mode: str
    kind: str
    text: str
    statement: Statement | None = None

    @property
    def signature(self) -> tuple[str, str, str]:
        """Mode, kind and first word of the text, which shrinking a program must preserve."""
        return self.mode, self.kind, self.text.split(maxsplit=1)[0]

    def __str__(self) -> str:
        at = f" at `{self.statement}`" if self.statement else ""
        return f"{self.mode}: {self.kind}{at}: {self.text}"


def first_failure(program: Program) -> Failure | None:
    """Return the first failure of a program over all modes, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modes = ("compiled", "dynamic")
        failures = (compiled_failure(program, mode) for mode in modes)
        return eager_failure(program) or next(filter(None, failures), None)


def raised(mode: str, error: Exception, statement: Statement | None = None) -> Failure:
    """Return the failure that an exception stands for: refused or crashed."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, SpyreError):
        cause = cause.__cause__ or cause.__context__
    shown = cause or error
    code = getattr(shown, "code", "")
    is_refusal = isinstance(cause, UnsupportedError) or code in REFUSALS
    kind = "refused" if is_refusal else "crashed"
    lines = str(shown).strip().splitlines() or [""]
    return Failure(mode, kind, f"{code or type(shown).__name__} {lines[0]}", statement)


def eager_failure(program: Program) -> Failure | None:
    """Compare each statement with the CPU, which gets the card's values afterwards."""
    card, host = input_tensors(program, "spyre"), input_tensors(program, "cpu")
    for statement in program.statements:
        inputs = [host[name].clone() for name in statement.reads]
        execute(statement, host)
        try:
            execute(statement, card)
            actual = {name: value.cpu() for name, value in card.items()}
        except Exception as error:
            return raised("eager", error, statement)
        for name, value in host.items():
            text = difference(actual[name], value, statement, inputs)
            if text and name == statement.target:
                exact = computed_in_double(statement, inputs)
                text = difference(actual[name], exact.to(value.dtype), statement, inputs)
            if text:
                return Failure("eager", "different", f"{name}: {text}", statement)
        copy_values(actual, host)
    return None


def computed_in_double(statement: Statement, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the result on the CPU with floating inputs converted to float64."""
    doubles = [x.double() if x.is_floating_point() else x for x in inputs]
    scope = dict(zip(statement.reads, doubles, strict=True))
    execute(statement, scope)
    return scope[statement.target]


def copy_values(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Write values into tensors that may be views of each other."""
    for name, value in target.items():
        if all(s > 0 or n == 1 for n, s in zip(value.shape, value.stride(), strict=True)):
            value.copy_(source[name])


def difference(
    actual: torch.Tensor, expected: torch.Tensor, statement: Statement, inputs: list[torch.Tensor]
) -> str:
    """Describe how two tensors differ; "" if they agree within the statement's roundings."""
    if actual.dtype is not expected.dtype or actual.shape != expected.shape:
        return (
            f"{actual.dtype}{list(actual.shape)}, on the CPU {expected.dtype}{list(expected.shape)}"
        )
    if not expected.is_floating_point() or statement.kind in ("exact", "view"):
        wrong = actual != expected
        wrong &= ~((actual != actual) & (expected != expected))
    else:
        wrong = ~(
            (actual.double() - expected.double()).abs() <= limits(expected, statement, inputs)
        )
        wrong &= actual != expected
    return worst(actual, expected, wrong) if bool(wrong.any()) else ""


def limits(
    expected: torch.Tensor, statement: Statement, inputs: list[torch.Tensor]
) -> torch.Tensor:
    """Return the difference allowed per element: a few roundings of it, or of the terms summed."""
    halves = expected.dtype is HALF or any(t.dtype is HALF for t in inputs)
    epsilon = EPSILON[halves]
    allowed = 4 * epsilon * expected.double().abs() + epsilon * 2.0**-6
    if statement.kind == "sum":
        sizes = [t.double().abs().max() for t in (expected, *inputs) if t.numel()]
        allowed = allowed + 6 * epsilon * max(map(float, sizes), default=0.0)
    elif statement.kind == "log":
        # of an already rounded number: its relative error becomes an absolute one of the logarithm
        allowed = allowed + epsilon
    return allowed


def worst(actual: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """Describe the number of wrong elements and the first of them."""
    index = tuple(wrong.nonzero()[0].tolist())
    count = int(wrong.sum())
    pair = f"{actual[index].item()!r}, expected {expected[index].item()!r}"
    return f"{count} of {wrong.numel()} differ, at {list(index)}: {pair}"


def compiled_failure(program: Program, mode: str) -> Failure | None:
    """Compare the compiled function with eager mode, bit for bit except for sums."""
    failure = _compiled_failure(program, mode)
    if failure is None or failure.kind == "refused" or not _fails_in_torch(program, mode):
        return failure
    return replace(failure, kind="torch's")


def _fails_in_torch(program: Program, mode: str) -> bool:
    """Return True if torch's tracing for the CPU, without a compiler behind it, fails or changes
    the results too."""
    torch._dynamo.reset()
    function, names = program.function(), [i.name for i in program.inputs]
    traced = torch.compile(function, backend="aot_eager", dynamic=mode == "dynamic", fullgraph=True)
    compared = Statement("", "", (), "sum")
    try:
        found, wanted = (
            run(*ordered(input_tensors(program, "cpu"), names)) for run in (traced, function)
        )
    except Exception:
        return True
    pairs = zip(found, wanted, strict=True)
    return any(difference(one, other, compared, []) for one, other in pairs)


def _compiled_failure(program: Program, mode: str) -> Failure | None:
    torch._dynamo.reset()
    function = program.function()
    names = [i.name for i in program.inputs]
    eager = function(*ordered(input_tensors(program, "spyre"), names))
    try:
        compiled = torch.compile(function, dynamic=mode == "dynamic", fullgraph=True)
        results = compiled(*ordered(input_tensors(program, "spyre"), names))
        pairs = [(a.cpu(), b.cpu()) for a, b in zip(results, eager, strict=True)]
    except Exception as error:
        return raised(mode, error)
    sums = any(statement.kind == "sum" for statement in program.statements)
    compared = Statement("", "", (), "sum" if sums else "exact")
    for name, (actual, expected) in zip(program.names, pairs, strict=True):
        text = difference(actual, expected, compared, [])
        if text:
            return Failure(mode, "different", f"{name}: {text}")
    return None
