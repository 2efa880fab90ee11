"""The pipeline RFC's six workflows: output of the examples, and properties of it."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from examples.workflows.compiled_example import compiled
from spyre import FlexDevice, launch_kernel, prepare_kernel
from spyre.config import VARIABLES
from spyre.errors import LaunchError, SpyreError
from spyre.runtime.flex.steps import JobPlan
from spyre.runtime.spyrecode import compile_directory

GOLDEN = Path(__file__).parent / "golden"
WORKFLOWS = (
    "workflow_1_transfer",
    "workflow_2_loading",
    "workflow_3_launch",
    "workflow_4_tiled",
    "workflow_5_end_to_end",
    "workflow_6_two_streams",
)
HOST_SETTINGS = {"SPYRE_CACHE_DIR", "SPYRE_NUM_THREADS", "SPYRE_VECTOR_WIDTH", "SPYRE_PLAN_CACHE"}
LINE = re.compile(r"^stream (\d+)  (cb|host) (\d+) +(dma to device|dma from device|compute|host)")


@pytest.fixture
def run(capsys, monkeypatch):
    """Return a function that runs a workflow's ``main`` without settings of the environment."""
    for name in {variable.name for variable in VARIABLES} - HOST_SETTINGS:
        monkeypatch.delenv(name, raising=False)

    def main(name: str) -> str:
        importlib.import_module(f"examples.workflows.{name}").main()
        return capsys.readouterr().out

    return main


def without_sizes_of_binaries(text: str) -> str:
    """Replace the sizes of compressed binaries and the addresses behind: they depend on zlib."""
    places: dict[str, str] = {}

    def place(found: re.Match[str]) -> str:
        return places.setdefault(found[0], f"0x7:P{len(places)}")

    text = re.sub(r"(binary of \w+), \d+ bytes", r"\1, N bytes", text)
    return re.sub(r"\b0x7:0x[0-9a-f]+", place, text)


def commands(text: str) -> list[tuple[int, str, int, str]]:
    """Stream, label, its number, and kind of every command printed."""
    found = (LINE.match(line) for line in text.splitlines())
    return [(int(m[1]), m[2], int(m[3]), m[4]) for m in found if m]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflow_prints_its_command_stream(run, golden, name):
    golden(GOLDEN / f"{name}.txt", without_sizes_of_binaries(run(name)))


def test_there_are_no_other_workflows():
    directory = Path(__file__).parents[3] / "examples" / "workflows"
    assert sorted(path.stem for path in directory.glob("workflow_*.py")) == list(WORKFLOWS)


def test_a_loaded_binary_is_one_control_block(run):
    text = run("workflow_2_loading")
    assert [kind for *_, kind in commands(text)] == ["dma to device"] * 2
    assert "0x7:0x0" in text


def test_a_launch_with_correction_is_two_control_blocks_and_a_host_operation(run):
    kinds = [kind for *_, kind in commands(run("workflow_3_launch"))]
    assert kinds == ["host", "dma to device", "compute"]


def test_tiled_launch_is_eight_control_blocks_and_four_host_operations(run):
    text = run("workflow_4_tiled")
    found = commands(text)
    assert [kind for *_, kind in found] == ["host", "dma to device", "compute"] * 4
    blocks = [number for _, label, number, _ in found if label == "cb"]
    assert blocks == list(range(blocks[0], blocks[0] + 8))
    assert [number for _, label, number, _ in found if label == "host"] == [0, 1, 2, 3]
    assert "HOST host 0 host 1 host 2 host 3\nDMA cb 3 cb 5 cb 7 cb 9\n" in text
    assert "COMPUTE cb 4 cb 6 cb 8 cb 10\n" in text
    assert "equals the untiled result bit for bit: True" in text


def test_commands_begin_after_what_they_come_after():
    card = FlexDevice()
    with compiled("matmul_tile") as directory:
        plan = prepare_kernel(directory, card)
    tensors = [card.empty(shape) for shape in ((4096, 256), (256, 128), (4096, 128))]
    with card.recording() as stream:
        for _ in range(2):
            launch_kernel(plan, tensors, card.default_stream)
    assert (len(stream.control_blocks), len(stream.host_operations)) == (16, 8)
    ends = {command.label: command.end_ns for command in stream}
    pairs = [
        (command, ends[label]) for command in stream for label in command.after if label in ends
    ]
    assert len(pairs) == 8 + 8 + 7
    assert all(end <= command.begin_ns for command, end in pairs)


def test_end_to_end_is_all_on_the_default_stream(run):
    text = run("workflow_5_end_to_end")
    found = commands(text)
    assert {stream for stream, *_ in found} == {0}
    assert [kind for *_, kind in found] == [
        *["dma to device"] * 3,
        *["host", "dma to device", "compute"] * 4,
        "dma from device",
    ]
    assert "within half a unit of the last place: True" in text


def spans(text: str, policy: str) -> list[tuple[int, int, str, int]]:
    """Begin, end, engine and stream of everything that ran under ``policy``."""
    part = text.partition(f"{policy}:")[2].partition("c is")[0]
    rows = re.findall(r"^ *(\d+) - (\d+) +(\w+) +stream (\d+)", part, re.MULTILINE)
    return [(int(begin), int(end), engine, int(stream)) for begin, end, engine, stream in rows]


def test_policies(run):
    """The copy of stream 2 waits for the job of stream 1, or goes on beside it."""
    text = run("workflow_6_two_streams")
    assert text.count("True") == 4
    found = {policy: spans(text, policy) for policy in ("serialised", "concurrent")}
    assert sorted(row[2:] for row in found["serialised"]) == sorted(
        row[2:] for row in found["concurrent"]
    )
    ends = {policy: max(end for _, end, *_ in rows) for policy, rows in found.items()}
    assert ends["concurrent"] < ends["serialised"]
    for rows in found.values():
        for engine in ("host", "dma", "compute"):
            own = sorted(row[:2] for row in rows if row[2] == engine)
            assert all(a[1] <= b[0] for a, b in pairwise(own))
    matmul = max(end for _, end, engine, s in found["serialised"] if (engine, s) == ("compute", 1))
    copy = "dma     stream 2  cb 8 dma to device x"
    assert re.search(rf"^ *{matmul} - \d+ +{copy}$", text, re.MULTILINE)
    assert re.search(rf"^ *0 - \d+ +{copy}$", text, re.MULTILINE)


def larger_correction(code: dict[str, Any]) -> None:
    code["JobPreparationPlan"][0]["properties"]["size"] = "2944"
    for command in code["JobExecPlan"][:2]:
        command["properties"]["size"] = "256"


def no_correction(code: dict[str, Any]) -> None:
    del code["JobExecPlan"][:2]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (larger_correction, r"SPY884(.|\n)*128 bytes for 2 symbols(.|\n)*256 bytes"),
        (no_correction, r"SPY885(.|\n)*ComputeOnHost, DataTransfer, ComputeOnDevice"),
    ],
    ids=["SPY884", "SPY885"],
)
def test_an_execution_plan_that_contradicts_the_program(tmp_path, change, error):
    compile_directory(shutil.copytree("examples/softmax", tmp_path / "softmax"))
    file = tmp_path / "softmax" / "spyreCodeDir" / "spyrecode.json"
    code = json.loads(file.read_text())
    change(code)
    file.write_text(json.dumps(code))
    with pytest.raises(SpyreError, match=error):
        prepare_kernel(tmp_path / "softmax")


def test_a_plan_has_steps():
    with pytest.raises(LaunchError, match=r"SPY876.*nothing"):
        JobPlan("nothing", ())
