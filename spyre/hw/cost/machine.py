"""The machine of a cost model: constants from a TOML file, ``spyre.toml`` by default.

The shipped file lists all constants, with value, unit, origin (``source``) and how each is known
(``kind``). Numbers are attributes of ``MachineSpec.hardware`` and ``.calibration``;
``MachineSpec.constants`` has the whole record by name, such as ``hardware.cores``. Constants that
another file leaves out are the shipped ones; it can have no others, and no other units.
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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar, get_args

import msgspec

from spyre.codes import diagnostic_codes
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


class Constants(SimpleNamespace):
    """Numbers by name, those of one table of ``spyre.toml``."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} is a constant")

    if TYPE_CHECKING:

        def __getattribute__(self, name: str, /) -> float: ...


class Hardware(Constants):
    """Published properties of the hardware."""

    if TYPE_CHECKING:
        cores: int
        lx_bytes: int
        hbm_bytes: int

    def format_speed(self, data_format: str) -> float:
        """Multiply-adds of ``data_format`` in the time of one of DL16."""
        if "FP8" in data_format:
            return self.pt_speed_8_bit_float
        speeds = {"INT8": self.pt_speed_8_bit_integer, "INT4": self.pt_speed_4_bit_integer}
        return speeds.get(data_format.removeprefix("SEN").removeprefix("U"), 1.0)

    def pt_per_ns(self, data_format: str) -> float:
        """Multiply-adds of a core's pt array per nanosecond."""
        return self.pt_macs_per_cycle * self.clock_ghz * self.format_speed(data_format)

    @property
    def sfu_per_ns(self) -> float:
        """Elements of a core's vector units per nanosecond."""
        return self.corelets * self.sfu_lanes * self.clock_ghz


class MachineSpec(msgspec.Struct, frozen=True):
    """A machine: its name and constants. Frozen; any thread may read it.

    ``calibration``: of the calibrated model; ``docs/cost-model.md`` lists their uses.
    ``core_share``: part of the memory interface that a number of cores reaches, by class.
    ``spread``: errors of the calibrated model by class of operation: two of three measured rows,
    which no constant was fitted on, are within this of the modelled time, relative.
    """

    name: str
    hardware: Hardware
    calibration: Constants
    core_share: Mapping[str, Points]
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
    "calibration": Constants,
    "core_share": dict,
    "spread": dict,
}


def make_machine(name: str, constants: Mapping[str, MachineConstant]) -> MachineSpec:
    """A machine of complete constants."""
    values: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for path, constant in constants.items():
        group, _, key = path.partition(".")
        values[group][key] = constant.value
    groups = {group: made(**values[group]) for group, made in GROUPS.items()}
    return MachineSpec(name, **groups, constants=dict(constants))


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
        _wrong("SPY760", str(path), "$", "", str(error))
    return _read_machine(text, str(path), default_machine().constants)


class _MachineFile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    hardware: dict[str, Any] = {}
    calibration: dict[str, Any] = {}
    core_share: dict[str, Any] = {}
    spread: dict[str, Any] = {}


def _read_machine(text: str, file: str, known: Mapping[str, MachineConstant]) -> MachineSpec:
    """The machine of a text over ``known`` constants, all but in the shipped file."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also numbers too long for Python
        _wrong("SPY760", file, "$", "", str(error))
    read, constants = _converted(document, _MachineFile, file, "$"), dict(known)
    for group in GROUPS:
        for key, table in getattr(read, group).items():
            name, path = f"{group}.{key}", f"$.{group}.{key}"
            if known and name not in known:
                _wrong("SPY761", file, path, "a constant of the shipped machine", key)
            constants[name] = _constant(table, known.get(name), file, path)
    return make_machine(read.name, constants)


COUNTED = ("cores", "corelets/core", "B", "B/core", "directions")
"""Units of hardware constants that are whole numbers."""


def _constant(
    table: object, known: MachineConstant | None, file: str, path: str
) -> MachineConstant:
    constant = _converted(table, MachineConstant, file, path)
    if known is not None and constant.unit != known.unit:
        _wrong("SPY762", file, f"{path}.unit", repr(known.unit), repr(constant.unit))
    if not constant.source.strip():
        _wrong("SPY762", file, f"{path}.source", "where the value is from", "''")
    group = path.split(".")[1]
    whole = group == "hardware" and constant.unit in COUNTED
    kind: Any = Points if group == "core_share" else Count if whole else Number
    value = _converted(constant.value, kind, file, f"{path}.value")
    if isinstance(value, tuple) and any(a[0] >= b[0] for a, b in pairwise(value)):
        expected = "[[x, y], ...] with rising x"
        _wrong("SPY762", file, f"{path}.value", expected, repr(constant.value))
    return msgspec.structs.replace(constant, value=value)


Kind = TypeVar("Kind")


def _converted(value: Any, kind: type[Kind], file: str, path: str) -> Kind:
    """``value`` as a ``kind``; MachineError SPY761 for a key too many or too few, else SPY762."""
    try:
        return convert_fields(value, kind)
    except FieldError as error:
        code, shown = ("SPY761", str) if error.is_key else ("SPY762", repr)
        _wrong(code, file, f"{path}{error.path}", error.expected, shown(error.found))


def _wrong(code: str, file: str, path: str, expected: str, found: str) -> NoReturn:
    title, place = diagnostic_codes()[code].title, JsonLocation(file, path)
    raise MachineError(code, title, place, expected=expected, found=found)


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
