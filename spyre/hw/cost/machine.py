"""The machine of a cost model: constants from a TOML file, ``spyre.toml`` by default.

Every constant has a value, a unit, its origin (``source``) and how it is known (``kind``). Values
are plain numbers on :class:`Hardware` and :class:`Calibration`; ``MachineSpec.constants`` has the
whole record by name, such as ``hardware.cores``. Constants that a file leaves out are those of the
shipped file. Its entries must be known constants, with the unit and the type of the shipped ones.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec

from spyre.errors import JsonLocation, MachineError
from spyre.files import FieldError, convert_fields, read_regular

Number = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Points = Annotated[tuple[tuple[float, float], ...], msgspec.Meta(min_length=1)]
"""A function by its values: (x, y) with rising x."""
Value = int | float | Points

ConstantKind = Literal["stated", "derived", "measured", "guessed"]
"""How a constant is known."""
KINDS: tuple[str, ...] = get_args(ConstantKind)


class MachineConstant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One constant of a machine file. ``fitted_on``: classes of measured rows; ``rows``: how many
    of them it was fitted on, ``spread``: their median error, relative.
    """

    value: Any
    unit: str
    kind: ConstantKind
    source: str
    fitted_on: str = ""
    rows: Count = 0
    spread: Number = 0.0


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """Published properties of the hardware, in the units of ``spyre.toml``."""

    cores: Count
    corelets: Count
    clock_ghz: Number
    pt_macs_per_cycle: Number
    pt_speed_8_bit_float: Number
    pt_speed_8_bit_integer: Number
    pt_speed_4_bit_integer: Number
    sfu_lanes: Number
    transcendental_cycles: Number
    lx_bytes: Count
    lx_planner_bytes: Count
    lx_fraction: Number
    lx_bytes_per_cycle: Number
    hbm_peak_gbps: Number
    hbm_bytes: Count
    ring_bytes_per_cycle: Number
    ring_directions: Count
    ring_hop_cycles: Number
    pcie_gbps: Number
    launch_us: Number
    card_link_gbps: Number
    card_step_us: Number
    card_add_gbps: Number

    def format_speed(self, data_format: str) -> float:
        """Multiply-adds of ``data_format`` in the time of one of DL16."""
        if "FP8" in data_format:
            return self.pt_speed_8_bit_float
        speeds = {"INT8": self.pt_speed_8_bit_integer, "INT4": self.pt_speed_4_bit_integer}
        return speeds.get(data_format.removeprefix("SEN").removeprefix("U"), 1.0)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of the calibrated model; ``docs/cost-model.md`` lists their uses."""

    stream_gbps: Number
    turnaround_ns_per_byte: Number
    scalar_turnaround: Number
    valley_ratio: Number
    valley_rows: Number
    dependent_ratio: Number
    broadcast_gbps: Number
    row_reduction_floor_gbps: Number
    row_reduction_extra_gbps: Number
    row_reduction_decay_rows: Number
    column_reduction_gbps: Number
    transpose_gbps: Number
    concatenation_gbps: Number
    concatenation_per_column_doubling_gbps: Number
    concatenation_per_row_doubling_gbps: Number
    concatenation_floor_gbps: Number
    pointwise_core_share: Points
    broadcast_core_share: Points
    reduction_core_share: Points
    transpose_core_share: Points
    reduction_elements_per_ns: Number
    reread_ratio: Number
    product_gbps: Number
    product_turnaround_ns_per_byte: Number
    product_turnaround_cores: Number
    pt_macs_per_ns: Number
    pt_fill_rows: Number
    multicast_cores: Number
    multicast_power: Number
    unshared_ratio: Number
    accumulator_rows: Number
    accumulator_lx_fraction: Number
    partial_sum_ns: Number
    partial_sum_doubling_ns: Number
    interleaved_ratio: Number
    interleaved_run: Number
    interleaved_run_large_lx: Number
    split_area: Number
    split_long_ns: Number
    split_long_from: Number
    split_short_ns: Number
    split_short_from: Number
    tile_height: Number
    tile_height_ratio: Number
    low_tile_height: Number
    low_tile_columns: Number
    low_tile_column_power: Number
    run_ns: Number
    copy_latency_us: Number
    copy_cached_bytes: Number
    copy_missed_gbps: Number
    memset_latency_us: Number
    memset_free_bytes: Number
    memset_gbps: Number


class MachineSpec(msgspec.Struct, frozen=True):
    """A machine: its name and constants. Frozen; any thread may read it.

    ``spread``: errors of the calibrated model by class of operation: two of three measured rows,
    which no constant was fitted on, are within this of the modelled time, relative.
    """

    name: str
    hardware: Hardware
    calibration: Calibration
    spread: Mapping[str, float]
    constants: Mapping[str, MachineConstant]

    def with_values(self, values: Mapping[str, Value], source: str = "given") -> MachineSpec:
        """This machine with other constants, by name, e.g. ``{"hardware.cores": 16}``.

        They are of kind guessed. Raises KeyError for a name that is none.
        """
        changed = {
            name: msgspec.structs.replace(
                self.constants[name], value=value, kind="guessed", source=source
            )
            for name, value in values.items()
        }
        return make_machine(self.name, {**self.constants, **changed})


GROUPS: Mapping[str, Any] = {
    "hardware": Hardware,
    "calibration": Calibration,
    "spread": dict[str, Number],
}


def make_machine(name: str, constants: Mapping[str, MachineConstant]) -> MachineSpec:
    """A machine of complete constants."""
    values: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for path, constant in constants.items():
        group, _, key = path.partition(".")
        values[group][key] = constant.value
    hardware, calibration = Hardware(**values["hardware"]), Calibration(**values["calibration"])
    return MachineSpec(name, hardware, calibration, values["spread"], dict(constants))


SHIPPED = "spyre.toml"


@cache
def default_machine() -> MachineSpec:
    """The shipped machine, read once per process."""
    text = resources.files("spyre.hw.cost").joinpath(SHIPPED).read_text(encoding="utf-8")
    return _read_machine(text, SHIPPED, {})


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
    return _read_machine(text, str(path), default_machine().constants)


class _MachineFile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    hardware: dict[str, Any] = {}
    calibration: dict[str, Any] = {}
    spread: dict[str, Any] = {}


def _read_machine(text: str, file: str, known: Mapping[str, MachineConstant]) -> MachineSpec:
    """The machine of a text over ``known`` constants; their names and units are the only ones."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also numbers too long for Python
        raise MachineError(
            "SPY760", "the machine file is no TOML", JsonLocation(file), found=str(error)
        ) from error
    read, constants = _converted(document, _MachineFile, file, "$"), dict(known)
    for group, owner in GROUPS.items():
        for key, table in getattr(read, group).items():
            name, path = f"{group}.{key}", f"$.{group}.{key}"
            if known and name not in known:
                raise _wrong("SPY761", file, path, "a constant of the shipped machine", key)
            constant = _converted(table, MachineConstant, file, path)
            if known and constant.unit != known[name].unit:
                unit = repr(known[name].unit)
                raise _wrong("SPY762", file, f"{path}.unit", unit, repr(constant.unit))
            if not constant.source.strip():
                raise _wrong("SPY762", file, f"{path}.source", "where the value is from", "''")
            value = _checked_value(constant.value, _type_of(owner, key), file, f"{path}.value")
            constants[name] = msgspec.structs.replace(constant, value=value)
    return make_machine(read.name, constants)


def _type_of(owner: Any, key: str) -> Any:
    if owner is GROUPS["spread"]:
        return Number
    return next(field.type for field in msgspec.structs.fields(owner) if field.name == key)


def _checked_value(value: object, kind: Any, file: str, path: str) -> Value:
    found: Value = _converted(value, kind, file, path)
    if isinstance(found, tuple) and any(a[0] >= b[0] for a, b in pairwise(found)):
        raise _wrong("SPY762", file, path, "[[x, y], ...] with rising x", repr(value))
    return found


Kind = TypeVar("Kind")


def _converted(value: Any, kind: type[Kind], file: str, path: str) -> Kind:
    """``value`` as a ``kind``; MachineError SPY761 for a key too many or too few, else SPY762."""
    try:
        return convert_fields(value, kind)
    except FieldError as error:
        code, found = ("SPY761", str) if error.is_key else ("SPY762", repr)
        place = f"{path}{error.path}"
        raise _wrong(code, file, place, error.expected, found(error.found)) from None


MESSAGES = {
    "SPY761": "a machine file has a key it must not have, or lacks one",
    "SPY762": "a constant of a machine file is wrong",
}


def _wrong(code: str, file: str, path: str, expected: str, found: str) -> MachineError:
    return MachineError(
        code, MESSAGES[code], JsonLocation(file, path), expected=expected, found=found
    )


def machine_text(name: str, constants: Mapping[str, MachineConstant]) -> str:
    """The text of a machine file with these constants."""
    tables = [f"# Constants of the cost models\n\nname = {json.dumps(name)}\n"]
    for path, constant in constants.items():
        tables.append(f"\n[{path}]\n")
        for key, value in msgspec.structs.asdict(constant).items():
            text = json.dumps(value, ensure_ascii=False)
            if value or key in MachineConstant.__struct_fields__[:4]:
                whole = text if key == "source" else re.sub(r"\.0\b", "", text)
                tables.append(f"{key} = {whole}\n")
    return "".join(tables)
