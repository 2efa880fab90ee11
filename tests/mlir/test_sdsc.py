"""Reading and writing SDSC files: nothing lost, every fault located, no other exception."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from spyre.errors import JsonLocation, SdscError, Severity, SpyreError
from spyre.mlir.sdsc.codec import decode_sdsc, encode_sdsc, json_path
from spyre.mlir.sdsc.inspection import inspect_sdsc
from spyre.mlir.sdsc.reader import read_operation
from spyre.mlir.sdsc.writer import write_operation
from tests.conftest import accepted_files

from .sample_bundles import SAMPLES


def add_bytes() -> bytes:
    return encode_sdsc(SAMPLES["add"]().sdscs["sdsc_0.json"])


def add_tree() -> Any:
    return json.loads(add_bytes())


@pytest.fixture(scope="module")
def real_files(shared_dir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in accepted_files(shared_dir, "**/sdsc_*.json")}


@pytest.mark.shared
def test_real_files_round_trip(real_files: dict[Path, bytes]) -> None:
    assert len(real_files) >= 626
    for path, data in real_files.items():
        sdsc = decode_sdsc(data, path.name)
        assert json.loads(encode_sdsc(sdsc)) == json.loads(data), path
        assert decode_sdsc(encode_sdsc(sdsc, indent=2), path.name) == sdsc, path


@pytest.mark.shared
def test_real_files_have_no_errors(real_files: dict[Path, bytes]) -> None:
    warnings = []
    for path, data in real_files.items():
        for finding in inspect_sdsc(decode_sdsc(data, str(path)), str(path)).findings:
            assert finding.severity is Severity.WARNING, str(finding)
            warnings.append(finding.code)
    assert set(warnings) <= {"SPY227", "SPY239"}
    assert len(warnings) < 10


def without_provenance(data: bytes) -> Any:
    """A file without the keys our writer leaves out on purpose: provenance, empty tables."""
    (body,) = json.loads(data).values()
    body.pop("debug_handle_", None)
    (dsc,) = body["dscs_"][0].values()
    for stage in dsc["dataStageParam_"].values():
        for part in ("ss_", "el_"):
            stage[part] = {k: v for k, v in stage[part].items() if not isinstance(v, dict)}
    return body


@pytest.mark.shared
def test_writer_reproduces_real_files(real_files: dict[Path, bytes]) -> None:
    """Two oddities are not copied: an unreliable maskingConstId_, element folds of no step."""
    different = []
    for path, data in real_files.items():
        operation = read_operation(decode_sdsc(data, path.name), path.name)
        written = write_operation(operation)
        assert read_operation(written, path.name) == operation, path
        if without_provenance(encode_sdsc(written)) != without_provenance(data):
            different.append(path.parent.name)
    assert sorted(different) == ["embedding_2d", "index_rows", "j_layer_norm_10x100"]


def test_unknown_keys_are_kept_and_reported() -> None:
    tree = add_tree()
    tree["0_add"]["colour"] = [{"a": 10**30}, None, 1.5, "é"]
    tree["0_add"]["dscs_"][0]["add"]["labeledDs_"][1]["shape"] = {"x": True}
    sdsc = decode_sdsc(json.dumps(tree).encode(), "f")
    assert json.loads(encode_sdsc(sdsc)) == tree
    found = [str(f.location) for f in inspect_sdsc(sdsc, "f").findings]
    assert found == ["f at $.0_add.dscs_[0].add.labeledDs_[1].shape", "f at $.0_add.colour"]


def test_numbers_may_be_strings_and_flags_booleans() -> None:
    tree = add_tree()
    body = tree["0_add"]
    body["numCoresUsed_"] = "2"
    body["coreIdToWkSlice_"]["1"]["mb"] = "1"
    dsc = body["dscs_"][0]["add"]
    dsc["N_"]["mb_"] = "32"
    dsc["coreIdsUsed_"] = ["0", "1"]
    node = dsc["scheduleTree_"][0]
    node["isStartAddrSymbolic_"] = False
    node["startAddressCoreCorelet_"]["data_"] = {"[0, 0]": 0, "[1,0]": "2048"}
    good = read_operation(decode_sdsc(add_bytes(), "f"), "f")
    inspection = inspect_sdsc(decode_sdsc(json.dumps(tree).encode(), "f"), "f")
    assert inspection.findings == ()
    assert inspection.operation == good


def test_constant_start_serves_all_cores() -> None:
    tree = add_tree()
    node = tree["0_add"]["dscs_"][0]["add"]["scheduleTree_"][1]
    starts = node["startAddressCoreCorelet_"]
    starts["dim_prop_func"][0] = {"Const": {}}
    starts["data_"] = {"[0, 0, 0]": "17179869184"}
    operation = read_operation(decode_sdsc(json.dumps(tree).encode(), "f"), "f")
    assert operation.inputs[1].starts == (17179869184, 17179869184)


def test_own_work_slices_of_a_node() -> None:
    tree = add_tree()
    node = tree["0_add"]["dscs_"][0]["add"]["scheduleTree_"][0]
    node["coordinates_"]["coreIdToWkSlice_"] = {"0": {"mb": 1, "out": 0}, "1": {"mb": 0, "out": 0}}
    tensor = read_operation(decode_sdsc(json.dumps(tree).encode(), "f"), "f").inputs[0]
    assert tensor.own_slices == {"mb": 2, "out": 1}
    assert [row["mb"] for row in tensor.own_core_slices] == [1, 0]


def test_unified_and_separate_hbm() -> None:
    tree = add_tree()
    tree["0_add"]["dscs_"][0]["add"]["scheduleTree_"][0]["nonUnifiedAllocInHBM_"] = True
    operation = read_operation(decode_sdsc(json.dumps(tree).encode(), "f"), "f")
    assert [tensor.per_core_in_hbm for tensor in operation.tensors] == [True, False, False]


def test_nine_tensors_are_too_many() -> None:
    tree = add_tree()
    dsc = tree["0_add"]["dscs_"][0]["add"]
    for index in range(3, 9):
        label = {**dsc["labeledDs_"][0], "ldsIdx_": index, "dsName_": f"Tensor{index}"}
        dsc["labeledDs_"].append(label)
    (finding,) = inspect_sdsc(decode_sdsc(json.dumps(tree).encode(), "f"), "f").findings
    assert finding.code == "SPY216"


def test_json_path() -> None:
    assert (
        json_path(("0_add", "dscs_", 0, "[0, 0]", 'a"b')) == '$.0_add.dscs_[0]["[0, 0]"]["a\\"b"]'
    )


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("coreIdToWkSlice_", "1", "mb"), 1.5, "$.0_add.coreIdToWkSlice_.1.mb"),
        (("coreIdToWkSlice_", "1"), [], "$.0_add.coreIdToWkSlice_.1"),
        (("dscs_", 0, "add"), 3, "$.0_add.dscs_[0].add"),
        (("dscs_", 0, "add", "roles", 0), 3, None),
        (("dscs_", 0, "add", "primaryDsInfo_", "OUTPUT", "stickSize_", 0), {}, "stickSize_[0]"),
        (("numCoresUsed_",), 10**400, "$.0_add.numCoresUsed_"),
    ],
)
def test_type_errors_have_exact_paths(
    path: tuple[str | int, ...], value: object, place: str | None
) -> None:
    tree = add_tree()
    parent = tree["0_add"]
    for step in path[:-1]:
        parent = parent.setdefault(step, {}) if isinstance(parent, dict) else parent[step]
    parent[path[-1]] = value
    data = json.dumps(tree).encode()
    if place is None:
        assert decode_sdsc(data, "f").unknown
        return
    with pytest.raises(SdscError) as error:
        decode_sdsc(data, "f")
    assert isinstance(error.value.location, JsonLocation)
    assert error.value.location.path.endswith(place)
    assert error.value.code == "SPY203"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"a": {"numCoresUsed_": 1, "x": ' + b"[" * 100_000 + b"}}",
        b'{"a": {"numCoresUsed_": 1, "x": ' + b"[" * 3000 + b"]" * 3000 + b"}}",
        b'{"a": {"numCoresUsed_": 1, "x": ' + b"9" * 6000 + b"}}",
        b'{"a": {"numCoresUsed_": ' + b"9" * 6000 + b"}}",
        b'{"a": {"numCoresUsed_": 1, "x": "\xff"}}',
        b'{"a": {"numCoresUsed_": 1, "target_": "\\ud800"}}',
        b'{"a": {"numCoresUsed_": 1, "x": 1, "x": 2}}',
        b'{"a": {"numCoresUsed_": 1}, "a": {"numCoresUsed_": 1}}',
        b'{"a": {"numCoresUsed_": 1}} trailing',
    ],
)
def test_hostile_files_are_located_errors(data: bytes) -> None:
    with pytest.raises(SdscError) as error:
        decode_sdsc(data, "hostile.json")
    assert "\n --> hostile.json at $" in str(error.value)


# --- mutation ---------------------------------------------------------------------------------

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    3,
    2**40,
    2**62,
    10**25,
    1e300,
    "",
    "-",
    "--5",
    "12",
    "x",
    "[0, 0, 0]",
    [],
    {},
    [[]],
]


def places(tree: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
        else:
            found.append((*path, key))
    return found


def same_kind(value: int | str, chance: random.Random) -> int | str:
    """Another value of the same type, so that the fault gets past decoding."""
    if isinstance(value, int):
        return chance.choice([0, 1, 2, 7, 63, 64, 65, 10**9, 2**61, -1, -7, value + 1, value * 2])
    return chance.choice(["mb", "out", "in", "hbm", "lx", "KERNEL", "-3", "0", "99", "128", "add"])


def mutate(tree: Any, chance: random.Random) -> None:
    path = chance.choice(places(tree))
    parent = tree
    for step in path[:-1]:
        parent = parent[step]
    action = chance.randrange(7)
    value = parent[path[-1]]
    if action > 3 and isinstance(value, int | str):
        parent[path[-1]] = same_kind(value, chance)
    elif action == 0:
        del parent[path[-1]]
    elif action == 1 and isinstance(parent, list):
        parent.insert(0, chance.choice(VALUES))
    elif action == 2 and isinstance(parent, dict):
        parent[chance.choice(["mb", "0", "extra", "x_"])] = parent.pop(path[-1])
    else:
        parent[path[-1]] = chance.choice(VALUES)


def survive(data: bytes) -> None:
    """Read a damaged file; only the package's errors may be raised."""
    located = True
    try:
        sdsc = decode_sdsc(data, "mutant.json")
        decode_sdsc(encode_sdsc(sdsc), "again.json")
        inspection = inspect_sdsc(sdsc, "mutant.json")
        assert all(str(finding) for finding in inspection.findings)
        operation = read_operation(sdsc, "mutant.json")
        if inspection.operation is not None:
            assert inspection.operation == operation
            write_operation(operation)
    except SpyreError as error:
        located = error.location is not None
    assert located


def test_mutated_sdscs_raise_only_our_errors() -> None:
    chance = random.Random(20260921)
    sources = [encode_sdsc(s) for make in SAMPLES.values() for s in make().sdscs.values()]
    for _ in range(1200):
        tree = json.loads(chance.choice(sources))
        for _ in range(chance.randrange(1, 4)):
            if tree:
                mutate(tree, chance)
        survive(json.dumps(tree).encode())


@pytest.mark.shared
def test_mutated_real_sdscs_raise_only_our_errors(real_files: dict[Path, bytes]) -> None:
    chance = random.Random(4)
    sources = [data for data in real_files.values() if len(data) < 14_000]
    for _ in range(300):
        tree = json.loads(chance.choice(sources))
        mutate(tree, chance)
        survive(json.dumps(tree).encode())


def test_damaged_bytes_raise_only_our_errors() -> None:
    chance = random.Random(7)
    good = add_bytes()
    for _ in range(600):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        survive(bytes(data))
