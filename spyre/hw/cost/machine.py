"""The machine a cost model speaks of: constants read from a TOML file, ``spyre.toml`` by default.

Every constant of a file has a value, a unit, where it is from (``source``) and how it is known
(``kind``). Values are plain numbers on :class:`Hardware` and :class:`Calibration`;
``MachineSpec.constants`` has the whole record by name, such as ``hardware.cores``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

Points = tuple[tuple[float, float], ...]
"""A function by its values: (x, y) with rising x."""
Value = int | float | Points


class Kind(StrEnum):
    """How a constant is known."""

    STATED = "stated"
    DERIVED = "derived"
    MEASURED = "measured"
    GUESSED = "guessed"


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of a machine file."""

    value: Value
    unit: str
    kind: Kind
    source: str


def _unit(name: str) -> Any:
    return field(metadata={"unit": name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the hardware is said to do; units are those of the file."""

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
    lx_bytes_per_cycle: float = _unit("B/cycle/corelet")
    hbm_peak_gbps: float = _unit("GB/s")
    hbm_bytes: int = _unit("B")
    ring_bytes_per_cycle: float = _unit("B/cycle/link")
    ring_directions: int = _unit("directions")
    ring_hop_cycles: float = _unit("cycles")
    pcie_gbps: float = _unit("GB/s")
    launch_us: float = _unit("us")

    def format_speed(self, data_format: str) -> float:
        """Multiply-adds of ``data_format`` in the time of one of DL16."""
        if "FP8" in data_format:
            return self.pt_speed_8_bit_float
        speeds = {"INT8": self.pt_speed_8_bit_integer, "INT4": self.pt_speed_4_bit_integer}
        return speeds.get(data_format.removeprefix("SEN").removeprefix("U"), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Terms of the calibrated model (``docs/cost-model.md`` says which is used where)."""

    stream_gbps: float = _unit("GB/s")
    turnaround_ns_per_byte: float = _unit("ns/B")
    scalar_turnaround: float = _unit("ratio")
    core_share: Points = field(metadata={"unit": "cores, ratio"})
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
    pt_macs_per_ns: float = _unit("MAC/ns/core")
    pt_fill_rows: float = _unit("rows")
    batched_macs_per_ns: float = _unit("MAC/ns/core")
    batched_from: int = _unit("batches")
    batched_from_cores: int = _unit("cores")
    hidden_ratio: float = _unit("ratio")
    reread_ratio: float = _unit("ratio")
    spill_area: float = _unit("elements")
    spill_per_doubling: float = _unit("ratio")
    spill_limit: float = _unit("ratio")
    split_area: float = _unit("elements")
    split_long_ns: float = _unit("ns/element")
    split_long_from: float = _unit("cores")
    split_short_ns: float = _unit("ns/element")
    split_short_from: float = _unit("cores")
    partial_sum_ns: float = _unit("ns/element")
    tile_height: float = _unit("rows")
    tile_height_ratio: float = _unit("ratio")
    low_tile_height: float = _unit("rows")
    low_tile_columns: float = _unit("elements")
    low_tile_column_power: float = _unit("exponent")
    run_ns: float = _unit("ns")


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """A machine: its name and constants. Frozen; any thread may read it."""

    name: str
    hardware: Hardware
    calibration: Calibration
    constants: Mapping[str, Constant]

    def with_values(self, values: Mapping[str, Value], source: str = "given") -> MachineSpec:
        """This machine with other constants, by name, e.g. ``{"hardware.cores": 16}``.

        They are of kind guessed. Raises KeyError for a name that is none.
        """
        constants = dict(self.constants)
        for name, value in values.items():
            constants[name] = replace(
                constants[name], value=value, kind=Kind.GUESSED, source=source
            )
        return make_machine(self.name, constants)


GROUPS: Mapping[str, type[Hardware] | type[Calibration]] = {
    "hardware": Hardware,
    "calibration": Calibration,
}


def make_machine(name: str, constants: Mapping[str, Constant]) -> MachineSpec:
    """A machine of complete constants; :mod:`.machine_file` checks those of a file."""
    values: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for path, constant in constants.items():
        group, _, key = path.partition(".")
        values[group][key] = constant.value
    return MachineSpec(
        name,
        Hardware(**values["hardware"]),
        Calibration(**values["calibration"]),
        dict(constants),
    )
