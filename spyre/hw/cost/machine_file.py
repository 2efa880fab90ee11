"""Machine files: TOML, a table per constant with value, unit, kind and source.

A file may leave out constants: they are those of the shipped ``spyre.toml``. What it says must be
known, in the unit of the field, and of its type.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import resources
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from spyre.errors import JsonLocation, MachineError
from spyre.hw.cost.machine import GROUPS, Constant, Kind, MachineSpec, Value, make_machine

SHIPPED = "spyre.toml"
KEYS = ("value", "unit", "kind", "source")


@cache
def default_machine() -> MachineSpec:
    """The shipped machine, read once per process."""
    text = resources.files("spyre.hw.cost").joinpath(SHIPPED).read_text(encoding="utf-8")
    name, constants = _read(text, SHIPPED)
    _require_all(constants)
    return make_machine(name, constants)


def load_machine(path: str | Path) -> MachineSpec:
    """The machine of a file over the shipped one.

    Raises MachineError: SPY760 (not readable, no TOML), SPY761 (unknown or missing key), SPY762
    (value, unit, kind or source).
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(
            "SPY760", "the machine file cannot be read", JsonLocation(str(path)), found=str(error)
        ) from error
    name, constants = _read(text, str(path))
    return make_machine(name, {**default_machine().constants, **constants})


def _read(text: str, file: str) -> tuple[str, dict[str, Constant]]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(
            "SPY760", "the machine file is no TOML", JsonLocation(file), found=str(error)
        ) from error
    _check_keys(document, ("name", *GROUPS), ("name",), file, "$")
    if not isinstance(document["name"], str):
        raise _wrong(file, "$.name", "a name in quotes", document["name"])
    return document["name"], dict(_constants(document, file))


def _constants(document: Mapping[str, Any], file: str) -> Iterator[tuple[str, Constant]]:
    for group, owner in GROUPS.items():
        known = {each.name: each for each in fields(owner)}
        tables = document.get(group, {})
        _check_keys(tables, tuple(known), (), file, f"$.{group}")
        for key, table in tables.items():
            path = f"$.{group}.{key}"
            _check_keys(table, KEYS, KEYS, file, path)
            unit, kind = known[key].metadata["unit"], str(known[key].type)
            yield f"{group}.{key}", _constant(table, unit, kind, file, path)


def _constant(table: Mapping[str, Any], unit: str, kind: str, file: str, path: str) -> Constant:
    if table["unit"] != unit:
        raise _wrong(file, f"{path}.unit", f'"{unit}"', table["unit"])
    if table["kind"] not in set(Kind):
        raise _wrong(file, f"{path}.kind", ", ".join(Kind), table["kind"])
    source = table["source"]
    if not isinstance(source, str) or not source.strip():
        raise _wrong(file, f"{path}.source", "where the value is from", source)
    return Constant(
        _value(table["value"], kind, file, f"{path}.value"), unit, Kind(table["kind"]), source
    )


def _value(found: object, kind: str, file: str, path: str) -> Value:
    if kind == "Points":
        return _points(found, file, path)
    if isinstance(found, bool) or not isinstance(found, int if kind == "int" else (int, float)):
        raise _wrong(file, path, "a whole number" if kind == "int" else "a number", found)
    if not (isfinite(found) and found >= 0):
        raise _wrong(file, path, "a finite number, not negative", found)
    return found if kind == "int" else float(found)


def _points(found: object, file: str, path: str) -> Value:
    expected = "[[x, y], ...] with rising x"
    if not isinstance(found, list) or not found:
        raise _wrong(file, path, expected, found)
    for row in found:
        numbers = isinstance(row, list) and all(type(v) in (int, float) for v in row)
        if not numbers or len(row) != 2:
            raise _wrong(file, path, expected, row)
    points = tuple((float(x), float(y)) for x, y in found)
    if any(a[0] >= b[0] for a, b in pairwise(points)):
        raise _wrong(file, path, expected, found)
    return points


def _require_all(constants: Mapping[str, Constant]) -> None:
    for group, owner in GROUPS.items():
        for each in fields(owner):
            if f"{group}.{each.name}" not in constants:
                raise _unknown(SHIPPED, f"$.{group}", f"a table {each.name}", "none")


def _check_keys(
    found: object, known: tuple[str, ...], needed: tuple[str, ...], file: str, path: str
) -> None:
    if not isinstance(found, dict):
        raise _wrong(file, path, "a table", found)
    for key in found:
        if key not in known:
            raise _unknown(file, f"{path}.{key}", f"one of {', '.join(known)}", key)
    for key in needed:
        if key not in found:
            raise _unknown(file, path, f"a key {key}", ", ".join(found) or "none")


def _unknown(file: str, path: str, expected: str, found: str) -> MachineError:
    return MachineError(
        "SPY761",
        "a machine file has a key it must not have, or lacks one",
        JsonLocation(file, path),
        expected=expected,
        found=found,
    )


def _wrong(file: str, path: str, expected: str, found: object) -> MachineError:
    return MachineError(
        "SPY762",
        "a constant of a machine file is wrong",
        JsonLocation(file, path),
        expected=expected,
        found=repr(found),
    )
