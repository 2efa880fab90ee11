"""Windows that slide over a padded tensor, as strided views; and pooling over them.

Sticks run along the channels, so that every place of the window, for all positions at once, is one
view of the padded tensor. Pooling visits the places one after the other, each for all positions at
once. Backward passes add the gradients of each place to a padded input of zeros, in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial, reduce
from math import lcm, prod
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from spyre.torch_backend.compat import COMPOSITE_KEYS, operator
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import FLOATS, Arguments, Conditions, Row, copy_into
from spyre.torch_backend.eager.indexing import row_numbers
from spyre.torch_backend.eager.launch import in_format_of, run
from spyre.torch_backend.eager.special import along
from spyre.torch_backend.program import (
    DeviceOp,
    Ints,
    Lowering,
    LoweringError,
    OpKind,
    Value,
    narrowed,
    selected,
)


class Windows(msgspec.Struct, frozen=True, dict=True):
    """Windows over the spatial dims of [batch, channels, *spatial]; per spatial dim, in elements.

    ``extents``: of the input. ``positions``: number of windows, at distances of ``stride``.
    ``size``: places of a window, at distances of ``dilation``. ``before``: padding in front.
    ``spread``: distance of the input's elements in the padded tensor, with padding between them.
    """

    extents: Ints
    positions: Ints
    size: Ints
    stride: Ints
    before: Ints
    dilation: Ints
    spread: Ints

    @classmethod
    def of(cls, extents: Sequence[int], *others: Sequence[int]) -> Windows:
        """Windows over a tensor without padding between its elements; ``others``: the other fields
        but ``spread``.
        """
        return cls(*(tuple(map(int, row)) for row in (extents, *others, [1] * len(extents))))

    def reversed(self) -> Windows:
        """Return windows over the positions of these, one per element of their input, by which a
        gradient is gathered; places are in reverse order.

        LoweringError if windows reach only padding.
        """
        columns = zip(self.dilation, self.size, self.before, strict=True)
        before = tuple(d * (k - 1) - b for d, k, b in columns)
        if min(before) < 0:
            raise LoweringError("windows with more padding than they reach")
        ones = (1,) * len(self.size)
        return Windows(
            self.positions, self.extents, self.size, ones, before, self.dilation, self.stride
        )

    @cached_property
    def padded(self) -> Ints:
        """Extents of the padded input: all that windows reach and the input covers, in whole steps,
        so that one dim's pitch divides the next one's.
        """
        reach = [
            (p - 1) * s + d * (k - 1) + 1
            for p, s, d, k in zip(
                self.positions, self.stride, self.dilation, self.size, strict=True
            )
        ]
        covered = [
            b + (n - 1) * s + 1
            for b, n, s in zip(self.before, self.extents, self.spread, strict=True)
        ]
        steps = map(lcm, self.stride, self.spread)
        return tuple(
            -(-max(ends) // step) * step for *ends, step in zip(reach, covered, steps, strict=True)
        )

    @property
    def is_plain(self) -> bool:
        """True if the padded input is the input."""
        return self.padded == self.extents

    @property
    def is_one_place(self) -> bool:
        """True if the windows have one place each, which covers the input without padding."""
        return self.is_plain and self.positions == self.extents

    def places(self) -> Iterator[Ints]:
        """Places of the window, in the order of a weight's elements."""
        return itertools.product(*map(range, self.size))

    def seen(self, padded: Value, place: Ints) -> Value:
        """[batch, channels, *positions]: elements of the input at one place of all windows."""
        columns = zip(place, self.dilation, self.stride, self.positions, strict=True)
        for k, (step, dilation, stride, count) in enumerate(columns):
            padded = narrowed(padded, 2 + k, step * dilation, count, stride)
        return padded

    def inner(self, padded: Value) -> Value:
        """The input within the padded tensor."""
        columns = zip(self.before, self.extents, self.spread, strict=True)
        for k, (before, extent, spread) in enumerate(columns):
            padded = narrowed(padded, 2 + k, before, extent, spread)
        return padded


def laid_along(builder: Lowering, x: Value, dim: int) -> Value:
    """``x`` with memory for every element, and sticks along ``dim``."""
    return builder.with_lane(builder.materialized(x), dim if x.sizes[dim] > 1 else -1)


def filled(builder: Lowering, sizes: Sequence[int], dtype: str, lane: int, number: float) -> Value:
    """Fresh memory with one number everywhere."""
    into = builder.scratch(sizes, dtype, lane)
    return builder.copy_to(builder.constant(number, dtype), into)


def restickified(builder: Lowering, source: Value, target: Value) -> Value:
    """Like `Lowering.copy_to`, from sticks along one dim to sticks along another."""
    if source.lane_dim == target.lane_dim:
        return builder.copy_to(source, target)
    return builder.add(DeviceOp(OpKind.RESTICKIFY, "ReStickifyOpHBM", (source,), target))


def padded_input(builder: Lowering, x: Value, windows: Windows, number: float = 0.0) -> Value:
    """The padded tensor, with sticks along the channels and zeros in the lanes behind them."""
    x = laid_along(builder, x, 1)
    channels, lanes = x.sizes[1], x.view.elements_per_stick
    is_whole = x.lane_dim < 0 or channels % lanes == 0
    if windows.is_plain and is_whole:
        return x
    sizes = (*x.sizes[:2], *windows.padded)
    if windows.is_plain:
        into = inner = builder.scratch(sizes, x.dtype, x.lane_dim)
    else:
        into = filled(builder, sizes, x.dtype, x.lane_dim, number)
        inner = windows.inner(into)
    if is_whole:
        builder.copy_to(x, inner)
    else:
        builder.write("mul", (x, builder.constant(1.0, x.dtype)), inner, mask_from=channels)
    return into


# --- lowerings -----------------------------------------------------------------------------------


def largest_in_windows(builder: Lowering, x: Value, *args: Any) -> tuple[Value, Value]:
    """The largest elements, the first of equal ones, and their places in the spatial dims (int64).

    NaN counts as larger than every number.
    """
    *lines, windows, dtype = args
    padded = padded_input(builder, builder.convert(x, dtype), windows, float("-inf"))
    base = _flat_positions(builder, lines, windows)
    first, *others = windows.places()
    seen = windows.seen(padded, first)
    position = _moved(builder, base, windows, first)
    best, best_position = builder.copy(seen), builder.broadcast(position, seen.sizes)
    for place in others:
        seen, position = windows.seen(padded, place), _moved(builder, base, windows, place)
        better = builder.pointwise("greaterthan", seen, best)
        if dtype == "float32":
            is_nan = builder.pointwise("notequal", seen, seen)
            better = builder.pointwise("maximum", better, is_nan)
        best = builder.pointwise("where3", better, seen, best)
        better = builder.convert(better, "float32")
        best_position = builder.pointwise("where3", better, position, best_position)
    return best, builder.convert(best_position, "int64")


def _flat_positions(builder: Lowering, lines: Sequence[Value], windows: Windows) -> Value:
    """[1, 1, *positions] in float32: where windows begin, counted through the spatial dims."""

    def begins(k: int) -> Value:
        pitch = prod(windows.extents[k + 1 :])
        line = along(lines[k], 2 + k, 2 + len(lines))
        steps = builder.pointwise("mul", line, windows.stride[k] * pitch)
        return builder.pointwise("add", steps, -windows.before[k] * pitch)

    return reduce(partial(builder.pointwise, "add"), map(begins, range(len(lines))))


def _moved(builder: Lowering, base: Value, windows: Windows, place: Ints) -> Value:
    """Positions in the input of a place of all windows."""
    steps = zip(place, windows.dilation, strict=True)
    offset = sum(n * d * prod(windows.extents[k + 1 :]) for k, (n, d) in enumerate(steps))
    return builder.pointwise("add", base, offset) if offset else base


def largest_backward(builder: Lowering, grad: Value, positions: Value, *args: Any) -> Value:
    """Gradients, each to the element that was the largest."""
    *lines, windows, dtype = args
    grad = builder.convert(grad, "float32")
    chosen = builder.convert(positions, "float32")
    base = _flat_positions(builder, lines, windows)

    def share(place: Ints) -> Value:
        hit = builder.pointwise("equal", chosen, _moved(builder, base, windows, place))
        return builder.pointwise("where3", hit, grad, 0.0)

    return builder.convert(_handed_back(builder, grad, windows, share), dtype)


def _handed_back(
    builder: Lowering, grad: Value, windows: Windows, share: Callable[[Ints], Value]
) -> Value:
    """[batch, channels, *extents]: per input element the sum of gradients ``share(place)``."""
    lane = 1 if grad.sizes[1] > 1 else -1
    total = filled(builder, (*grad.sizes[:2], *windows.padded), "float32", lane, 0.0)
    for place in windows.places():
        seen = windows.seen(total, place)
        part = builder.with_lane(share(place), lane)
        builder.write("add", (seen, part), seen)
    return builder.copy(windows.inner(total))


def mean_in_windows(builder: Lowering, x: Value, *args: Any) -> Value:
    """Σ over the window, in float32, times a number or a factor per position."""
    *factors, windows, number, dtype = args
    padded = padded_input(builder, builder.convert(x, "float32"), windows)
    first, *others = (windows.seen(padded, place) for place in windows.places())
    total = reduce(partial(builder.pointwise, "add"), others, builder.copy(first))
    return builder.convert(_scaled(builder, total, factors, number), dtype)


def mean_backward(builder: Lowering, grad: Value, *args: Any) -> Value:
    """Every element's gradients, scaled as its window's mean was."""
    *factors, windows, number, dtype = args
    share = _scaled(builder, builder.convert(grad, "float32"), factors, number)
    return builder.convert(_handed_back(builder, share, windows, lambda _: share), dtype)


def _scaled(builder: Lowering, x: Value, factors: Sequence[Value], number: float) -> Value:
    return builder.pointwise("mul", x, factors[0] if factors else number)


def columns_of_windows(builder: Lowering, x: Value, windows: Windows) -> Value:
    """[batch, channels, places, *positions]: the elements that every place of the windows sees."""
    padded = padded_input(builder, x, windows)
    sizes = (*x.sizes[:2], prod(windows.size), *windows.positions)
    into = builder.scratch(sizes, x.dtype, padded.lane_dim)
    for number, place in enumerate(windows.places()):
        builder.copy_to(windows.seen(padded, place), selected(into, 2, number))
    return into


# --- windows of aten's arguments -----------------------------------------------------------------


def _pool_windows(x: torch.Tensor, positions: Sequence[int], args: Arguments) -> Windows:
    rank, size = len(positions), args.kernel_size
    numbers = (size, args.stride or size, args.padding, getattr(args, "dilation", (1,)))
    lists = ([*row] * rank if len(row) == 1 else [*row] for row in numbers)
    return Windows.of(x.shape[-rank:], positions, *lists)


def _lines(windows: Windows, device: torch.device) -> list[torch.Tensor]:
    return [row_numbers(n, device) for n in windows.positions]


def _batched(x: torch.Tensor, rank: int) -> torch.Tensor:
    """With a batch dim where there is none."""
    return x if x.dim() == rank + 2 else x.unsqueeze(0)


def _sized_results(
    name: str, x: torch.Tensor, parameters: Sequence[Any], results: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """``results`` resized to the operator's shapes, or new tensors if there are none; raises
    torch's errors for wrong windows.
    """
    meta = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
    like = getattr(torch.ops.aten, name)(meta, *parameters)
    like = like if isinstance(like, tuple) else (like,)
    if not results:
        return [torch.empty_like(t, device=x.device) for t in like]
    for out, made in zip(results, like, strict=True):
        if out.shape != made.shape:
            out.resize_(made.shape)
    return results


# --- kernels: spatial rank, then aten's arguments ------------------------------------------------


def max_pool(rank: int, args: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and positions; max_pool3d_with_indices makes these results."""
    x, name = args.self, f"max_pool{rank}d_with_indices"
    parameters = (args.kernel_size, args.stride, args.padding, args.dilation, args.ceil_mode)
    results = _sized_results(name, x, parameters, args.results)
    windows = _pool_windows(x, results[0].shape[-rank:], args)
    operands = [_batched(x, rank), *_lines(windows, x.device)]
    made = run("max_pool", largest_in_windows, operands, (windows, name_of(x.dtype)))
    values, positions = (
        copy_into(out, new.reshape(out.shape)) for out, new in zip(results, made, strict=True)
    )
    return values, positions


def max_pool_backward(rank: int, args: Arguments) -> torch.Tensor:
    grad, x = args.grad_output, args.self
    windows = _pool_windows(x, grad.shape[-rank:], args)
    operands = [_batched(grad, rank), _batched(args.indices, rank), *_lines(windows, x.device)]
    parameters = (windows, name_of(x.dtype))
    (result,) = run("max_pool backward", largest_backward, operands, parameters)
    (grad_input,) = args.results or [torch.empty_like(x)]
    return copy_into(grad_input, result.reshape(x.shape))


def avg_pool(rank: int, args: Arguments) -> torch.Tensor:
    x, counted = args.self, (args.count_include_pad, args.divisor_override)
    parameters: Any = (args.kernel_size, args.stride, args.padding, args.ceil_mode, *counted)
    (out,) = _sized_results(f"avg_pool{rank}d", x, parameters, args.results)
    windows = _pool_windows(x, out.shape[-rank:], args)
    factors, number = _factors(x, windows, *counted)
    parameters = (windows, number, name_of(x.dtype))
    (result,) = run("avg_pool", mean_in_windows, [_batched(x, rank), *factors], parameters)
    return copy_into(out, result.reshape(out.shape))


def avg_pool_backward(rank: int, args: Arguments) -> torch.Tensor:
    grad, x = args.grad_output, args.self
    windows = _pool_windows(x, grad.shape[-rank:], args)
    factors, number = _factors(x, windows, args.count_include_pad, args.divisor_override)
    parameters = (windows, number, name_of(x.dtype))
    operands = [_batched(grad, rank), *factors]
    (result,) = run("avg_pool backward", mean_backward, operands, parameters)
    return copy_into(args.grad_input, result.reshape(x.shape))


def _factors(
    x: torch.Tensor, windows: Windows, counts_padding: bool, divisor: int | None
) -> tuple[list[torch.Tensor], float]:
    """Return the factor of the sums: one number, or a tensor with a factor per position."""
    if divisor:
        return [], 1.0 / divisor
    counts = torch.ones(())
    for k, positions in enumerate(windows.positions):
        extent, padding = windows.extents[k], windows.before[k]
        first = torch.arange(positions) * windows.stride[k] - padding
        end = (first + windows.size[k]).clamp(max=extent + padding)
        if not counts_padding:
            first, end = first.clamp(min=0), end.clamp(max=extent)
        counts = counts.unsqueeze(-1) * (end - first)
    if counts.min() == counts.max():
        return [], 1.0 / counts.min().item()
    return [(1.0 / counts).to(x.device)], 0.0


def im2col(args: Arguments) -> torch.Tensor:
    """The windows as columns [batch, channels · places, positions]."""
    x, batched = args.self, _batched(args.self, 2)
    lists = (args.kernel_size, args.stride, args.padding, args.dilation)
    rows = zip(x.shape[-2:], *lists, strict=True)
    positions = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows]
    windows = Windows.of(x.shape[-2:], positions, *lists)
    (found,) = run("im2col", columns_of_windows, [batched], (windows,))
    found = found.reshape(len(batched), -1, prod(windows.positions))
    found = found if x.dim() == 4 else found.squeeze(0)
    return copy_into(args.results[0], found) if args.results else found


def pixel_shuffle(name: str, args: Arguments) -> torch.Tensor:
    """aten::pixel_shuffle and pixel_unshuffle, by torch's composition."""
    factor = args.upscale_factor if name == "pixel_shuffle" else args.downscale_factor
    return in_format_of(args.self, operator(name).redispatch(COMPOSITE_KEYS, args.self, factor))


def adaptive_avg_pool(rank: int, args: Arguments) -> torch.Tensor:
    """aten::_adaptive_avg_pool2d and 3d, where windows are equal."""
    pool = (torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d)[rank - 2]
    result: torch.Tensor = pool(args.self, _equal_windows(args.self, args.output_size))
    return result


def _equal_windows(x: torch.Tensor, positions: Sequence[int]) -> list[int]:
    return [n // p for n, p in zip(x.shape[-len(positions) :], positions, strict=True)]


def adaptive_avg_pool_backward(rank: int, args: Arguments) -> torch.Tensor:
    size = _equal_windows(args.self, args.grad_output.shape[-rank:])
    arguments = (size, size, [0] * rank, False, True, None)
    backward = (torch.ops.aten.avg_pool2d_backward, torch.ops.aten.avg_pool3d_backward)[rank - 2]
    result: torch.Tensor = backward(args.grad_output, args.self, *arguments)
    return result


def _has_equal_windows(rank: int, args: Arguments) -> bool:
    sizes = args.output_size if hasattr(args, "output_size") else args.grad_output.shape[-rank:]
    pairs = zip(args.self.shape[-rank:], sizes, strict=True)
    return all(positions and n % positions == 0 for n, positions in pairs)


def _kernels(rank: int) -> Iterator[Row]:
    tensors = ("grad_output", "self")
    forward, backward = (
        Conditions(
            dtypes=dict.fromkeys(names, FLOATS), same_dtype=names, same_device=names, nonempty=names
        )
        for names in (tensors[1:], tensors)
    )
    equal = partial(_has_equal_windows, rank)

    def exact(args: Arguments) -> bool:
        """Positions of the largest elements are exact in float32."""
        return bool(prod(args.self.shape[-rank:]) < 1 << 24)

    average, largest = f"avg_pool{rank}d", f"max_pool{rank}d_with_indices"
    adaptive = f"_adaptive_avg_pool{rank}d"
    rows = (
        (f"{largest}.out", max_pool, replace(forward, check=exact)),
        (f"{largest}_backward.grad_input", max_pool_backward, replace(backward, check=exact)),
        (f"{average}.out", avg_pool, forward),
        (f"{average}_backward.grad_input", avg_pool_backward, backward),
        (adaptive, adaptive_avg_pool, replace(forward, check=equal)),
        (f"{adaptive}_backward", adaptive_avg_pool_backward, replace(backward, check=equal)),
        (largest, max_pool, replace(forward, check=exact)),
        (f"{largest}_backward", max_pool_backward, replace(backward, check=exact)),
    )
    for name, function, conditions in rows[: 8 if rank == 3 else 6]:
        yield (name, partial(function, rank), conditions)


_COLUMNS = Conditions(dtypes={"inputs": FLOATS}, same_dtype=("self", "out"), nonempty=("self",))

KERNELS = (
    *_kernels(2),
    *_kernels(3),
    ("im2col", im2col, _COLUMNS),
    ("im2col.out", im2col, _COLUMNS),
    *((name, partial(pixel_shuffle, name), None) for name in ("pixel_shuffle", "pixel_unshuffle")),
)
