"""Pictures agree with the program's addresses, and their parts have room."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from spyre import __main__ as command
from spyre.errors import ProfileError
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.runtime.arguments import ArgumentSpec
from spyre.runtime.cases import read_case
from spyre.runtime.drawing import INNER, shown_indices
from spyre.runtime.pictures import pictures_of, write_pictures
from spyre.runtime.pictures.executes import memory_block
from spyre.runtime.pictures.program import layout_picture
from spyre.runtime.program import Role, load_source
from spyre.runtime.run import describe_run

EXAMPLES = Path(__file__).parents[3] / "examples"
SVG = "{http://www.w3.org/2000/svg}"


def program_of(path):
    return describe_run(load_source(path))


def texts(picture):
    """Every text that is shown, without tooltips."""
    found = ElementTree.fromstring(picture.svg).iter(f"{SVG}text")
    return ["".join([each.text or "", *(child.tail or "" for child in each)]) for each in found]


def named(path):
    return {picture.name: picture for picture in pictures_of(program_of(path))}


@pytest.mark.parametrize(
    ("shape", "order", "cells"),
    [((3, 200), (0, 1), 12), ((2, 4, 128), (1, 0, 2), 8), ((70, 3), (1, 0), 6), ((130,), (0,), 3)],
)
def test_cells_are_numbered_as_the_copy_places_them(shape, order, cells):
    strides = contiguous_strides(shape)
    layout = SpyreTensorLayout.from_dim_order(shape, strides, "float16", order)
    tensor = ArgumentSpec(0, "x", Role.INPUT, shape, "float16", layout, strides)
    shown = re.findall(r"row (\d+), elements from (\d+): stick (\d+)", layout_picture(tensor).svg)
    assert len(shown) == cells
    lanes = layout.device_size[-1]
    along = order[-1]
    rows = [d for d in range(len(shape)) if d != along and shape[d] > 1]
    for row, first, stick in shown:
        index = [0] * len(shape)
        if rows:
            index[rows[-1]] = int(row)
        index[along] = int(first)
        offset = sum(i * s for i, s in zip(index, strides, strict=True))
        place = np.unravel_index(int(stick) * lanes, layout.device_size)
        steps = [0 if s < 0 else s for s in layout.stride_map]
        assert sum(int(i) * s for i, s in zip(place, steps, strict=True)) == offset


def test_executes_name_who_wrote_what_they_read():
    lines = texts(named(EXAMPLES / "softmax")["executes"])
    read = [line for line in lines if line.startswith("reads ") and " it" not in line]
    assert read == [
        "reads arg_0 in HBM",
        "reads arg_0 in HBM",
        "reads LX 0x0, 2 KiB a core from execute 0",
        "reads LX 0x1000, 8 KiB a core from execute 1",
        "reads LX 0x1000, 8 KiB a core from execute 2",
        "reads LX 0x1000, 8 KiB a core from execute 2",
        "reads LX 0x800, 2 KiB a core from execute 3",
    ]


def test_cores_have_their_slices():
    shown = texts(named(EXAMPLES / "softmax")["cores-0-max"])
    assert "8 of 32 cores share the iterations mb 128, out 256." in shown
    assert shown.index("mb 48–63") + 1 == shown.index("core 3")
    assert "Tensor0, read from arg_0 in HBM (64 KiB): 8 KiB a core." in " ".join(shown)


def test_tiles_say_how_loops_move_them_and_cover_the_tensor():
    drawn = named(EXAMPLES / "add_loop")["tiles-0-add"]
    assert any("arg_0 +8,192 bytes" in text for text in re.findall(r"<title>(.*?)</title>",
                                                                   drawn.svg))  # fmt: skip
    runs = [each for each in ElementTree.fromstring(drawn.svg).iter(f"{SVG}rect")
            if "run" in each.get("class", "")]  # fmt: skip
    bars = [each for each in runs if each.get("height") == "13"]
    assert len(bars) == 3 * 8 * 4  # operands, stick columns, tiles
    assert sum(float(each.get("width")) for each in bars) == pytest.approx(3 * 8 * (INNER - 96))


def test_memory_is_coloured_by_who_touches_it():
    sticks = np.arange(0, 1024, 128)
    block = memory_block([("m", 0, 1024)], [(0, sticks[:4]), (1, sticks[6:])], 128)
    runs = re.findall(r'<rect x="([\d.]+)" y="0" width="([\d.]+)"[^>]*run colour-(\d)', block.drawn)
    width = INNER - 96
    expected = [(96, width / 2, 0), (96 + width * 3 / 4, width / 4, 1)]
    assert [tuple(map(float, run)) for run in runs] == expected


def test_long_lists_keep_their_ends():
    assert shown_indices(3, 4) == [0, 1, 2]
    assert shown_indices(100, 4) == [0, 1, None, 99]


@pytest.mark.parametrize("example", ["add_loop", "matmul", "matmul_tile", "softmax"])
def test_nothing_leaves_its_picture(example):
    for picture in pictures_of(program_of(EXAMPLES / example)):
        root = ElementTree.fromstring(picture.svg)
        for box in root.iter(f"{SVG}rect"):
            assert float(box.get("x", 0)) + float(box.get("width")) <= 400.001
        for text in root.iter(f"{SVG}text"):
            assert 0 <= float(text.get("x", 0)) <= 400


def test_the_command_writes_a_page_with_every_picture(tmp_path, capsys):
    directory = tmp_path / "new" / "pictures"
    code = command.main(["explain", str(EXAMPLES / "softmax"), "--svg", str(directory), "--json"])
    files = [Path(name) for name in json.loads(capsys.readouterr().out)["pictures"]]
    assert code == 0
    assert sorted(files) == sorted(directory.iterdir())
    page = files[0].read_text()
    assert all(f'id="{file.stem}"' in page for file in files[1:])
    assert "Content-Security-Policy" in page
    assert "<h1>Pictures of softmax</h1>" in page  # of any path that leads there


def test_pictures_without_a_place_are_refused(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match="SPY782"):
        write_pictures(program_of(EXAMPLES / "add_loop"), tmp_path / "file", "add_loop")
    with pytest.raises(SystemExit):
        command.main(["run", str(EXAMPLES / "add_loop"), "--svg", str(tmp_path)])
    assert "--svg is nothing without --explain" in capsys.readouterr().err


@pytest.mark.shared
def test_real_programs_can_be_drawn(shared_dir):
    for path in sorted(shared_dir.glob("bundles/*/case.json"))[::12]:
        program = describe_run(read_case(path.parent), load_source)
        for picture in pictures_of(program):
            assert ElementTree.fromstring(picture.svg).tag == f"{SVG}svg"
