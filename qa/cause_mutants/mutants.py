"""Mutants with wrong outputs, and whether their first finding names the changed execute."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from qa.conformance.cases import find_cases
from qa.sanitize_mutants import changes
from spyre.cli.commands import run_compared
from spyre.cli.options import ExecuteOptions
from spyre.cli.recorder import Recorder
from spyre.errors import DeviceLocation, Finding, SpyreError
from spyre.mlir.bundle import load_bundle
from spyre.mlir.operation import footprint
from spyre.runtime.cases import read_case
from spyre.runtime.run.runs import RunOptions, describe_run, traced_executes
from spyre.runtime.tracing import MemoryExecute

Change = Callable[[random.Random, Path], bool]


def execute_order(rng: random.Random, directory: Path) -> bool:
    """Exchange two neighbouring executes of one block; False if no block has two."""
    module = directory / "bundle.mlir"
    lines = module.read_text().splitlines(keepends=True)
    places = [k for k, line in enumerate(lines) if "sdsc_execute" in line]
    blocks = {k: _block(lines, k) for k in places}
    pairs = [(a, b) for a, b in pairwise(places) if blocks[a] == blocks[b]]
    if not pairs:
        return False
    a, b = rng.choice(pairs)
    # The first moves behind the second: the lines between them compute the second's operands.
    lines.insert(b + 1, lines[a])
    del lines[a]
    module.write_text("".join(lines))
    return True


def _block(lines: list[str], at: int) -> tuple[int, ...]:
    """Line numbers of the loops around line ``at``, outermost first."""
    opened: list[int] = []
    for k, line in enumerate(lines[:at]):
        if line.rstrip().endswith("{"):
            opened.append(k)
        elif line.strip() == "}":
            opened.pop()
    return tuple(opened)


KINDS: dict[str, tuple[Change, ...]] = {
    "starts": (changes.constant, changes.literal_address),
    "steps": (changes.map_stride,),
    "gaps": (changes.gap,),
    "order": (changes.operand_order, execute_order),
}


@dataclass(frozen=True)
class Mutant:
    """A changed program whose outputs differ from those of the original.

    ``changed``: the executes (SDSC file) and tensors that were changed; the tensor is None where
    the whole execute was.
    """

    kind: str
    case: str
    changed: frozenset[tuple[str, str | None]]
    causes: tuple[Finding, ...]

    @property
    def is_named(self) -> bool:
        """True if the first finding is located at a changed execute and tensor, or its text names
        them as the writer of the elements it is about.
        """
        if not self.causes:
            return False
        first = self.causes[0]
        place = first.location
        if not isinstance(place, DeviceLocation):
            return False
        file = Path(place.sdsc).name
        named = {(file, place.tensor), (file, None)}
        text = f"{first.message} {first.found}"
        named |= {(sdsc, None) for sdsc in re.findall(r"sdsc_\d+\.json", text)}
        of_executes = {(sdsc, None) for sdsc, tensor in self.changed}
        partner = any((sdsc, None) in of_executes for sdsc, _ in named if sdsc != file)
        return bool(named & self.changed) or partner

    def __str__(self) -> str:
        verdict = "named" if self.is_named else "NOT NAMED"
        what = ", ".join(f"{sdsc} {tensor or ''}" for sdsc, tensor in sorted(self.changed, key=str))
        first = str(self.causes[0]).splitlines()[0] if self.causes else "no finding"
        return f"{verdict}: {self.case}: {self.kind}: {what}\n    {first[first.find('sdsc_') :]}"


def tiled_cases(root: Path) -> list[Path]:
    """Cases whose kernels loop over tiles."""
    return [
        path
        for path in find_cases(root)
        if any("affine_map" in module.read_text() for module in path.rglob("bundle.mlir"))
    ]


def make_mutants(root: Path, count: int, rng: random.Random, place: Path) -> Iterator[Mutant]:
    """Yield ``count`` mutants that fault or have wrong outputs, of all kinds in turn."""
    cases = tiled_cases(root)
    made = 0
    while made < count:
        mutant = make_mutant(rng.choice(cases), list(KINDS)[made % len(KINDS)], rng, place)
        if mutant is not None:
            made += 1
            yield mutant


def make_mutant(path: Path, kind: str, rng: random.Random, place: Path) -> Mutant | None:
    """Return a mutant, or None if the change does not apply, is refused, or changes no output."""
    target = place / path.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path, target)
    case = read_case(path)
    kernel = rng.choice([launch.bundle for launch in case.spec.launches])
    if not rng.choice(KINDS[kind])(rng, target / kernel):
        return None
    try:
        changed = _changed(path, target)
        causes = _causes(target)
    except SpyreError:
        return None
    if causes is None:
        return None
    return Mutant(kind, path.name, frozenset(changed), causes)


def _causes(path: Path) -> tuple[Finding, ...] | None:
    """Return the findings that a run with wrong outputs prints first; None if they are right."""
    options = ExecuteOptions(str(path), threads=2, quiet=True)
    try:
        compared = run_compared(options, Recorder(options))
    except SpyreError as error:
        if error.exit_code != 1:
            raise
        return (*error.observed, error.finding)
    return compared.causes if compared.differs else None


def _changed(before: Path, after: Path) -> Iterator[tuple[str, str | None]]:
    old, new = _traced(before), _traced(after)
    for first, second in zip(old, new, strict=True):
        if first.sdsc != second.sdsc:
            yield first.sdsc, None
            yield second.sdsc, None
            continue
        for tensor, other in zip(first.op.tensors, second.op.tensors, strict=True):
            lengths = footprint(first.op, tensor), footprint(second.op, other)
            moved = tensor.starts != other.starts and not tensor.symbolic
            if lengths[0] != lengths[1] or moved:
                yield first.sdsc, tensor.name
        for walk in first.owned:
            other_walk = second.walks[walk.operand]
            if other_walk.owner is None or not np.array_equal(walk.offsets, other_walk.offsets):
                yield first.sdsc, walk.tensor.name


def _traced(path: Path) -> tuple[MemoryExecute, ...]:
    run = describe_run(read_case(path), load_bundle, RunOptions(check=False))
    return traced_executes(run)
