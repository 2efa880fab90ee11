"""Cases for `spyre-run --sanitize`: programs that run, with one defect each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import BundleContents
from tests.corpus.launch import buffer
from tests.corpus.making import BUNDLE, CorpusCase, Edit, Stage, arrays, write
from tests.sanitizer import programs
from tests.sanitizer.programs import NBYTES, ROW

CHECKS = {
    "tile_without_gap": ("memory", "SPY702"),
    "unwritten_pool": ("init", "SPY710"),
    "overlapping_pool": ("memory", "SPY733"),
    "unwritten_lx": ("init", "SPY710"),
    "two_writers": ("race", "SPY711"),
    "shifted_in_place": ("race", "SPY712"),
    "short_loop": ("cover", "SPY720"),
    "other_output": ("cover", "SPY720"),
    "above_boundary": ("lx", "SPY730"),
    "overlapping_lx": ("lx", "SPY731"),
    "stale_lx": ("lx", "SPY732"),
    "unaligned": ("align", "SPY735"),
    "tiling_by_host_strides": ("cover", "SPY720"),
}
"""The check that finds the defect of each wrong program, and the code."""


def written_by(program: Callable[[Path], Path]) -> Edit:
    """Write a program with its launch_spec.json."""

    def edit(directory: Path) -> None:
        program(directory)

    return edit


def found(name: str, code: str, words: str, *edits: Edit, bundle: Any = None) -> CorpusCase:
    return CorpusCase(name, Stage.SANITIZE, code, bundle, edits, (BUNDLE, *words.split()))


def program_cases(name: str) -> tuple[CorpusCase, CorpusCase]:
    """A wrong program under all checks, and under the one that finds its defect.

    Results of races are not defined, so those print findings only.
    """
    check, code = CHECKS[name]
    edit = written_by(programs.WRONG[name])
    quiet = " -q" if check == "race" else ""
    return (
        found(f"sanitize_{name}", code, f"--sanitize{quiet}", edit),
        found(f"sanitize_{check}_{name}", code, f"--sanitize={check}{quiet}", edit),
    )


def five_tiles(pool: bool) -> BundleContents:
    """|x| of 32 rows in five tiles of 8: the last one is behind the tensor that is read."""
    builder = BundleBuilder()
    x, y = (builder.argument(NBYTES) for _ in range(2))
    source = builder.temporary(NBYTES) if pool else x
    with builder.loop(5) as tile:
        place = HostOperand(source.at(0, {tile: 8 * ROW * 2}))
        builder.add(pointwise("abs", (8, 128), [place], HostOperand(y.at()), {"mb": 2}))
    return builder.build()


def neighbours(*names: str) -> tuple[Edit, Edit]:
    """A case whose buffers lie one behind the other; ``p`` is the pool."""
    buffers = {
        "x": buffer("x", region=0),
        "y": buffer(region=0),
        "p": {"kind": "pool", "nbytes": NBYTES, "region": 0},
    }
    content = {
        "name": "neighbours",
        "tolerance": {"atol": 0, "rtol": 0},
        "buffers": {name: buffers[name] for name in names},
        "launches": [{"bundle": ".", "args": list(names), "arg_index": ARGUMENTS[names]}],
        "outputs": [],
    }
    values = {"x": np.ones((32, 128), np.float16)}
    return write("case.json", json.dumps(content)), arrays("values.npz", **values)


ARGUMENTS = {("x", "y"): [0, 1], ("p", "x", "y"): [-1, 0, 1]}

CASES = (
    *(case for name in programs.WRONG for case in program_cases(name)),
    found("core_of_another_slice", "SPY706", "--check", written_by(programs.two_writers)),
    found("past_the_end", "SPY705", "--check", written_by(programs.past_the_end)),
    found(
        "check_tiling_by_host_strides",
        "SPY704",
        "--check",
        written_by(programs.tiling_by_host_strides),
    ),
    found(
        "sanitize_into_the_neighbour",
        "SPY701",
        "--sanitize=memory",
        *neighbours("x", "y"),
        bundle=lambda: five_tiles(pool=False),
    ),
    found(
        "sanitize_out_of_the_pool",
        "SPY703",
        "--sanitize=memory",
        *neighbours("p", "x", "y"),
        bundle=lambda: five_tiles(pool=True),
    ),
    found("sanitize_unknown_check", "SPY739", "--sanitize=init,memry", written_by(programs.right)),
    found("unknown_core_order", "SPY739", "--core-order backwards", written_by(programs.right)),
)
