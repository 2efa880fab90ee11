"""Spans: how much memory from first to last byte a core's slice of a tensor lies in.

A core reaches 256 MiB of device memory per tensor (hardware reference §2). `reduce_spans` divides
dims until every slice fits; `check_spans` raises where one does not (§4.1, step 3). Spans are
computed for many ways to divide at once: arrays, one entry per way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from spyre.errors import UnsupportedError
from spyre.hw.spec import STICK_BYTES
from spyre.torch_backend.inductor.bundles import LX, DeviceDim
from spyre.torch_backend.inductor.division.iteration import Iteration, Splits, splits_within

MAX_SPAN_BYTES = 256 << 20
"""What a core reaches of one tensor."""
_MIB = 1 << 20

logger = logging.getLogger(__name__)


def spans_bytes(iteration: Iteration, number: int, splits: Splits) -> npt.NDArray[np.int64]:
    """Span of tensor ``number`` per core for every row of ``splits`` (a column per dim), in bytes.

    The outermost device dim a core moves along at all decides: its steps times everything below.
    """
    spans = np.full(len(splits), STICK_BYTES, np.int64)
    for dim in reversed(iteration.op.device_dims(number)):
        steps = _steps_along(iteration, number, dim, splits)
        spans = np.where(steps > 1, steps * dim.pitch_bytes, spans)
    return spans


def _steps_along(
    iteration: Iteration, number: int, dim: DeviceDim, splits: Splits
) -> npt.NDArray[np.int64]:
    """Steps a core takes along a device dim, per row of ``splits``; all where an index does it."""
    op = iteration.op
    indirect = op.indirect_dim(number)
    if indirect >= 0 and op.tensors[number].pitches[indirect] == dim.pitch_bytes:
        return np.full(len(splits), dim.size, np.int64)
    steps = np.ones(len(splits), np.int64)
    for k, unit in dim.walked:
        steps += (iteration.dims[k].elements_per_core(splits[:, k]) - 1) // unit
    return steps


def reduce_spans(
    iteration: Iteration,
    cores: int,
    committed: Mapping[str, int],
    limit_bytes: int = MAX_SPAN_BYTES,
) -> dict[str, int]:
    """Pass 1: the splits needed so that spans fit, on top of ``committed``; only those over 1.

    Device dims are looked at from the outermost in, the dims that move along each are divided
    together: by what leaves the largest span that fits, else by what leaves the smallest.
    UnsupportedError SPY981 if several reduced dims would be divided.
    """
    splits = {symbol: committed.get(symbol, 1) for symbol in iteration.symbols}
    for number in device_tensors(iteration):
        for dim in iteration.op.device_dims(number):
            if _span(iteration, number, splits) <= limit_bytes:
                break
            splits |= _best_splits(iteration, number, dim, splits, cores, limit_bytes)
            if int(_steps_along(iteration, number, dim, _row(iteration, splits))[0]) > 1:
                break
    check_one_reduction(iteration, splits, "to fit the memory a core reaches")
    return {symbol: count for symbol, count in splits.items() if count > 1}


def _best_splits(
    iteration: Iteration,
    number: int,
    dim: DeviceDim,
    found: Mapping[str, int],
    cores: int,
    limit_bytes: int,
) -> dict[str, int]:
    """New splits of the dims that move along a device dim; the first of equally good ones."""
    inside = {iteration.symbols[k] for k, _ in dim.walked}
    options = [
        [n for n in own.splits(cores) if n >= found[own.symbol]]
        if own.symbol in inside and not own.kept_whole
        else [found[own.symbol]]
        for own in iteration.dims
    ]
    rows = splits_within(options, cores)
    if not len(rows):
        return {}
    spans = spans_bytes(iteration, number, rows)
    fits = spans <= limit_bytes
    best = int(np.argmax(np.where(fits, spans, -1)) if fits.any() else np.argmin(spans))
    return dict(zip(iteration.symbols, map(int, rows[best]), strict=True))


def device_tensors(iteration: Iteration) -> list[int]:
    """Numbers of the tensors in device memory: the limit does not concern the scratchpads."""
    return [k for k, tensor in enumerate(iteration.op.tensors) if tensor.memory != LX]


def check_one_reduction(iteration: Iteration, splits: Mapping[str, int], purpose: str) -> None:
    """UnsupportedError SPY981 if more than one reduced dim is divided."""
    divided = [s for s in iteration.symbols if s in iteration.reduced and splits.get(s, 1) > 1]
    if len(divided) > 1:
        raise UnsupportedError(
            "SPY981",
            f"{iteration.name} would have several reduced dims divided {purpose}",
            expected="at most one",
            found=splits_text({symbol: splits[symbol] for symbol in divided}),
            hint="tile the operation, or make its tensors smaller",
        )


def check_spans(
    iteration: Iteration, splits: Mapping[str, int], *, raises: bool = True
) -> list[str]:
    """What does not fit under the final ``splits``: UnsupportedError SPY980 (planner August), or
    a critical log record and a line per tensor (planner June) where ``raises`` is False.
    """
    lines: list[str] = []
    for number in device_tensors(iteration):
        span = _span(iteration, number, splits)
        if span <= MAX_SPAN_BYTES:
            continue
        error = _overflow(iteration, number, span, splits)
        if raises:
            raise error
        logger.critical("%s", error)
        lines.append(f"argument {number} spans {_mib(span)} per core, more than a core reaches")
    return lines


def _overflow(
    iteration: Iteration, number: int, span: int, splits: Mapping[str, int]
) -> UnsupportedError:
    return UnsupportedError(
        "SPY980",
        f"argument {number} of {iteration.name} lies too far apart for one core",
        expected=f"at most {_mib(MAX_SPAN_BYTES)} from first to last byte of a core's slice",
        found=f"{_mib(span)}, divided as {splits_text(splits)}",
        hint="tile the operation, or divide the dim of its outermost device coordinate",
    )


def _span(iteration: Iteration, number: int, splits: Mapping[str, int]) -> int:
    return int(spans_bytes(iteration, number, _row(iteration, splits))[0])


def _row(iteration: Iteration, splits: Mapping[str, int]) -> Splits:
    return np.array([[splits.get(symbol, 1) for symbol in iteration.symbols]], np.int64)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.6g} MiB"


def splits_text(splits: Mapping[str, int] | Iterable[tuple[str, int]]) -> str:
    """``c0:4, c1:8``: splits over 1, as every message and line writes them."""
    text = ", ".join(f"{symbol}:{count}" for symbol, count in dict(splits).items() if count > 1)
    return text or "one core"
