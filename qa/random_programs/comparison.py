"""How a program's results are compared, and the ways in which it is run.

Eager mode is compared with the CPU statement by statement, each on the values that the card has at
that moment, so that a rounding never grows into a difference and the statement at fault is known.
Compiled code is compared with eager mode bit for bit, unless something is summed. Which terms of a
sum the card adds first is decided by the lane each has in its stick: a compiled function that reads
a view in place, begun within a stick or with its sticks along another dim, adds in another order
than eager mode, which copies the view first. One order for both would take that copy in compiled
code too, which is what it is compiled for; so sums differ as the roundings of float32 do.

Some of torch's CPU functions are worse than the card's: its float32 gelu of -3.6 is off by 3e-4
relative. What differs is therefore computed once more, in float64, before it counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from qa.random_programs.programs import HALF, Program, Statement, execute, input_tensors, ordered
from spyre.errors import SpyreError, UnsupportedError

EPSILON = {True: 2.0**-9, False: 2.0**-20}
"""One rounding, relative: of 16-bit floats (DL16 has 9 bits of mantissa), of float32."""
REFUSALS = ("SPY901",)
"""Codes of values the card does not hold: a part of a sum of int64 may be one of them."""
MODES = ("eager", "compiled", "dynamic")


@dataclass(frozen=True)
class Failure:
    """``kind``: different, refused (an error that names what is not supported), crashed, or torch's
    (what fails before it comes to a device).
    """

    mode: str
    kind: str
    text: str
    statement: Statement | None = None

    @property
    def signature(self) -> tuple[str, str, str]:
        """What stays when a program is shrunk: mode, kind, and the first word of the text."""
        return self.mode, self.kind, self.text.split(maxsplit=1)[0]

    def __str__(self) -> str:
        at = f" at `{self.statement}`" if self.statement else ""
        return f"{self.mode}: {self.kind}{at}: {self.text}"


def first_failure(program: Program) -> Failure | None:
    """The first way in which a program differs, over all modes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modes = ("compiled", "dynamic")
        failures = (compiled_failure(program, mode) for mode in modes)
        return eager_failure(program) or next(filter(None, failures), None)


def raised(mode: str, error: Exception, statement: Statement | None = None) -> Failure:
    """What an exception means."""
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
    """Statement by statement beside the CPU, which gets the card's values after each."""
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
    """The result on the CPU with floating inputs, values as they are, as float64."""
    doubles = [x.double() if x.is_floating_point() else x for x in inputs]
    scope = dict(zip(statement.reads, doubles, strict=True))
    execute(statement, scope)
    return scope[statement.target]


def copy_values(source: Mapping[str, torch.Tensor], target: Mapping[str, torch.Tensor]) -> None:
    """Write values into tensors of which some are views of others."""
    for name, value in target.items():
        if all(s > 0 or n == 1 for n, s in zip(value.shape, value.stride(), strict=True)):
            value.copy_(source[name])


def difference(
    actual: torch.Tensor, expected: torch.Tensor, statement: Statement, inputs: list[torch.Tensor]
) -> str:
    """In words how two tensors differ; empty if they agree within the statement's roundings."""
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
    """Largest difference allowed per element: a few roundings of it, or of what was summed."""
    halves = expected.dtype is HALF or any(t.dtype is HALF for t in inputs)
    epsilon = EPSILON[halves]
    allowed = 4 * epsilon * expected.double().abs() + epsilon * 2.0**-6
    if statement.kind == "sum":
        sizes = [t.double().abs().max() for t in (expected, *inputs) if t.numel()]
        allowed = allowed + 6 * epsilon * max(map(float, sizes), default=0.0)
    elif statement.kind == "log":
        # that of a number which was rounded before: a relative error there is an absolute one here
        allowed = allowed + epsilon
    return allowed


def worst(actual: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor) -> str:
    """The number of wrong elements, and one of them."""
    index = tuple(wrong.nonzero()[0].tolist())
    count = int(wrong.sum())
    pair = f"{actual[index].item()!r}, expected {expected[index].item()!r}"
    return f"{count} of {wrong.numel()} differ, at {list(index)}: {pair}"


def compiled_failure(program: Program, mode: str) -> Failure | None:
    """The whole function compiled beside the whole function in eager mode: the same bits."""
    failure = _compiled_failure(program, mode)
    if failure is None or failure.kind == "refused" or not _fails_in_torch(program, mode):
        return failure
    return replace(failure, kind="torch's")


def _fails_in_torch(program: Program, mode: str) -> bool:
    """Whether torch cannot trace the function for the CPU either, with a compiler that does
    nothing, or computes something else then."""
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
