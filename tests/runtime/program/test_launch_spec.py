"""launch_spec.json: reading, writing, and errors that name their place."""

from __future__ import annotations

import json
import os

import pytest

from spyre.errors import BundleError, JsonLocation
from spyre.layout import SpyreTensorLayout
from spyre.runtime.program.launch_spec import (
    ArgumentEntry,
    LaunchSpec,
    Role,
    SymbolKind,
    find_launch_spec,
    format_launch_spec,
    read_launch_spec,
)
from spyre.runtime.program.plan_cache import load_compiled
from tests.conftest import accepted_files
from tests.runtime import bundles
from tests.runtime.launch_specs import write_launch_spec

LAYOUT = SpyreTensorLayout((2, 4, 64), (64, 128, 1), "SEN169_FP16")
SPEC = LaunchSpec(
    version=1,
    kernel_name="sdsc_fused_add_0",
    pool_size=4096,
    args=(
        ArgumentEntry(0, Role.INPUT, (4, 128), "float16", LAYOUT),
        ArgumentEntry(1, Role.INPUT_OUTPUT, ("s0", 128), "float16"),
        ArgumentEntry(2, Role.OUTPUT, (), "int64"),
    ),
    symbol_kinds=(SymbolKind("pool"), SymbolKind("kernel_slice", arg_index=1, core_idx=3)),
    symbols={"s0": {}},
)


def write_json(tmp_path, change=lambda data: None):
    data = json.loads(format_launch_spec(SPEC))
    change(data)
    path = tmp_path / "launch_spec.json"
    path.write_text(json.dumps(data))
    return path


def set_field(*path, value):
    def change(data):
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def test_written_file_reads_back(tmp_path):
    write_launch_spec(tmp_path / "launch_spec.json", SPEC)
    assert read_launch_spec(tmp_path / "launch_spec.json") == SPEC
    assert [p.name for p in tmp_path.iterdir()] == ["launch_spec.json"]


def test_roles():
    assert [a.role for a in SPEC.args] == [Role.INPUT, Role.INPUT_OUTPUT, Role.OUTPUT]
    assert SPEC.args[0].layout is not None
    assert SPEC.args[0].layout == LAYOUT


def test_optional_keys_are_left_out():
    text = format_launch_spec(LaunchSpec(version=1, kernel_name="k", args=()))
    assert set(json.loads(text)) == {
        "version",
        "kernel_name",
        "args",
        "pool_size",
        "bundle_symbolic_args",
    }


def test_unknown_keys_are_ignored(tmp_path):
    def change(data):
        data["colour"] = "blue"
        data["args"][0]["alignment"] = 128
        data["args"][0]["layout"]["padding"] = [0]

    assert read_launch_spec(write_json(tmp_path, change)) == SPEC


def test_newer_version_is_refused_before_anything_else(tmp_path):
    def change(data):
        data["version"] = 2
        data["args"] = "moved elsewhere"

    with pytest.raises(BundleError, match="SPY303") as caught:
        read_launch_spec(write_json(tmp_path, change))
    assert caught.value.location == JsonLocation(str(tmp_path / "launch_spec.json"), "$.version")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (set_field("args", 1, "role", value="inout"), "$.args[1].role"),
        (set_field("args", 0, "shape", 1, value=1.5), "$.args[0].shape[1]"),
        (set_field("pool_size", value="big"), "$.pool_size"),
        (set_field("pool_size", value=-128), "$.pool_size"),
        (set_field("args", 0, "arg_index", value=-1), "$.args[0].arg_index"),
        (set_field("args", 2, "arg_index", value=1), "$.args[2].arg_index"),
        (set_field("args", 0, "layout", "stride_map", value=[1]), "$.args[0].layout"),
        (set_field("args", 0, "layout", "device_dtype", value="FP17"), "$.args[0].layout"),
        (lambda data: data.pop("kernel_name"), "$"),
        (lambda data: data["args"][2].pop("dtype"), "$.args[2]"),
    ],
)
def test_schema_errors_name_their_place(tmp_path, change, path):
    with pytest.raises(BundleError, match="SPY302") as caught:
        read_launch_spec(write_json(tmp_path, change))
    assert caught.value.location == JsonLocation(str(tmp_path / "launch_spec.json"), path)


def test_not_json(tmp_path):
    path = tmp_path / "launch_spec.json"
    path.write_text("version: 1")
    with pytest.raises(BundleError, match="SPY302"):
        read_launch_spec(path)


def test_deep_nesting(tmp_path):
    path = tmp_path / "launch_spec.json"
    path.write_text('{"args":' * 100_000)
    with pytest.raises(BundleError, match="SPY302"):
        read_launch_spec(path)


def test_a_spec_that_cannot_be_read_is_no_missing_one(tmp_path):
    bundles.abs_of_sum(tmp_path)
    (tmp_path / "launch_spec.json").write_text("{}")
    os.truncate(tmp_path / "launch_spec.json", 1 << 43)  # more than there is memory
    with pytest.raises(BundleError, match="SPY301"):
        load_compiled(tmp_path)


def test_missing_file(tmp_path):
    with pytest.raises(BundleError, match="SPY301"):
        read_launch_spec(tmp_path / "launch_spec.json")


def test_find(tmp_path):
    assert find_launch_spec(tmp_path) is None
    inner = tmp_path / "spyreCodeDir"
    inner.mkdir()
    write_launch_spec(inner / "launch_spec.json", SPEC)
    assert find_launch_spec(tmp_path) == inner / "launch_spec.json"
    write_launch_spec(tmp_path / "launch_spec.json", SPEC)
    assert find_launch_spec(tmp_path) == tmp_path / "launch_spec.json"


@pytest.mark.shared
def test_real_files_survive_a_round_trip(shared_dir, tmp_path):
    paths = accepted_files(shared_dir, "**/launch_spec.json")
    assert len(paths) >= 240
    for path in paths:
        spec = read_launch_spec(path)
        write_launch_spec(tmp_path / "launch_spec.json", spec)
        assert read_launch_spec(tmp_path / "launch_spec.json") == spec
        original = json.loads(path.read_text())
        assert json.loads(format_launch_spec(spec)) == original, path
