"""spyrecode.json: every error with its place, both spellings, round trip, mutations."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from spyre.errors import BundleError, JsonLocation, Severity, SpyreError
from spyre.runtime.program.launch_spec import SymbolKind
from spyre.runtime.spyrecode.commands import (
    PROGRAM_BASE,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Direction,
    Hcm,
    InitTransfer,
    SpyreCode,
)
from spyre.runtime.spyrecode.spyrecode_file import format_spyrecode, parse_spyrecode, spyrecode_path
from tests.examples import examples
from tests.runtime.spyrecode.samples import BASE, REMOVED, SYMBOLIC, changed, properties

COMPUTE = {"command": "ComputeOnDevice", "properties": {"job_bin_ptr": str(BASE)}}
D2H = {
    "command": "DataTransfer",
    "properties": {
        "dirn": "true",
        "host_handle": "back",
        "size": "128",
        "dev_ptr": str(1 << 34),
    },
}


def parse(document: Any) -> SpyreCode:
    return parse_spyrecode(json.dumps(document).encode(), "DIR/spyrecode.json")


def failure(document: Any) -> BundleError:
    with pytest.raises(BundleError) as caught:
        parse(document)
    return caught.value


def test_commands_with_integers() -> None:
    code = parse(SYMBOLIC)
    assert code.allocation_bytes == 1024
    assert code.init_transfers == (InitTransfer("init_binary.bin", BASE, 512),)
    symbols = (SymbolKind("kernel", arg_index=0), SymbolKind("pool"))
    assert code.execution == (
        ComputeOnHost("", (2,), "correction", 128, Hcm({}, (), symbols)),
        DataTransfer(Direction.H2D, "correction", 128, BASE + 512),
        ComputeOnDevice(BASE, "k"),
    )
    assert code.findings == ()
    assert PROGRAM_BASE == BASE == 120259084288


def test_the_specification_spelling_is_read_too() -> None:
    other = changed(
        (properties("prep", 1, "init_bin_file"), REMOVED),
        (properties("prep", 1, "file_path"), "init_binary.bin"),
        (properties("exec", 1, "dirn"), REMOVED),
        (properties("exec", 1, "direction"), "0"),
        (properties("exec", 0, "oshape"), ["16"]),
        (properties("exec", 2, "name"), REMOVED),
    )
    same = changed((properties("exec", 2, "name"), REMOVED))
    assert parse(other) == parse(same)
    both = changed((properties("exec", 1, "direction"), "0"))
    assert parse(both) == parse(SYMBOLIC)


WRONG: list[tuple[str, str, str, Any]] = [
    ("SPY823", "JobPreparationPlan", "$", REMOVED),
    ("SPY823", "JobExecPlan", "$", {}),
    ("SPY824", "JobPreparationPlan", "$.JobPreparationPlan", []),
    ("SPY825", "JobPreparationPlan.0.command", "$.JobPreparationPlan[0].command", "InitTransfer"),
    ("SPY825", "JobPreparationPlan.1.command", "$.JobPreparationPlan[1].command", "Allocate"),
    ("SPY826", "JobExecPlan.2.command", "$.JobExecPlan[2]", REMOVED),
    ("SPY826", "JobExecPlan.2", "$.JobExecPlan[2]", 7),
    ("SPY827", "JobExecPlan.2.properties", "$.JobExecPlan[2].properties", 7),
    ("SPY835", "JobExecPlan.2.command", "$.JobExecPlan[2].command", "Allocate"),
]
IN_PROPERTIES: list[tuple[str, str, int, str, Any]] = [
    ("SPY826", "prep", 0, "size", REMOVED),
    ("SPY826", "prep", 1, "init_bin_file", REMOVED),
    ("SPY826", "prep", 1, "dev_ptr", REMOVED),
    ("SPY826", "prep", 1, "size", REMOVED),
    *(("SPY826", "exec", 0, k, REMOVED) for k in ("ihandle", "ishape", "ohandle", "size", "hcm")),
    *(("SPY826", "exec", 1, k, REMOVED) for k in ("dirn", "host_handle", "size", "dev_ptr")),
    ("SPY826", "exec", 2, "job_bin_ptr", REMOVED),
    ("SPY827", "prep", 0, "size", 1024),
    ("SPY827", "prep", 0, "size", "0"),
    ("SPY827", "prep", 0, "size", "1e3"),
    ("SPY827", "prep", 0, "size", "٣"),
    ("SPY827", "prep", 0, "size", "99999999999999999999"),
    ("SPY827", "prep", 1, "init_bin_file", "../x"),
    ("SPY827", "prep", 1, "init_bin_file", "/etc/passwd"),
    ("SPY827", "exec", 0, "ohandle", ""),
    ("SPY827", "exec", 2, "name", 5),
    ("SPY828", "prep", 1, "dev_ptr", "0"),
    ("SPY828", "exec", 1, "dev_ptr", str(BASE + (1 << 34))),
    ("SPY828", "exec", 2, "job_bin_ptr", str(BASE - 128)),
    ("SPY829", "prep", 1, "dev_ptr", str(BASE + 0x90)),
    ("SPY829", "exec", 2, "job_bin_ptr", str(BASE + 1)),
    ("SPY830", "prep", 1, "size", "1025"),
    ("SPY830", "exec", 1, "dev_ptr", str(BASE + 1024)),
    ("SPY830", "exec", 1, "size", "256"),
    ("SPY830", "exec", 2, "job_bin_ptr", str(BASE + 1024)),
    ("SPY832", "exec", 0, "ihandle", "nothing"),
    ("SPY832", "exec", 1, "host_handle", "nothing"),
    ("SPY833", "exec", 0, "ishape", "2"),
    ("SPY833", "exec", 0, "ishape", [2]),
    ("SPY833", "exec", 0, "ishape", ["two"]),
    ("SPY833", "exec", 0, "ishape", ["-2"]),
    ("SPY834", "exec", 0, "hcm", "{}"),
    ("SPY834", "exec", 0, "hcm", {"vdci": []}),
    ("SPY834", "exec", 0, "hcm", {"senConstants": {}}),
    ("SPY834", "exec", 0, "hcm", {"symbols": [{"kind": 3}]}),
    ("SPY838", "exec", 1, "dirn", "up"),
    ("SPY838", "exec", 1, "dirn", False),
    ("SPY847", "exec", 1, "direction", "1"),
    ("SPY847", "prep", 1, "file_path", "other.bin"),
]


@pytest.mark.parametrize(("code", "path", "place", "value"), WRONG)
def test_wrong_structure(code: str, path: str, place: str, value: Any) -> None:
    error = failure(changed((path, value)))
    assert error.code == code
    assert error.location == JsonLocation("DIR/spyrecode.json", place)


@pytest.mark.parametrize(("code", "plan", "command", "key", "value"), IN_PROPERTIES)
def test_wrong_property(code: str, plan: str, command: int, key: str, value: Any) -> None:
    error = failure(changed((properties(plan, command, key), value)))
    assert error.code == code
    name = "JobPreparationPlan" if plan == "prep" else "JobExecPlan"
    where = f"$.{name}[{command}].properties"
    of_two = {"SPY826": {where}, "SPY830": {f"{where}.dev_ptr"}}.get(code, set())
    assert isinstance(error.location, JsonLocation)
    assert error.location.path in {f"{where}.{key}", *of_two}


def test_texts_the_runtime_has() -> None:
    """Messages that callers of the runtime look for."""
    texts = {
        "missing 'JobExecPlan' array": ("JobExecPlan", REMOVED),
        "Allocate command missing 'size' property": (properties("prep", 0, "size"), REMOVED),
        "Expected 'Allocate' command, got: X": ("JobPreparationPlan.0.command", "X"),
        "Unknown SpyreCode command type: X": ("JobExecPlan.0.command", "X"),
        "ihandle 'x' not found in pinned buffer map": (properties("exec", 0, "ihandle"), "x"),
        "ComputeOnHost 'ishape' must be an array": (properties("exec", 0, "ishape"), {}),
        "ComputeOnHost 'ishape' elements must be strings": (properties("exec", 0, "ishape"), [1]),
        "Failed to import Hcm for ohandle 'correction'": (properties("exec", 0, "hcm"), 1),
        "Invalid DataTransfer direction: x": (properties("exec", 1, "dirn"), "x"),
        "out of program segment bounds [0x1c00000000, 0x2000000000)": (
            properties("exec", 2, "job_bin_ptr"),
            "128",
        ),
    }
    for text, change in texts.items():
        assert text in failure(changed(change)).finding.message


def test_a_buffer_is_made_once() -> None:
    again = changed(("JobExecPlan.3", SYMBOLIC["JobExecPlan"][0]))
    assert failure(again).code == "SPY831"
    back = {**D2H, "properties": {**D2H["properties"], "host_handle": "correction"}}
    assert failure(changed(("JobExecPlan", [back, *SYMBOLIC["JobExecPlan"]]))).code == "SPY831"


def test_symbols_fit_into_their_buffer() -> None:
    many = [{"kind": "pool"}] * 17
    hcm = {"vdci": {}, "senConstants": [], "symbols": many}
    error = failure(changed((properties("exec", 0, "hcm"), hcm)))
    assert (error.code, error.finding.expected) == ("SPY834", "at least 136 bytes")


HOST, H2D_STEP, DEVICE = SYMBOLIC["JobExecPlan"]
SECOND = changed((properties("exec", 0, "ohandle"), "second"))["JobExecPlan"][0]
SECOND_H2D = changed((properties("exec", 1, "host_handle"), "correction"))["JobExecPlan"][1]


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ([HOST, DEVICE, H2D_STEP], 1),
        ([HOST, H2D_STEP], 1),
        ([HOST, SECOND, H2D_STEP, DEVICE], 1),
        ([HOST, H2D_STEP, H2D_STEP, DEVICE], 2),
        ([HOST, H2D_STEP, DEVICE, D2H], 3),
        ([HOST], 0),
    ],
)
def test_step_order(steps: list[Any], place: int) -> None:
    error = failure(changed(("JobExecPlan", steps)))
    assert error.code == "SPY836"
    assert error.location == JsonLocation("DIR/spyrecode.json", f"$.JobExecPlan[{place}].command")


@pytest.mark.parametrize(
    "steps",
    [
        [HOST, H2D_STEP, DEVICE, DEVICE],
        [HOST, H2D_STEP, DEVICE, SECOND, SECOND_H2D, DEVICE],
        [DEVICE, D2H],
        [D2H, DEVICE],
        [DEVICE, HOST, H2D_STEP, DEVICE],
        [],
    ],
)
def test_orders_that_are_right(steps: list[Any]) -> None:
    assert len(parse(changed(("JobExecPlan", steps))).execution) == len(steps)


def test_overlap_is_a_warning() -> None:
    (finding,) = parse(changed((properties("exec", 1, "dev_ptr"), str(BASE + 384)))).findings
    assert (finding.code, finding.severity) == ("SPY837", Severity.WARNING)
    assert "JobExecPlan[1].properties.dev_ptr" in str(finding.location)


def test_no_symbols_in_files_of_others() -> None:
    foreign = changed((properties("exec", 0, "hcm"), {"vdci": {"a": [1]}, "more": 2}))
    host = parse(foreign).execution[0]
    assert isinstance(host, ComputeOnHost)
    assert host.hcm == Hcm({"a": [1]}, (), None, {"more": 2})


class TestReading:
    def test_directory(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="SpyreCode directory does not exist") as caught:
            spyrecode_path(tmp_path / "missing")
        assert caught.value.code == "SPY820"
        (tmp_path / "file").write_text("")
        with pytest.raises(BundleError, match="Path is not a directory") as caught:
            spyrecode_path(tmp_path / "file")
        assert caught.value.code == "SPY820"
        with pytest.raises(BundleError, match=r"Required file spyrecode.json not found") as caught:
            spyrecode_path(tmp_path)
        assert caught.value.code == "SPY821"
        (tmp_path / "spyrecode.json").write_text(json.dumps(SYMBOLIC))
        assert spyrecode_path(tmp_path) == tmp_path / "spyrecode.json"

    @pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"a": 1', "\xff", "[" * 100000])
    def test_unparsable(self, text: str) -> None:
        with pytest.raises(BundleError, match=r"Failed to parse spyrecode.json") as caught:
            parse_spyrecode(text.encode("latin-1"))
        assert caught.value.code == "SPY822"


# --- properties -------------------------------------------------------------------------------

names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8)
kinds = st.builds(
    SymbolKind,
    kind=st.sampled_from(["kernel", "pool", "dimension"]),
    arg_index=st.none() | st.integers(0, 8),
    max_value=st.none() | st.integers(1, 1 << 40),
    pytorch_sym=st.none() | names,
)


@st.composite
def codes(draw: st.DrawFn) -> SpyreCode:
    """Valid plans: one binary, one correction or none, further computes."""
    sticks = draw(st.integers(1, 1 << 20))
    symbols = tuple(draw(st.lists(kinds, max_size=30)))
    size = -(-max(len(symbols), 1) * 8 // 128) * 128
    computes = draw(st.lists(st.integers(0, sticks - 1), min_size=1, max_size=4))
    steps: list[Any] = [ComputeOnDevice(BASE + 128 * k, draw(st.none() | names)) for k in computes]
    if symbols:
        hcm = Hcm({"k": draw(names)}, tuple(draw(st.lists(st.integers()))), symbols)
        steps[:0] = [
            ComputeOnHost("", (len(symbols),), "c", size, hcm),
            DataTransfer(Direction.H2D, "c", size, BASE + 128 * sticks),
        ]
    file = draw(names.filter(lambda name: name != ".."))
    files = draw(st.dictionaries(names, st.tuples(st.integers(0, 1 << 62), names)))
    transfers = (InitTransfer(file, BASE, 128 * sticks),)
    return SpyreCode(128 * sticks + size, transfers, tuple(steps), files)


@given(codes())
@examples(100)
def test_round_trip(code: SpyreCode) -> None:
    assert parse_spyrecode(format_spyrecode(code)) == code


VALUES = ["", "0", "-1", "128", str(BASE), "x", 0, 1.5, True, None, [], {}, ["0"], [[]], "true"]


def mutated(document: Any, rng: random.Random) -> Any:
    """A copy with one node replaced, removed, or doubled."""
    copy = json.loads(json.dumps(document))
    place = copy
    while True:
        keys = list(range(len(place))) if isinstance(place, list) else list(place)
        if not keys:
            return copy
        key = rng.choice(keys)
        if isinstance(place[key], (dict, list)) and rng.random() < 0.8:
            place = place[key]
            continue
        action = rng.randrange(4)
        if action == 0:
            del place[key]
        elif action == 1 and isinstance(place, list):
            place.insert(key, place[key])
        elif action == 2 and isinstance(place, dict):
            place[rng.choice(["file_path", "direction", "size", "dev_ptr", "x"])] = place.pop(key)
        else:
            place[key] = rng.choice(VALUES)
        return copy


def outcome(data: bytes) -> SpyreCode | SpyreError:
    """Parse ``data``; return the result or the SpyreError."""
    try:
        return parse_spyrecode(data, "DIR/spyrecode.json")
    except SpyreError as error:
        return error


def test_mutations_are_read_or_refused_with_a_place() -> None:
    refused = 0
    for seed in range(3000):
        rng = random.Random(seed)
        document = SYMBOLIC
        for _ in range(rng.randint(1, 3)):
            document = mutated(document, rng)
        result = outcome(json.dumps(document).encode())
        if isinstance(result, SpyreError):
            refused += 1
            assert isinstance(result.location, JsonLocation), (seed, result)
            assert result.location.file == "DIR/spyrecode.json"
        else:
            assert outcome(format_spyrecode(result)) == result, seed
    assert 1000 < refused < 3000


def test_broken_text_is_refused() -> None:
    text = json.dumps(SYMBOLIC).encode()
    rng = random.Random(1)
    for _ in range(1000):
        data = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        end = rng.randrange(len(data)) if rng.random() < 0.2 else None
        result = outcome(bytes(data[:end]))
        assert isinstance(result, SpyreCode) or result.location is not None
