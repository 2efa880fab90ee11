"""Machine files: descriptions of all constants, and refused contents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import spyre
from spyre.errors import MachineError
from spyre.hw import spec
from spyre.hw.cost.machine import (
    KINDS,
    Hardware,
    default_machine,
    load_machine,
    machine_text,
)

CORES = '[hardware.cores]\nvalue = 16\nunit = "cores"\nkind = "guessed"\nsource = "half a card"\n'
SHARE = (
    "[core_share.pointwise]\nvalue = {}\n"
    'unit = "cores, ratio"\nkind = "guessed"\nsource = "a test"\n'
)


def write(directory: Path, text: str) -> Path:
    path = directory / "card.toml"
    path.write_text(f'name = "card"\n{text}')
    return path


def test_every_constant_has_value_unit_kind_and_source():
    machine = default_machine()
    for name, constant in machine.constants.items():
        assert constant.value is not None, name
        assert constant.unit, name
        assert constant.kind in KINDS, name
        assert len(constant.source) > 3, name


def test_models_use_all_constants_and_no_others():
    used = set()
    for path in Path(spyre.__file__).parent.rglob("*.py"):
        found = re.findall(r"\b(cal|hw|hardware|calibration|self)\.(\w+)", path.read_text())
        used |= {
            ("calibration" if a in ("cal", "calibration") else "hardware", b) for a, b in found
        }
    for name in default_machine().constants:
        group, _, key = name.partition(".")
        if group in ("hardware", "calibration"):
            assert (group, key) in used, name
    models = (Path(spyre.__file__).parent / "hw/cost/models.py").read_text()
    for owner, key in re.findall(r"(?<!\.)\b(cal|hw)\.(\w+)", models):
        group = {"cal": "calibration", "hw": "hardware"}[owner]
        assert f"{group}.{key}" in default_machine().constants or hasattr(Hardware, key), key


def test_constants_cannot_be_changed():
    with pytest.raises(AttributeError, match="clock_ghz"):
        default_machine().hardware.clock_ghz = 2.0


def test_the_card_is_the_simulated_one():
    hardware = default_machine().hardware
    assert (hardware.cores, hardware.lx_bytes, hardware.hbm_bytes) == (
        spec.CORES,
        spec.LX_BYTES,
        spec.HBM_BYTES,
    )


def test_the_peak_is_the_stated_one():
    hardware = default_machine().hardware
    flops = 2 * hardware.cores * hardware.pt_macs_per_cycle * hardware.clock_ghz
    assert flops == pytest.approx(98_304)


@pytest.mark.parametrize(
    ("name", "speed"),
    [("SEN169_FP16", 1), ("SEN143_FP8", 2), ("SENINT8", 4), ("SENINT4", 8), ("IEEE_FP32", 1)],
)
def test_speeds_of_formats(name: str, speed: float):
    assert default_machine().hardware.format_speed(name) == speed


def test_a_file_over_the_shipped_one(tmp_path: Path):
    machine = load_machine(write(tmp_path, CORES))
    assert (machine.name, machine.hardware.cores) == ("card", 16)
    assert machine.constants["hardware.cores"].source == "half a card"
    assert machine.calibration == default_machine().calibration


def test_values_given_from_python():
    machine = default_machine().with_values({"hardware.cores": 8})
    assert machine.hardware.cores == 8
    assert machine.constants["hardware.cores"].kind == "guessed"
    assert default_machine().hardware.cores == 32
    with pytest.raises(KeyError):
        default_machine().with_values({"hardware.legs": 4})


WRONG = {
    "no TOML": ("= 3", "SPY760", "$"),
    "deep nesting": ("a = " + "[" * 10_000, "SPY760", "$"),
    "unknown group": ("[software.cores]\nvalue = 1\n", "SPY761", "$.software"),
    "unknown constant": (CORES.replace("cores]", "legs]"), "SPY761", "$.hardware.legs"),
    "unknown key": (CORES + 'colour = "red"\n', "SPY761", "$.hardware.cores.colour"),
    "missing key": (CORES.replace('kind = "guessed"\n', ""), "SPY761", "$.hardware.cores"),
    "unit": (CORES.replace('"cores"', '"GB/s"'), "SPY762", "$.hardware.cores.unit"),
    "kind": (CORES.replace("guessed", "hoped"), "SPY762", "$.hardware.cores.kind"),
    "source": (CORES.replace("half a card", " "), "SPY762", "$.hardware.cores.source"),
    "text": (CORES.replace("16", '"16"'), "SPY762", "$.hardware.cores.value"),
    "truth": (CORES.replace("16", "true"), "SPY762", "$.hardware.cores.value"),
    "fraction": (CORES.replace("16", "16.5"), "SPY762", "$.hardware.cores.value"),
    "negative": (CORES.replace("16", "-1"), "SPY762", "$.hardware.cores.value"),
    "infinite": (
        CORES.replace("cores", "clock_ghz", 1).replace('"cores"', '"GHz"').replace("16", "inf"),
        "SPY762",
        "$.hardware.clock_ghz.value",
    ),
    "no table": ("hardware = 3\n", "SPY762", "$.hardware"),
    "no constant": ("[hardware]\ncores = 3\n", "SPY762", "$.hardware.cores"),
    "no points": (SHARE.format("3"), "SPY762", "$.core_share.pointwise.value"),
    "short point": (
        SHARE.format("[[1]]"),
        "SPY762",
        "$.core_share.pointwise.value[0]",
    ),
    "falling": (
        SHARE.format("[[2, 1], [1, 1]]"),
        "SPY762",
        "$.core_share.pointwise.value",
    ),
}


@pytest.mark.parametrize(("text", "code", "path"), WRONG.values(), ids=WRONG)
def test_wrong_files(tmp_path: Path, text: str, code: str, path: str):
    file = write(tmp_path, text)
    with pytest.raises(MachineError) as caught:
        load_machine(file)
    assert caught.value.code == code
    assert str(caught.value.location) == f"{file} at {path}"


def test_no_name_and_no_file(tmp_path: Path):
    path = tmp_path / "card.toml"
    with pytest.raises(MachineError, match="SPY760"):
        load_machine(path)
    path.write_text(CORES)
    with pytest.raises(MachineError, match="SPY761") as caught:
        load_machine(path)
    assert caught.value.finding.expected == "a key name"
    path.write_text("name = 3\n")
    with pytest.raises(MachineError, match="SPY762"):
        load_machine(path)


def test_rows_and_spread_of_fitted_constants(tmp_path: Path):
    constants = default_machine().constants
    fitted = {name for name, constant in constants.items() if constant.rows}
    assert {"calibration.product_gbps", "spread.product"} <= fitted
    for name in fitted:
        assert constants[name].kind == "measured", name
        assert f"fitted to {constants[name].rows} measured rows" in constants[name].source, name
    wrong = write(tmp_path, CORES + "rows = -1\n")
    with pytest.raises(MachineError, match="rows"):
        load_machine(wrong)


def test_a_written_machine_reads_as_itself(tmp_path: Path):
    machine = default_machine()
    path = tmp_path / "card.toml"
    path.write_text(machine_text("a card", machine.constants), encoding="utf-8")
    assert load_machine(path) == replace(machine, name="a card")


def test_points(tmp_path: Path):
    machine = load_machine(write(tmp_path, SHARE.format("[[1, 0.5], [32, 1]]")))
    assert machine.core_share["pointwise"] == ((1.0, 0.5), (32.0, 1.0))
