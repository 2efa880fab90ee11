"""``spyre estimate``: rows, wrong rows, errors against measured times, and fitting."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from spyre.__main__ import main
from spyre.hw.cost.machine import default_machine, load_machine
from spyre.hw.cost.models import kernel_ns
from spyre.hw.cost.rows import counts_of, measured_rows
from spyre.layout import SpyreTensorLayout
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import write_bundle
from tests.cli.conftest import Ran, runner_of

HEAD = "kernel,shapes,dtype,split,cores,microseconds,what_is_measured,note\n"
GOOD = (
    HEAD
    + "neg,2048x4096,fp16,,32,319.9,,\n"
    + 'matmul,M512 N4096 K4096,fp16,m4 n8,32,317.36,"one card, LX fraction 0.2",\n'
    + 'matmul,M512 N4096 K4096,fp16,m32 n1,32,802.74,"one card, LX fraction 0.2",\n'
    + "linear qo,M512 N4096 K4096,fp8,unknown (compiler),32,,,\n"
    + "copy to host,4194304 bytes,,,,390,,\n"
)
WRONG = {
    "kernel": ("flash attention,512x128,fp16,,32", "SPY764", "kernel"),
    "layer": ("mlp,B1 S512 E4096,fp16,baseline,32", "SPY764", "kernel"),
    "other dim": ("matmul,M512 N64 K64,fp16,m4 q8,32", "SPY765", "split"),
    "more parts": ("matmul,M2 N64 K64,fp16,m4,32", "SPY765", "split"),
    "more cores": ("matmul,M512 N64 K64,fp16,m8 n4,16", "SPY765", "split"),
    "no reduced dim": ("matmul,M512 N64,fp16,m8 n4,32", "SPY765", "shapes"),
    "one dim": ("neg,bytes,fp16,,32", "SPY765", "shapes"),
    "nothing": ("neg,0x64,fp16,,32", "SPY765", "shapes"),
    "dtype": ("neg,64x64,fp7,,32", "SPY765", "dtype"),
    "cores": ("neg,64x64,fp16,,33", "SPY765", "cores"),
    "no number": ("neg,64x64,fp16,,many", "SPY765", "cores"),
    "no time": ("neg,64x64,fp16,,32,fast", "SPY765", "microseconds"),
    "no cell": ("neg,64x64,fp16", "SPY766", "split"),
}


@pytest.fixture
def spyre(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """``spyre(*arguments)`` runs ``spyre estimate``."""
    run = runner_of(main, capsys)
    return lambda *arguments: run("estimate", *arguments)


def write(directory: Path, text: str) -> Path:
    path = directory / "rows.csv"
    path.write_text(text)
    return path


def test_rows_in_json(spyre: Callable[..., Ran], tmp_path: Path):
    ran = spyre(write(tmp_path, GOOD), "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    rows = found["rows"]
    assert [row["kernel"] for row in rows] == [
        "neg",
        "matmul",
        "matmul",
        "linear qo",
        "copy to host",
    ]
    assert all(row["modelled_us"] > 0 and row["reason"] is None for row in rows)
    assert rows[0]["modelled_us"] == pytest.approx(320, rel=0.01)
    assert (rows[0]["bound_by"], rows[0]["class"]) == ("memory", "pointwise")
    assert sum(rows[1]["parts_us"].values()) == pytest.approx(rows[1]["modelled_us"])
    assert rows[1]["error"] == pytest.approx(rows[1]["modelled_us"] / 317.36 - 1)
    assert rows[1]["spread"] == pytest.approx(default_machine().spread["product"])
    assert (rows[1]["chosen_split"], rows[3]["chosen_split"]) == (None, "m4 n8")
    assert rows[3]["error"] is None
    (choice,) = found["choices"]
    assert (choice["rows"], choice["cost"], choice["chosen"][-5:]) == (2, 0, "m4 n8")
    assert [each["name"] for each in found["errors"]] == ["neg", "matmul", "copy to host", "all"]


def test_rows_as_a_table_and_as_csv(spyre: Callable[..., Ran], tmp_path: Path):
    path = write(tmp_path, GOOD)
    shown = spyre(path)
    assert shown.code == 0
    assert "linear qo M512 N4096 K4096 unknown (compiler) (fastest: m4 n8)" in shown.out
    assert "nine of ten below" in shown.out
    assert "cost" in shown.out
    assert "parts" not in spyre(path, "-q").out
    rows = list(csv.DictReader(io.StringIO(spyre(path, "--csv").out)))
    as_json = json.loads(spyre(path, "--json").out)["rows"]
    for row, same in zip(rows, as_json, strict=True):
        assert row["shapes"] == same["shapes"]
        assert float(row["modelled_us"]) == pytest.approx(same["modelled_us"], rel=1e-5)
        assert float(row["spread"]) == pytest.approx(same["spread"], rel=1e-5)
        assert row["reason"] == ""


@pytest.mark.parametrize(("line", "code", "column"), WRONG.values(), ids=WRONG)
def test_a_wrong_row_does_not_keep_the_others(
    spyre: Callable[..., Ran], tmp_path: Path, line: str, code: str, column: str
):
    path = write(tmp_path, f"{GOOD}{line}\n{GOOD.splitlines()[1]}\n")
    ran = spyre(path, "--json")
    assert (ran.code, ran.err) == (1, "")
    *before, wrong, after = json.loads(ran.out)["rows"]
    assert [row["modelled_us"] is None for row in (*before, wrong, after)] == [
        *[False] * 5, True, False
    ]  # fmt: skip
    assert wrong["reason"]["code"] == code
    assert wrong["reason"]["location"] == f"{path} at row 6, column {column}"
    assert wrong["kernel"] == line.split(",")[0]
    shown = spyre(path)
    assert shown.code == 1
    assert f"error[{code}]: " in shown.err
    assert f" at row 6, column {column}\n" in shown.err
    assert f"{code}: " in shown.out
    assert spyre(path, "--csv").out.splitlines()[6].endswith(code)


def test_a_file_without_a_column(spyre: Callable[..., Ran], tmp_path: Path):
    ran = spyre(write(tmp_path, "kernel,shapes,split,cores\nneg,64x64,,32\n"))
    assert ran.code == 1
    assert "error[SPY766]: " in ran.err
    assert " at row 1, column dtype\n" in ran.err


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00"])
def test_a_file_that_cannot_be_read(
    spyre: Callable[..., Ran], tmp_path: Path, content: bytes | None
):
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_bytes(content)
    ran = spyre(path)
    assert (ran.code, ran.out) == (2, "")
    assert "SPY763" in ran.err
    as_object = json.loads(spyre(path, "--json").out)
    assert (as_object["exit_code"], as_object["error"]["code"]) == (2, "SPY763")


def test_neither_rows_nor_a_fit(spyre: Callable[..., Ran]):
    ran = spyre()
    assert ran.code == 2
    assert "required: PATH, --model, or --fit" in ran.err


def slow_card(path: Path) -> None:
    """Rows of a card whose interface is half as fast as the shipped one's."""
    machine = default_machine()
    half = machine.with_values(
        {
            name: machine.constants[name].value / 2  # type: ignore[operator]
            for name in ("calibration.transpose_gbps", "calibration.product_gbps")
        }
    )
    names = ("kernel", "shapes", "dtype", "split", "cores", "microseconds", "what_is_measured")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in measured_rows():
            if row.kernel in ("transpose", "mm", "mmwd") and row.tiles == 1:
                ((_, counts),) = counts_of(row)
                us = kernel_ns(counts, half).total_ns / 1e3
                writer.writerow(
                    [us if name == "microseconds" else row.cells[name] for name in names]
                )


def test_fitting_a_users_card(spyre: Callable[..., Ran], tmp_path: Path):
    """The constants of the card are found; those without rows stay the shipped ones."""
    path, machine = tmp_path / "rows.csv", tmp_path / "card.toml"
    slow_card(path)
    ran = spyre("--fit", path, "-o", machine)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    found, shipped = load_machine(machine).calibration, default_machine().calibration
    assert found.transpose_gbps == pytest.approx(shipped.transpose_gbps / 2, rel=0.01)
    assert found.product_gbps == pytest.approx(shipped.product_gbps / 2, rel=0.02)
    assert found.broadcast_gbps == shipped.broadcast_gbps
    assert found.interleaved_run == shipped.interleaved_run
    shown = spyre(path, "--machine", machine, "-q")
    assert shown.out.splitlines()[-1].startswith("all") or "all" in shown.out
    assert load_machine(machine).constants["spread.transpose"].value < 0.02  # type: ignore[operator]


def test_a_machine_that_cannot_be_written(spyre: Callable[..., Ran], tmp_path: Path):
    ran = spyre("--fit", write(tmp_path, GOOD), "-o", tmp_path / "none" / "card.toml")
    assert ran.code == 2
    assert "SPY767" in ran.err


def test_a_whole_model(spyre: Callable[..., Ran]):
    shown = spyre("--model", "granite-3.3-2b", "--prompt", "64")
    assert (shown.code, shown.err) == (0, "")
    assert "granite-3.3-2b fp16 LX fraction 0.2, 1 card, batch 1, prompt 64" in shown.out
    assert "granite-3.3-2b fp8 LX fraction 0.8" in shown.out
    for words in ("linears", "attention", "copies", "launches", "Measured", "Extrapolated"):
        assert words in shown.out
    found = json.loads(spyre("--model", "granite-3.3-2b", "--prompt", "64", "--json").out)
    assert sum(found["token_parts_ms"].values()) == pytest.approx(found["token_ms"])
    assert found["tokens_per_second"] == pytest.approx(1e3 / found["token_ms"])
    assert [(each["dtype"], each["lx_fraction"]) for each in found["others"]] == [
        ("fp16", 0.8), ("fp8", 0.2), ("fp8", 0.8)
    ]  # fmt: skip


def test_options_of_models(spyre: Callable[..., Ran], tmp_path: Path):
    ran = spyre(
        "--model", "gpt2", "--dtype", "fp8", "--lx-fraction", "0.8", "--cards", "2", "--json"
    )
    found = json.loads(ran.out)
    assert (found["dtype"], found["lx_fraction"], found["cards"]) == ("fp8", 0.8, 2)
    assert "collectives" in found["token_parts_ms"]
    assert (spyre("--model", "gpt3").code, spyre(GOOD, "--model", "gpt2").code) == (2, 2)
    assert "SPY768" in spyre("--model", tmp_path).err
    for wrong in (("--lx-fraction", "2"), ("--cards", "0"), ("--dtype", "fp7")):
        assert spyre("--model", "gpt2", *wrong).code == 2
    assert "--batch is nothing without --model" in spyre(tmp_path, "--batch", "2").err


def test_explain_names_a_faster_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Three operations over 32 MiB, with intermediate tensors in HBM: half of it in tiles."""
    shape, splits = (8192, 2048), {"mb": 32}
    builder = BundleBuilder()
    size_bytes = SpyreTensorLayout.from_host(shape, "float16").device_bytes
    x, y = (HostOperand(builder.argument(size_bytes).at()) for _ in range(2))
    one, two = (HostOperand(builder.temporary(size_bytes).at()) for _ in range(2))
    for name, source, result in (("exp", x, one), ("neg", one, two), ("sqrt", two, y)):
        builder.add(pointwise(name, shape, [source], result, splits))
    write_bundle(builder.build(), tmp_path / "chain")
    ran = runner_of(main, capsys)("explain", tmp_path / "chain")
    assert ran.code == 0
    line = ran.out.strip().splitlines()[-1]
    found = re.fullmatch(
        r"all operations: modelled ([\d,.]+) us \(±\d+%\); operations 0 to 2 in tiles of "
        r"[\d,]+ rows, (\d+) of them, would make it ([\d,.]+) us",
        line,
    )
    assert found is not None, line
    before, tiles, after = (float(word.replace(",", "")) for word in found.groups())
    assert after < 0.8 * before
    assert tiles > 1
