"""``--expect`` and ``--break``: a run watched execute by execute, and what is printed of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spyre.cli.options import Options
from spyre.errors import LaunchError
from spyre.hw.counters import ExecuteLabels
from spyre.runtime.arguments import HostTensor, KernelArguments
from spyre.runtime.cases import Case
from spyre.runtime.kernel import Runner
from spyre.runtime.program import LoweredBundle

if TYPE_CHECKING:
    from spyre.runtime.expect import (
        Breakpoint,
        Deviation,
        FirstWrong,
        OperandTile,
        Subject,
        Watcher,
    )
    from spyre.runtime.run import RunResult

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Watch:
    """What watches a run. ``outputs``: of the function, in its order, without ``--expect`` none."""

    first_wrong: FirstWrong | None = None
    breakpoint: Breakpoint | None = None
    outputs: tuple[Array, ...] = ()

    @property
    def runner(self) -> Callable[[ExecuteLabels], Runner] | None:
        """What runs the launches; None where nothing watches."""
        both: tuple[Watcher | None, ...] = (self.first_wrong, self.breakpoint)
        watchers = [watcher for watcher in both if watcher is not None]
        if not watchers:
            return None
        from spyre.runtime.expect import watched

        return watched(watchers)

    def judge_outputs(self, result: RunResult, expected: Mapping[int, Array]) -> None:
        """Where no execute deviated: who left wrong elements in the outputs, by their number.

        LaunchError SPY624 if the run did not come to the breakpoint.
        """
        if self.breakpoint is not None:
            self.breakpoint.require_reached()
        if self.first_wrong is None:
            return
        self.first_wrong.judge_outputs(result.output_tensors, result.places, expected)

    def placed_outputs(self, result: RunResult) -> dict[int, Array]:
        """What the function expects of the outputs, by their number."""
        if not self.outputs:
            return {}
        from spyre.runtime.expect import placed_outputs

        return placed_outputs(result.outputs, self.outputs)

    @property
    def deviation(self) -> Deviation | None:
        """The first execute that deviates, if one is known."""
        return None if self.first_wrong is None else self.first_wrong.found


NOTHING = Watch()


def is_watched(options: Options) -> bool:
    """Whether a run is to be watched."""
    return options.expect is not None or options.break_at is not None


def watch_case(options: Options, case: Case) -> Watch:
    """The watch of a case. Errors as of `load_function`."""
    if not is_watched(options):
        return NOTHING
    from spyre.runtime.expect import case_subject

    return _watch(options, lambda: case_subject(case))


def watch_bundle(
    options: Options,
    bundle: LoweredBundle,
    arguments: KernelArguments,
    inputs: Sequence[HostTensor],
) -> Watch:
    """The watch of a bundle. Errors as of `load_function` and `bundle_subject`."""
    if not is_watched(options):
        return NOTHING
    from spyre.runtime.expect import bundle_subject

    values = dict(options.values)
    return _watch(options, lambda: bundle_subject(bundle, arguments, inputs, values))


def _watch(options: Options, subject_of: Callable[[], Subject]) -> Watch:
    point = None
    if options.break_at is not None:
        from spyre.runtime.expect import Breakpoint

        number, loops = options.break_at
        point = Breakpoint(number, loops, options.tensors)
    if options.expect is None:
        return Watch(None, point)
    from spyre.torch_backend.known_values import load_function, watcher_of

    wrong, outputs = watcher_of(load_function(options.expect), subject_of())
    return Watch(wrong, point, outputs)


# --- what is printed --------------------------------------------------------------------------

_SHADES = ".123456789#"
"""Share of wrong elements, in tenths: none, …, all."""
_MAP_ROWS, _MAP_COLUMNS = 16, 64


def print_watch(watch: Watch, options: Options, differs: bool) -> None:
    """Kept tensors, and where outputs differ the first execute that deviates, with its map."""
    if watch.breakpoint is not None:
        print_tensors(watch.breakpoint, options)
    if watch.first_wrong is None or not differs:
        return
    if watch.deviation is None:
        print("no execute deviates from a value that the function has", file=sys.stderr)
        return
    print(watch.deviation.to_finding(), file=sys.stderr)
    for line in map_lines(watch.deviation):
        print(line)
    for line in verdict_lines(watch.first_wrong):
        print(line)


def map_lines(deviation: Deviation) -> list[str]:
    """Where the wrong elements are: a character per core, and the tile in blocks."""
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


def verdict_lines(watch: FirstWrong) -> list[str]:
    """A line per execute up to the one that deviates."""
    lines = ["executes before it:"]
    for verdict in watch.verdicts.values():
        if verdict.deviated:
            break
        counts = f"{verdict.agreed} of {verdict.agreed + verdict.unknown}"
        known = f"{counts} agree with {verdict.value}" if verdict.agreed else "no known value"
        lines.append(f"  {verdict.number:3} {verdict.operation:14} {verdict.sdsc}: {known}")
    return lines if len(lines) > 1 else []


def print_tensors(point: Breakpoint, options: Options) -> None:
    """The operands kept at the breakpoint, and the file they are saved in."""
    for name, tile in point.tensors.items():
        head = f"execute {point.number}, {name}"
        if tile is None:
            print(f"{head}: no address rule alone says where its elements are")
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
    """For ``--json``."""
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
