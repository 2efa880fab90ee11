"""Command line: `python -m qa.sanitize_mutants [DIR] [--count N] [--seed S] [--cases N]`."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from qa import BUNDLES, directory
from qa.conformance.cases import find_cases
from qa.sanitize_mutants.changes import CHANGES
from qa.sanitize_mutants.touched import find_outside
from spyre.errors import Severity, SpyreError
from spyre.hw.device.device import Device
from spyre.runtime.cases import Case, read_case
from spyre.runtime.run.session import run, session_of

OUTCOMES = ("refused", "error found", "warning found", "other output", "silent", "MISSED")
KINDS = [*CHANGES, *["map stride"] * 20]
"""Kinds of changes to draw from; "map stride" is repeated because few cases have maps."""
MAX_FILES = 40
"""Most files of a case: copying more takes longer than running them."""


@dataclass(frozen=True)
class Original:
    """A case, its outputs, and the sanitizer's findings for the unchanged program."""

    case: Case
    outputs: tuple[bytes, ...]
    texts: frozenset[str]


def main() -> int:
    options = _parse()
    rng = random.Random(options.seed)
    device = Device(sanitize=True, threads=2)
    originals = list(_originals(options.directory, options.cases, rng, device))
    counts: Counter[tuple[str, str]] = Counter()
    done = 0
    with tempfile.TemporaryDirectory() as directory:
        while done < options.count:
            original = originals[done % len(originals)]
            kind = rng.choice(KINDS)
            outcome = _try(original, kind, rng, device, Path(directory) / "mutant")
            if outcome is None:
                continue
            done += 1
            counts[kind, outcome[0]] += 1
            if options.verbose or outcome[0] == "MISSED":
                name = original.case.directory.name
                print(f"{done} {name}: {kind}: {outcome[0]} {outcome[1]}", flush=True)
    _print_table(counts, len(originals))
    return 1 if any(outcome == "MISSED" for _, outcome in counts) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.sanitize_mutants", description=__doc__)
    parser.add_argument("directory", nargs="?", type=directory, default=str(BUNDLES), metavar="DIR")
    parser.add_argument("--count", type=int, default=1000, help="mutants")
    parser.add_argument("--cases", type=int, default=80, help="cases they are made of")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-v", "--verbose", action="store_true", help="print every mutant")
    return parser.parse_args()


def _originals(root: Path, count: int, rng: random.Random, device: Device) -> Iterator[Original]:
    paths = [p for p in find_cases(root) if len(list(p.rglob("*.json"))) <= MAX_FILES]
    paths = rng.sample(paths, len(paths))
    paths.sort(key=_has_loop, reverse=True)
    for path in paths[:count]:
        case = read_case(path)
        result = run(case, device=device)
        texts = frozenset(finding.message for finding in result.sanitizer)
        yield Original(case, tuple(v.tobytes() for v in result.outputs), texts)


def _has_loop(path: Path) -> bool:
    """Return True if a case has a loop; loops are rare and error-prone, so all are used."""
    return any("affine_map" in module.read_text() for module in path.rglob("bundle.mlir"))


def _try(
    original: Original, kind: str, rng: random.Random, device: Device, place: Path
) -> tuple[str, str] | None:
    """Return outcome and remark of one mutant; None if the change does not apply."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(original.case.directory, place, ignore=shutil.ignore_patterns("*.npz"))
    kernel = rng.choice([launch.bundle for launch in original.case.spec.launches])
    if not CHANGES[kind](rng, place / kernel):
        return None
    case = replace(original.case, directory=place)
    try:
        result = run(case, device=device)
    except SpyreError as error:
        return "refused", error.code
    new = [f for f in result.sanitizer if f.message not in original.texts]
    if new:
        is_error = any(f.severity is Severity.ERROR for f in new)
        return ("error found" if is_error else "warning found"), new[0].code
    if tuple(v.tobytes() for v in result.outputs) != original.outputs:
        return "other output", ""
    outside = _outside(case, device)
    return ("MISSED", outside) if outside else ("silent", "")


def _outside(case: Case, device: Device) -> str:
    """Describe the first access of a mutant outside its arguments; "" if there is none."""
    session = session_of(device)
    with session.placed(session.describe(case)) as placement:
        placement.fill()
        for described, (loaded, bound) in zip(
            placement.run.launches, placement.launches, strict=True
        ):
            for found in find_outside(described.bundle, loaded.kernel, bound):
                return f"{described.directory}: {found}"
    return ""


def _print_table(counts: Counter[tuple[str, str]], cases: int) -> None:
    print(f"{sum(counts.values())} mutants of {cases} cases")
    print(f"{'change':16}" + "".join(f"{outcome:>14}" for outcome in OUTCOMES))
    for kind in CHANGES:
        numbers = "".join(f"{counts[kind, outcome]:>14}" for outcome in OUTCOMES)
        print(f"{kind:16}{numbers}")
    totals = (sum(counts[kind, outcome] for kind in CHANGES) for outcome in OUTCOMES)
    print(f"{'all':16}" + "".join(f"{total:>14}" for total in totals))


if __name__ == "__main__":
    raise SystemExit(main())
