"""``--expect`` and ``--break``: observers of a run, and the text and JSON of their results."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.cli.options import ExecuteOptions
from spyre.errors import LaunchError

if TYPE_CHECKING:
    from spyre.diagnose import (
        Breakpoint,
        Deviation,
        FirstDivergence,
    )
    from spyre.runtime.compare import ExecuteObserver
    from spyre.runtime.run import Run, RunResult

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Debugging:
    """Observers of a run. ``search``: for ``--expect``; ``breakpoint``: for ``--break``;
    ``outputs``: results of the expected function, in its order.
    """

    search: FirstDivergence | None = None
    breakpoint: Breakpoint | None = None
    outputs: tuple[Array, ...] = ()

    @property
    def observers(self) -> list[ExecuteObserver]:
        """The observers there are."""
        both: tuple[ExecuteObserver | None, ...] = (self.search, self.breakpoint)
        return [observer for observer in both if observer is not None]

    @property
    def deviation(self) -> Deviation | None:
        """The first execute that deviates, if one is known."""
        return None if self.search is None else self.search.found

    def match_outputs(self, result: RunResult) -> dict[int, Array]:
        """Results of the function by number of the output; none without ``--expect``."""
        if not self.outputs:
            return {}
        from spyre.diagnose import match_outputs

        return match_outputs(result.outputs, self.outputs)

    def check_outputs(self, run: Run, result: RunResult) -> None:
        """If no execute deviated, find the one that wrote wrong elements of an output.

        LaunchError SPY624 if the run did not reach the breakpoint.
        """
        if self.breakpoint is not None:
            self.breakpoint.require_reached()
        if self.search is not None:
            known = {k: o.expected() for k, o in enumerate(run.outputs) if o.expected is not None}
            expected = known or self.match_outputs(result)
            self.search.check_outputs(result.output_tensors, result.places, expected)


def debug_run(options: ExecuteOptions, run: Run) -> Debugging:
    """The observers that the options ask for. Errors of `load_function`, `divergence_search`."""
    point = None
    if options.break_at is not None:
        from spyre.diagnose import Breakpoint

        number, loops = options.break_at
        point = Breakpoint(number, loops, options.tensors)
    if options.expect is None:
        return Debugging(None, point)
    from spyre.torch_backend.torch_reference import divergence_search, load_function

    search, outputs = divergence_search(load_function(options.expect), run)
    return Debugging(search, point, outputs)


# --- reports ----------------------------------------------------------------------------------


def print_debugging(debugging: Debugging, options: ExecuteOptions, differs: bool) -> None:
    """Print tensors of the breakpoint and, if outputs differ, the first execute that deviates."""
    if debugging.breakpoint is not None:
        print_tensors(debugging.breakpoint, options)
    if debugging.search is None or not differs:
        return
    if debugging.deviation is None:
        print("no execute deviates from a value that the function has", file=sys.stderr)
        return
    from spyre.diagnose import map_lines, verdict_lines

    print(debugging.deviation.to_finding(), file=sys.stderr)
    for line in map_lines(debugging.deviation):
        print(line)
    for line in verdict_lines(debugging.search):
        print(line)


def print_tensors(point: Breakpoint, options: ExecuteOptions) -> None:
    """Print the operands at the breakpoint, and save them if asked to."""
    for name, tile in point.tensors.items():
        head = f"execute {point.number}, {name}"
        if tile is None:
            print(f"{head}: its elements cannot be located by addresses alone")
            continue
        extents = zip(tile.dims, tile.values.shape, strict=True)
        shape = " x ".join(f"{d} {n}" for d, n in extents) or "one element"
        print(f"{head}: {shape}")
        with np.printoptions(threshold=64, edgeitems=3, linewidth=100, precision=6):
            print(tile.values)
    if options.save_tensors is not None:
        kept = {name: tile.values for name, tile in point.tensors.items() if tile is not None}
        _save(options.save_tensors, kept)


def _save(file: str, arrays: Mapping[str, Array]) -> None:
    try:
        with open(file, "wb") as target:
            np.savez(target, **arrays)  # type: ignore[arg-type]  # names are not its parameters
    except OSError as error:
        raise LaunchError(
            "SPY381", f"cannot write {file}", found=str(error.strerror or error)
        ) from error
