"""The machine of a cost model: constants from a TOML file, ``spyre.toml`` by default.

Every constant has a value, a unit, its origin (``source``) and how it is known (``kind``). Values
are plain numbers on :class:`Hardware` and :class:`Calibration`; ``MachineSpec.constants`` has the
whole record by name, such as ``hardware.cores``. Constants that a file leaves out are those of the
shipped file. Its entries must be known constants, with the unit and the type of the field.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, Literal, cast, get_args

from spyre.errors import JsonLocation, MachineError
from spyre.files import read_regular

Points = tuple[tuple[float, float], ...]
"""A function by its values: (x, y) with rising x."""
Value = int | float | Points

ConstantKind = Literal["stated", "derived", "measured", "guessed"]
"""How a constant is known."""
KINDS: tuple[str, ...] = get_args(ConstantKind)


@dataclass(frozen=True, slots=True)
class MachineConstant:
    """One constant of a machine file. ``fitted_on``: classes of measured rows, fields of `Spread`;
    ``rows``: how many of them it was fitted on, ``spread``: their median error, relative.
    """

    value: Value
    unit: str
    kind: ConstantKind
    source: str
    fitted_on: str = ""
    rows: int = 0
    spread: float = 0.0


def _unit(name: str) -> Any:
    return field(metadata={"unit": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Published properties of the hardware, in the units of the file."""

    cores: int = _unit("cores")
    corelets: int = _unit("corelets/core")
    clock_ghz: float = _unit("GHz")
    pt_macs_per_cycle: float = _unit("MAC/cycle/core")
    pt_speed_8_bit_float: float = _unit("ratio")
    pt_speed_8_bit_integer: float = _unit("ratio")
    pt_speed_4_bit_integer: float = _unit("ratio")
    sfu_lanes: float = _unit("elements/cycle/corelet")
    transcendental_cycles: float = _unit("cycles")
    lx_bytes: int = _unit("B/core")
    lx_planner_bytes: int = _unit("B/core")
    lx_fraction: float = _unit("ratio")
    lx_bytes_per_cycle: float = _unit("B/cycle/corelet")
    hbm_peak_gbps: float = _unit("GB/s")
    hbm_bytes: int = _unit("B")
    ring_bytes_per_cycle: float = _unit("B/cycle/link")
    ring_directions: int = _unit("directions")
    ring_hop_cycles: float = _unit("cycles")
    pcie_gbps: float = _unit("GB/s")
    launch_us: float = _unit("us")
    card_link_gbps: float = _unit("GB/s")
    card_step_us: float = _unit("us")
    card_add_gbps: float = _unit("GB/s")

    def format_speed(self, data_format: str) -> float:
        """Multiply-adds of ``data_format`` in the time of one of DL16."""
        if "FP8" in data_format:
            return self.pt_speed_8_bit_float
        speeds = {"INT8": self.pt_speed_8_bit_integer, "INT4": self.pt_speed_4_bit_integer}
        return speeds.get(data_format.removeprefix("SEN").removeprefix("U"), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Constants of the calibrated model; ``docs/cost-model.md`` lists their uses."""

    stream_gbps: float = _unit("GB/s")
    turnaround_ns_per_byte: float = _unit("ns/B")
    scalar_turnaround: float = _unit("ratio")
    valley_ratio: float = _unit("ratio")
    valley_rows: float = _unit("rows/stick")
    dependent_ratio: float = _unit("ratio")
    broadcast_gbps: float = _unit("GB/s")
    row_reduction_floor_gbps: float = _unit("GB/s")
    row_reduction_extra_gbps: float = _unit("GB/s")
    row_reduction_decay_rows: float = _unit("rows")
    column_reduction_gbps: float = _unit("GB/s")
    transpose_gbps: float = _unit("GB/s")
    concatenation_gbps: float = _unit("GB/s")
    concatenation_per_column_doubling_gbps: float = _unit("GB/s")
    concatenation_per_row_doubling_gbps: float = _unit("GB/s")
    concatenation_floor_gbps: float = _unit("GB/s")
    pointwise_core_share: Points = field(metadata={"unit": "cores, ratio"})
    broadcast_core_share: Points = field(metadata={"unit": "cores, ratio"})
    reduction_core_share: Points = field(metadata={"unit": "cores, ratio"})
    transpose_core_share: Points = field(metadata={"unit": "cores, ratio"})
    reduction_elements_per_ns: float = _unit("elements/ns/core")
    reread_ratio: float = _unit("ratio")
    product_gbps: float = _unit("GB/s")
    product_turnaround_ns_per_byte: float = _unit("ns/B")
    product_turnaround_cores: float = _unit("cores")
    pt_macs_per_ns: float = _unit("MAC/ns/core")
    pt_fill_rows: float = _unit("rows")
    multicast_cores: float = _unit("cores")
    multicast_power: float = _unit("exponent")
    unshared_ratio: float = _unit("ratio")
    accumulator_rows: float = _unit("rows")
    accumulator_lx_fraction: float = _unit("ratio")
    partial_sum_ns: float = _unit("ns/element")
    partial_sum_doubling_ns: float = _unit("ns/element")
    interleaved_ratio: float = _unit("ratio")
    interleaved_run: float = _unit("sticks")
    interleaved_run_large_lx: float = _unit("sticks")
    split_area: float = _unit("elements")
    split_long_ns: float = _unit("ns/element")
    split_long_from: float = _unit("cores")
    split_short_ns: float = _unit("ns/element")
    split_short_from: float = _unit("cores")
    tile_height: float = _unit("rows")
    tile_height_ratio: float = _unit("ratio")
    low_tile_height: float = _unit("rows")
    low_tile_columns: float = _unit("elements")
    low_tile_column_power: float = _unit("exponent")
    run_ns: float = _unit("ns")
    copy_out_us: Points = field(metadata={"unit": "B, us"})
    memset_us: Points = field(metadata={"unit": "B, us"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Errors of the calibrated model by class of operation: two of three measured rows, which no
    constant was fitted on, are within this of the modelled time, relative.
    """

    pointwise: float = _unit("ratio")
    chain: float = _unit("ratio")
    few_cores: float = _unit("ratio")
    broadcast: float = _unit("ratio")
    reduction: float = _unit("ratio")
    transpose: float = _unit("ratio")
    concatenation: float = _unit("ratio")
    tiled: float = _unit("ratio")
    product: float = _unit("ratio")
    batched_product: float = _unit("ratio")
    product_8_bit: float = _unit("ratio")
    copy: float = _unit("ratio")
    memset: float = _unit("ratio")


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine: its name and constants. Frozen; any thread may read it."""

    name: str
    hardware: Hardware
    calibration: Calibration
    spread: Spread
    constants: Mapping[str, MachineConstant]

    def with_values(self, values: Mapping[str, Value], source: str = "given") -> MachineSpec:
        """This machine with other constants, by name, e.g. ``{"hardware.cores": 16}``.

        They are of kind guessed. Raises KeyError for a name that is none.
        """
        constants = dict(self.constants)
        for name, value in values.items():
            constants[name] = replace(constants[name], value=value, kind="guessed", source=source)
        return make_machine(self.name, constants)


GROUPS: Mapping[str, type[Hardware] | type[Calibration] | type[Spread]] = {
    "hardware": Hardware,
    "calibration": Calibration,
    "spread": Spread,
}


def make_machine(name: str, constants: Mapping[str, MachineConstant]) -> MachineSpec:
    """A machine of complete constants; :mod:`.machine_file` checks those of a file."""
    values: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for path, constant in constants.items():
        group, _, key = path.partition(".")
        values[group][key] = constant.value
    return MachineSpec(
        name,
        Hardware(**values["hardware"]),
        Calibration(**values["calibration"]),
        Spread(**values["spread"]),
        dict(constants),
    )


SHIPPED = "spyre.toml"
KEYS = ("value", "unit", "kind", "source")
FIT_KEYS = ("fitted_on", "rows", "spread")


@cache
def default_machine() -> MachineSpec:
    """The shipped machine, read once per process."""
    text = resources.files("spyre.hw.cost").joinpath(SHIPPED).read_text(encoding="utf-8")
    name, constants = _read_machine(text, SHIPPED)
    return make_machine(name, constants)


def load_machine(path: str | Path) -> MachineSpec:
    """The machine of a file over the shipped one.

    Raises MachineError: SPY760 (not readable, no TOML), SPY761 (unknown or missing key), SPY762
    (value, unit, kind or source).
    """
    try:
        text = read_regular(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(
            "SPY760", "the machine file cannot be read", JsonLocation(str(path)), found=str(error)
        ) from error
    name, constants = _read_machine(text, str(path))
    return make_machine(name, {**default_machine().constants, **constants})


def _read_machine(text: str, file: str) -> tuple[str, dict[str, MachineConstant]]:
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also numbers too long for Python
        raise MachineError(
            "SPY760", "the machine file is no TOML", JsonLocation(file), found=str(error)
        ) from error
    _check_keys(document, ("name", *GROUPS), ("name",), file, "$")
    if not isinstance(document["name"], str):
        raise _wrong_constant(file, "$.name", "a name in quotes", document["name"])
    return document["name"], dict(_constants(document, file))


def _constants(document: Mapping[str, Any], file: str) -> Iterator[tuple[str, MachineConstant]]:
    for group, owner in GROUPS.items():
        known = {each.name: each for each in fields(owner)}
        tables = document.get(group, {})
        _check_keys(tables, tuple(known), (), file, f"$.{group}")
        for key, table in tables.items():
            path = f"$.{group}.{key}"
            _check_keys(table, (*KEYS, *FIT_KEYS), KEYS, file, path)
            unit, kind = known[key].metadata["unit"], str(known[key].type)
            yield f"{group}.{key}", _constant(table, unit, kind, file, path)


def _constant(
    table: Mapping[str, Any], unit: str, kind: str, file: str, path: str
) -> MachineConstant:
    if table["unit"] != unit:
        raise _wrong_constant(file, f"{path}.unit", f'"{unit}"', table["unit"])
    if table["kind"] not in KINDS:
        raise _wrong_constant(file, f"{path}.kind", ", ".join(KINDS), table["kind"])
    source = table["source"]
    if not isinstance(source, str) or not source.strip():
        raise _wrong_constant(file, f"{path}.source", "where the value is from", source)
    return MachineConstant(
        _checked_value(table["value"], kind, file, f"{path}.value"),
        unit,
        table["kind"],
        source,
        str(table.get("fitted_on", "")),
        cast("int", _checked_value(table.get("rows", 0), "int", file, f"{path}.rows")),
        cast("float", _checked_value(table.get("spread", 0), "float", file, f"{path}.spread")),
    )


def _checked_value(value: object, kind: str, file: str, path: str) -> Value:
    if kind == "Points":
        return _points(value, file, path)
    # TOML's true is an int to Python.
    if isinstance(value, bool) or not isinstance(value, int if kind == "int" else (int, float)):
        raise _wrong_constant(file, path, "a whole number" if kind == "int" else "a number", value)
    if not (isfinite(value) and value >= 0):
        raise _wrong_constant(file, path, "a finite number, not negative", value)
    return value if kind == "int" else float(value)


def machine_text(name: str, constants: Mapping[str, MachineConstant]) -> str:
    """The text of a machine file with these constants."""
    tables = [f"# Constants of the cost models\n\nname = {json.dumps(name)}\n"]
    for path, constant in constants.items():
        tables.append(f"\n[{path}]\n")
        for key in (*KEYS, *FIT_KEYS):
            text = json.dumps(getattr(constant, key), ensure_ascii=False)
            if key in KEYS or getattr(constant, key):
                whole = text if key == "source" else re.sub(r"\.0\b", "", text)
                tables.append(f"{key} = {whole}\n")
    return "".join(tables)


def _points(rows: object, file: str, path: str) -> Value:
    expected = "[[x, y], ...] with rising x"
    if not isinstance(rows, list) or not rows:
        raise _wrong_constant(file, path, expected, rows)
    for row in rows:
        numbers = isinstance(row, list) and all(type(v) in (int, float) for v in row)
        if not numbers or len(row) != 2:
            raise _wrong_constant(file, path, expected, row)
    points = tuple((float(x), float(y)) for x, y in rows)
    if any(a[0] >= b[0] for a, b in pairwise(points)):
        raise _wrong_constant(file, path, expected, rows)
    return points


def _check_keys(
    table: object, known: tuple[str, ...], needed: tuple[str, ...], file: str, path: str
) -> None:
    if not isinstance(table, dict):
        raise _wrong_constant(file, path, "a table", table)
    for key in table:
        if key not in known:
            raise _unknown_key(file, f"{path}.{key}", f"one of {', '.join(known)}", key)
    for key in needed:
        if key not in table:
            raise _unknown_key(file, path, f"a key {key}", ", ".join(table) or "none")


def _unknown_key(file: str, path: str, expected: str, found: str) -> MachineError:
    return MachineError(
        "SPY761",
        "a machine file has a key it must not have, or lacks one",
        JsonLocation(file, path),
        expected=expected,
        found=found,
    )


def _wrong_constant(file: str, path: str, expected: str, found: object) -> MachineError:
    return MachineError(
        "SPY762",
        "a constant of a machine file is wrong",
        JsonLocation(file, path),
        expected=expected,
        found=repr(found),
    )
