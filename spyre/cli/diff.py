"""``spyre diff A B``: two programs execute by execute, without running them.

Executes are aligned by their operations. Of each pair: extents, division among cores, runs, the
memory, first byte and tile steps of every tensor, and the modelled time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import msgspec

from spyre.cli.entry import guarded
from spyre.cli.options import CommandParser
from spyre.errors import SpyreError
from spyre.runtime.units import format_ns

if TYPE_CHECKING:
    from spyre.runtime.run import Run

Fields = dict[str, str]
MAX_STEPS = 4
"""Different tile steps that are shown of a tensor."""


class ExecuteForm(msgspec.Struct, frozen=True):
    """The properties of an execute that a comparison looks at; ``fields``: by name.

    ``time_ns``: modelled time on a card; None if the program cannot be placed on one.
    """

    number: int
    sdsc: str
    operation: str
    fields: Fields
    time_ns: float | None = None


class Difference(msgspec.Struct, frozen=True):
    """A pair of executes with the fields that differ, or (None) an execute of one program only."""

    first: ExecuteForm | None
    second: ExecuteForm | None

    @property
    def fields(self) -> dict[str, tuple[str, str]]:
        """Return the texts in A and B of each property that differs."""
        if self.first is None or self.second is None:
            return {}
        a, b = self.first.fields, self.second.fields
        names = dict.fromkeys((*a, *b))
        return {n: (a.get(n, "-"), b.get(n, "-")) for n in names if a.get(n) != b.get(n)}

    def __str__(self) -> str:
        if self.first is None or self.second is None:
            side, only = ("A", self.first) if self.second is None else ("B", self.second)
            assert only is not None
            return f"only in {side}: execute {only.number} {only.operation} ({only.sdsc})"
        a, b = self.first, self.second
        head = f"execute {a.number} {a.operation}"
        if (a.number, a.operation) != (b.number, b.operation):
            head += f" (in B {b.number} {b.operation})"
        rows = [f"  {name}:\n    A  {x}\n    B  {y}" for name, (x, y) in self.fields.items()]
        if a.time_ns is not None and b.time_ns is not None:
            rows.append(f"  modelled time: {_times_text(a.time_ns, b.time_ns)}")
        return "\n".join([head, *rows])

    def to_json(self) -> dict[str, Any]:
        """As an object: numbers of the execute in A and B, null in one program only."""
        a, b = self.first, self.second
        return {
            "a": None if a is None else a.number,
            "b": None if b is None else b.number,
            "operation": (a or b).operation if a or b else None,  # type: ignore[union-attr]
            "fields": {name: {"a": x, "b": y} for name, (x, y) in self.fields.items()},
            "modelled_ns": {"a": a and a.time_ns, "b": b and b.time_ns},
        }


def differences(first: Sequence[ExecuteForm], second: Sequence[ExecuteForm]) -> list[Difference]:
    """The executes that differ, in program order."""
    a_names, b_names = ([each.operation for each in side] for side in (first, second))
    found: list[Difference] = []
    for kind, a, b, c, d in SequenceMatcher(None, a_names, b_names, autojunk=False).get_opcodes():
        old: list[ExecuteForm | None] = [*first[a:b]]
        new: list[ExecuteForm | None] = [*second[c:d]]
        if kind != "equal" and len(old) != len(new):
            found += [Difference(each, None) for each in old]
            found += [Difference(None, each) for each in new]
            continue
        found += [Difference(x, y) for x, y in zip(old, new, strict=True)]
    return [each for each in found if each.fields or each.first is None or each.second is None]


def read_forms(path: str) -> list[ExecuteForm]:
    """The executes of a bundle or a case. Errors as of `describe_run`."""
    from spyre.runtime.cases import case_directory, read_case
    from spyre.runtime.program import load_source
    from spyre.runtime.run import RunOptions, describe_run, traced_executes

    case = case_directory(path)
    source = load_source(path) if case is None else read_case(case)
    run = describe_run(source, load_source, RunOptions(check=False))
    times = _modelled_ns(run)
    return [_form(each, times.get(each.number)) for each in traced_executes(run)]


def _modelled_ns(run: Run) -> dict[int, float]:
    """Modelled time of each execute in nanoseconds; empty for a program that cannot be placed."""
    from spyre.hw.cost import default_machine, kernel_ns
    from spyre.hw.device import Device
    from spyre.runtime.run import Session

    times: dict[int, float] = {}
    try:
        with Session(Device()).placed(run) as placed:
            for number, launch in enumerate(run.launches):
                view = placed.link(number).view
                statements = [each for each in view.statements if each.counters.executions]
                counts = [each.operation_counts for each in statements]
                modelled = kernel_ns(counts, default_machine()).operations
                for statement, time in zip(statements, modelled, strict=True):
                    times[launch.label.first_execute + statement.index] = time.total_ns
    except SpyreError:  # `spyre check` reports why
        return {}
    return times


def _times_text(first_ns: float, second_ns: float) -> str:
    """Both times, and the change in per cent."""
    a, b = (format_ns(round(time_ns)) for time_ns in (first_ns, second_ns))
    change = f" ({second_ns / first_ns - 1:+.0%})" if first_ns else ""
    return f"{a} in both" if first_ns == second_ns else f"{a} in A, {b} in B{change}"


def _form(each: Any, time_ns: float | None) -> ExecuteForm:
    op = each.op
    fields = {
        "operation": op.name,
        "extents": ", ".join(f"{dim} {n}" for dim, n in op.extents.items()),
        "division": ", ".join(f"{dim} {n}" for dim, n in op.slices.items() if n > 1) or "one core",
        "runs": str(len(each.loops)),
    }
    for walk in each.walks:
        fields[walk.tensor.name] = ", ".join(_tensor_texts(walk))
    return ExecuteForm(each.number, each.sdsc, op.name, fields, time_ns)


def _tensor_texts(walk: Any) -> Iterator[str]:
    tensor, starts = walk.tensor, walk.tile_starts
    yield tensor.component.value.upper() if walk.owner is None else walk.memory.name
    yield f"{tensor.data_format} {' x '.join(tensor.dims)}"
    yield f"from byte {int(starts[0]):,}"
    if len(starts) > 1:
        steps = [f"{step:,}" for step in dict.fromkeys((starts[1:] - starts[:-1]).tolist())]
        more = ", …" if len(steps) > MAX_STEPS else ""
        yield f"steps of {', '.join(steps[:MAX_STEPS])}{more} bytes"


def diff(arguments: Sequence[str], program: str) -> int:
    """Print how two programs differ; exit code 1 if they do."""
    return guarded(program, lambda: _parse(arguments, program), _report)


def _parse(arguments: Sequence[str], program: str) -> argparse.Namespace:
    parser = CommandParser(prog=program, description="How two programs differ.")
    parser.add_argument("a", metavar="A", help="directory of a bundle or a case")
    parser.add_argument("b", metavar="B", help="the other one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def _report(parsed: argparse.Namespace) -> int:
    first, second = read_forms(parsed.a), read_forms(parsed.b)
    found = differences(first, second)
    a_ns, b_ns = _total_ns(first), _total_ns(second)
    if parsed.json:
        from spyre.cli.json_report import print_object

        rows = [each.to_json() for each in found]
        times = {"a": a_ns, "b": b_ns}
        print_object({"a": parsed.a, "b": parsed.b, "modelled_ns": times, "differences": rows})
        return int(bool(found))
    for each in found:
        print(each)
    if found and a_ns is not None and b_ns is not None:
        print(f"modelled time without launching: {_times_text(a_ns, b_ns)}")
    differ = "execute differs" if len(found) == 1 else "executes differ"
    print(f"{len(found)} {differ}" if found else "the programs are equal")
    return int(bool(found))


def _total_ns(executes: Sequence[ExecuteForm]) -> float | None:
    """The modelled time of all executes; None if that of one is not known."""
    times = [each.time_ns for each in executes]
    return None if None in times else sum(time for time in times if time is not None)
