"""Mutants of real programs that compute something else: is the first wrong execute named?

One operation, order, operand or constant is exchanged, or one execute left out. Of the mutants
whose outputs differ from the recorded ones, `spyre.first_wrong` with the program's own function has
to name the changed execute, or, of one left out, its file.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import spyre
from qa.cause_mutants.mutants import execute_order
from qa.conformance.cases import find_cases
from qa.conformance_compiled.real_functions import read_function
from qa.sanitize_mutants.changes import Tree, operand_order
from spyre.errors import SpyreError
from spyre.hw.device import Device
from spyre.runtime.cases import read_case

Exchange = Callable[[random.Random, Path], set[str]]
"""Changes one thing in a kernel's directory; the SDSC files of the changed executes, or none."""

ALIKE = (
    ("exp", "relufwd", "neg", "abs", "sigmoid", "tanh", "silu", "gelufwd", "log", "sqrt", "floor"),
    ("add", "sub", "mul", "realdiv", "maximum", "minimum"),
    ("equal", "notequal", "greaterequal", "greaterthan", "lesserthan", "lesserequal"),
    ("sum", "max", "min"),
    ("sumnonstick", "maxnonstick", "minnonstick"),
)
"""Operations that take the same operands."""


def _read(file: Path) -> tuple[Tree, Tree]:
    tree: Tree = json.loads(file.read_text())
    (outer,) = tree.values()
    return tree, next(iter(outer["dscs_"][0].values()))


def operation(rng: random.Random, directory: Path) -> set[str]:
    """Another operation on the same operands; its origin stays."""
    file = rng.choice(sorted(directory.glob("sdsc_*.json")))
    tree, dsc = _read(file)
    name = dsc["computeOp_"][0]["opFuncName"]
    others = [other for group in ALIKE if name in group for other in group if other != name]
    if not others:
        return set()
    (outer,) = tree.values()
    handle = outer.pop("debug_handle_", None)
    tree = json.loads(json.dumps(tree).replace(f'"{name}"', f'"{rng.choice(others)}"'))
    (outer,) = tree.values()
    if handle is not None:
        outer["debug_handle_"] = handle
    file.write_text(json.dumps(tree))
    return {file.name}


def order(rng: random.Random, directory: Path) -> set[str]:
    """Two neighbouring executes exchanged."""
    before = _executed(directory)
    if not execute_order(rng, directory):
        return set()
    return {a for a, b in zip(before, _executed(directory), strict=True) if a != b}


def operands(rng: random.Random, directory: Path) -> set[str]:
    """The inputs of an operation exchanged, or two addresses of an execute."""
    if rng.random() < 0.5:
        before = (directory / "bundle.mlir").read_text().splitlines()
        if not operand_order(rng, directory):
            return set()
        after = (directory / "bundle.mlir").read_text().splitlines()
        changed = (b for a, b in zip(before, after, strict=True) if a != b)
        return {name for line in changed for name in _names(line)}
    file = rng.choice(sorted(directory.glob("sdsc_*.json")))
    tree, dsc = _read(file)
    inputs = dsc["computeOp_"][0]["inputLabeledDs"]
    if len(inputs) < 2:
        return set()
    inputs[0], inputs[1] = inputs[1], inputs[0]
    file.write_text(json.dumps(tree))
    return {file.name}


def left_out(rng: random.Random, directory: Path) -> set[str]:
    """An execute removed."""
    module = directory / "bundle.mlir"
    lines = module.read_text().splitlines(keepends=True)
    places = [k for k, line in enumerate(lines) if "sdsc_execute" in line]
    if len(places) < 2:
        return set()
    removed = lines.pop(rng.choice(places))
    module.write_text("".join(lines))
    return set(_names(removed)) - set(_executed(directory))


def constant(rng: random.Random, directory: Path) -> set[str]:
    """A constant of an operation doubled (a power of two more), in every core."""
    files = [file for file in sorted(directory.glob("sdsc_*.json")) if _constants(_read(file)[1])]
    if not files:
        return set()
    file = rng.choice(files)
    tree, dsc = _read(file)
    data = rng.choice(_constants(dsc))["data_"]["data_"]
    for key, codes in data.items():
        data[key] = [code + 0x200 for code in codes]
    file.write_text(json.dumps(tree))
    return {file.name}


def _constants(dsc: Tree) -> list[Any]:
    table = dsc.get("constantInfo_")
    if not isinstance(table, dict):
        return []
    return [c for c in table.values() if any(any(v) for v in c["data_"]["data_"].values())]


def _executed(directory: Path) -> list[str]:
    return _names((directory / "bundle.mlir").read_text())


def _names(text: str) -> list[str]:
    return re.findall(r'sdsc_filename ?= ?"([^"]+)"', text)


EXCHANGES: dict[str, Exchange] = {
    "operation": operation,
    "order": order,
    "operand": operands,
    "left out": left_out,
    "constant": constant,
}


@dataclass(frozen=True)
class ComputationMutant:
    """A program whose outputs differ since something was exchanged. ``changed``: SDSC files."""

    kind: str
    case: str
    changed: frozenset[str]
    found: str
    is_named: bool

    def __str__(self) -> str:
        verdict = "named" if self.is_named else "NOT NAMED"
        return f"{verdict}: {self.case}: {self.kind}: {', '.join(self.changed)}\n    {self.found}"


def make_computation_mutants(
    root: Path, count: int, rng: random.Random, place: Path
) -> Iterator[ComputationMutant]:
    """``count`` mutants whose outputs are wrong, of all kinds in turn."""
    device, cases = Device(threads=1), find_cases(root)
    made = 0
    while made < count:
        case, kind = rng.choice(cases), list(EXCHANGES)[made % len(EXCHANGES)]
        mutant = _mutant(case, kind, rng, place, device)
        if mutant is not None:
            made += 1
            yield mutant


def _is_callable(path: Path) -> bool:
    """True for a case whose inputs are those of its function."""
    buffers = read_case(path).spec.buffers.values()
    inputs = [each for each in buffers if each.kind == "input" and each.value is not None]
    return len(inputs) == len(read_function(path).inputs)


def _mutant(
    path: Path, kind: str, rng: random.Random, place: Path, device: Device
) -> ComputationMutant | None:
    """One mutant; None if the change does not apply, is refused, or changes no output."""
    target = place / path.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(path, target)
    kernel = rng.choice([launch.bundle for launch in read_case(path).spec.launches])
    changed = EXCHANGES[kind](rng, target / kernel)
    if not changed or not _is_callable(path):
        return None
    try:
        with np.errstate(all="ignore"):
            if spyre.run(read_case(target), device=device).ok:
                return None
            found = spyre.first_wrong(target, read_function(path).call, device=device)
    except SpyreError:
        return None
    finding = None if found is None else found.to_finding()
    named = set() if found is None else {Path(found.location.sdsc).name}
    named |= set(re.findall(r"sdsc_\d+\.json", str(finding)))
    text = "no execute" if finding is None else str(finding).splitlines()[0]
    is_named = bool(named & changed)
    return ComputationMutant(kind, path.name, frozenset(changed), text, is_named)
