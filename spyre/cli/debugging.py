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
    from spyre.runtime.compare import ExecuteObserver
    from spyre.runtime.first_divergence import (
        Breakpoint,
        Deviation,
        FirstDivergence,
        OperandTile,
    )
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
        from spyre.runtime.first_divergence import match_outputs

        return match_outputs(result.outputs, self.outputs)

    def check_outputs(self, result: RunResult, expected: Mapping[int, Array]) -> None:
        """If no execute deviated, find the one that wrote wrong elements of an output.

        LaunchError SPY624 if the run did not reach the breakpoint.
        """
        if self.breakpoint is not None:
            self.breakpoint.require_reached()
        if self.search is not None:
            self.search.check_outputs(result.output_tensors, result.places, expected)


def debug_run(options: ExecuteOptions, run: Run) -> Debugging:
    """The observers that the options ask for. Errors of `load_function`, `divergence_search`."""
    point = None
    if options.break_at is not None:
        from spyre.runtime.first_divergence import Breakpoint

        number, loops = options.break_at
        point = Breakpoint(number, loops, options.tensors)
    if options.expect is None:
        return Debugging(None, point)
    from spyre.torch_backend.torch_reference import divergence_search, load_function

    search, outputs = divergence_search(load_function(options.expect), run)
    return Debugging(search, point, outputs)


# --- reports ----------------------------------------------------------------------------------

_SHADES = ".123456789#"
"""Share of wrong elements, in tenths: none, …, all."""
_MAP_ROWS, _MAP_COLUMNS = 16, 64


def print_debugging(debugging: Debugging, options: ExecuteOptions, differs: bool) -> None:
    """Print tensors of the breakpoint and, if outputs differ, the first execute that deviates."""
    if debugging.breakpoint is not None:
        print_tensors(debugging.breakpoint, options)
    if debugging.search is None or not differs:
        return
    if debugging.deviation is None:
        print("no execute deviates from a value that the function has", file=sys.stderr)
        return
    print(debugging.deviation.to_finding(), file=sys.stderr)
    for line in map_lines(debugging.deviation):
        print(line)
    for line in verdict_lines(debugging.search):
        print(line)


def map_lines(deviation: Deviation) -> list[str]:
    """A map of the wrong elements: a character per core, and one per block of the tile."""
    shares = deviation.by_core
    loops = f", loop indices {deviation.location.loop_indices}"
    where = loops if deviation.location.loop_indices else ""
    cores = f"cores {min(shares)} to {max(shares)}" if len(shares) > 1 else f"core {min(shares)}"
    of = f"execute {deviation.number}{where}"
    if deviation.is_of_output:
        of = f"output {deviation.value}"
    lines = [
        f"mismatch map of {of} ('.' right, '#' all wrong)",
        f"  {cores}: {''.join(map(_shade, shares.values()))}",
    ]
    wrong = deviation.wrong
    rows = wrong.reshape(-1, wrong.shape[-1])
    shown = " x ".join(f"{d} {n}" for d, n in zip(deviation.dims, wrong.shape, strict=True))
    lines.append(f"  elements, {shown}:")
    for block in np.array_split(rows, min(_MAP_ROWS, len(rows)), axis=0):
        columns = np.array_split(block, min(_MAP_COLUMNS, block.shape[1]), axis=1)
        lines.append("    " + "".join(_shade(float(part.mean())) for part in columns))
    return lines


def _shade(share: float) -> str:
    inner = len(_SHADES) - 2
    if share in (0.0, 1.0):
        return _SHADES[-1 if share else 0]
    return _SHADES[1 + min(inner - 1, int(share * inner))]


def verdict_lines(search: FirstDivergence) -> list[str]:
    """A line per execute before the one that deviates."""
    lines = ["executes before it:"]
    for verdict in search.verdicts.values():
        if verdict.deviated:
            break
        counts = f"{verdict.agreed} of {verdict.agreed + verdict.unknown}"
        known = f"{counts} agree with {verdict.value}" if verdict.agreed else "no known value"
        lines.append(f"  {verdict.number:3} {verdict.operation:14} {verdict.sdsc}: {known}")
    return lines if len(lines) > 1 else []


def print_tensors(point: Breakpoint, options: ExecuteOptions) -> None:
    """Print the operands at the breakpoint, and save them if asked to."""
    for name, tile in point.tensors.items():
        head = f"execute {point.number}, {name}"
        if tile is None:
            print(f"{head}: its elements cannot be located by addresses alone")
            continue
        print(f"{head}: {_shape_text(tile)}")
        with np.printoptions(threshold=64, edgeitems=3, linewidth=100, precision=6):
            print(tile.values)
    if options.save_tensors is not None:
        kept = {name: tile.values for name, tile in point.tensors.items() if tile is not None}
        _save(options.save_tensors, kept)


def _shape_text(tile: OperandTile) -> str:
    pairs = zip(tile.dims, tile.values.shape, strict=True)
    return " x ".join(f"{d} {n}" for d, n in pairs) or "one element"


def _save(file: str, arrays: Mapping[str, Array]) -> None:
    try:
        with open(file, "wb") as target:
            np.savez(target, **arrays)  # type: ignore[arg-type]  # names are not its parameters
    except OSError as error:
        raise LaunchError(
            "SPY381", f"cannot write {file}", found=str(error.strerror or error)
        ) from error


def deviation_object(deviation: Deviation) -> dict[str, Any]:
    """The deviation as a JSON object."""
    place = deviation.location
    return {
        "execute": deviation.number,
        "sdsc": place.sdsc,
        "operation": deviation.operation,
        "tensor": place.tensor,
        "loop_indices": place.loop_indices,
        "core": place.core,
        "reads": deviation.is_read,
        "value": deviation.value,
        "dims": deviation.dims,
        "index": deviation.worst,
        "expected": deviation.expected,
        "found": deviation.found,
        "mismatched": int(deviation.wrong.sum()),
        "total": deviation.wrong.size,
        "mismatched_share_by_core": {str(k): v for k, v in deviation.by_core.items()},
    }
