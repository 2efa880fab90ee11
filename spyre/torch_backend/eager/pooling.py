"""Pooling: the largest element or the mean of what windows see, with their backward passes.

The places of the window are visited one after the other, each for all positions at once. Backward
passes add up, in float32 and in memory of the padded input, what every place hands back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch

from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import (
    FLOATS,
    Arguments,
    Conditions,
    EagerKernel,
    copy_into,
)
from spyre.torch_backend.eager.indexing import row_numbers
from spyre.torch_backend.eager.launch import run
from spyre.torch_backend.eager.windows import Windows, filled, padded_input
from spyre.torch_backend.program import DeviceOp, Ints, Lowering, OpKind, Value

# --- lowerings -----------------------------------------------------------------------------------


def largest_in_windows(low: Lowering, x: Value, *args: Any) -> tuple[Value, Value]:
    """The largest elements, the first of equal ones, and their places in the spatial dims (int64).

    NaN counts as larger than every number.
    """
    *lines, windows, dtype = args
    padded = padded_input(low, low.convert(x, dtype), windows, float("-inf"))
    base = _flat_positions(low, lines, windows)
    best = best_position = None
    for place in windows.places():
        seen, position = windows.seen(padded, place), _moved(low, base, windows, place)
        if best is None or best_position is None:
            best, best_position = low.copy(seen), low.broadcast(position, seen.sizes)
            continue
        better = low.pointwise("greaterthan", seen, best)
        if dtype == "float32":
            is_nan = low.pointwise("notequal", seen, seen)
            better = low.pointwise("maximum", better, is_nan)
        best = low.pointwise("where3", better, seen, best)
        better = low.convert(better, "float32")
        best_position = low.pointwise("where3", better, position, best_position)
    assert best is not None
    assert best_position is not None
    return best, low.convert(best_position, "int64")


def _flat_positions(low: Lowering, lines: Sequence[Value], windows: Windows) -> Value:
    """[1, 1, *positions] in float32: where windows begin, counted through the spatial dims."""
    total: Value | None = None
    for k, line in enumerate(lines):
        pitch = prod(windows.extents[k + 1 :])
        for _ in range(2 + k):
            line = line.unsqueezed(0)
        for _ in range(len(lines) - k - 1):
            line = line.unsqueezed(len(line.sizes))
        step = low.constant(windows.stride[k] * pitch, "float32")
        first = low.constant(-windows.before[k] * pitch, "float32")
        line = low.pointwise("add", low.pointwise("mul", line, step), first)
        total = line if total is None else low.pointwise("add", total, line)
    assert total is not None
    return total


def _moved(low: Lowering, base: Value, windows: Windows, place: Ints) -> Value:
    """Positions in the input of a place of all windows."""
    steps = zip(place, windows.dilation, strict=True)
    offset = sum(n * d * prod(windows.extents[k + 1 :]) for k, (n, d) in enumerate(steps))
    return low.pointwise("add", base, low.constant(offset, "float32")) if offset else base


def largest_backward(low: Lowering, grad: Value, positions: Value, *args: Any) -> Value:
    """Gradients, each to the element that was the largest."""
    *lines, windows, dtype = args
    grad = low.convert(grad, "float32")
    chosen = low.convert(positions, "float32")
    base, zero = _flat_positions(low, lines, windows), low.constant(0.0, "float32")

    def share(place: Ints) -> Value:
        hit = low.pointwise("equal", chosen, _moved(low, base, windows, place))
        return low.pointwise("where3", hit, grad, zero)

    return low.convert(_handed_back(low, grad, windows, share), dtype)


def _handed_back(
    low: Lowering, grad: Value, windows: Windows, share: Callable[[Ints], Value]
) -> Value:
    """[batch, channels, *extents]: sums of what every place hands back to the elements it saw."""
    lane = 1 if grad.sizes[1] > 1 else -1
    total = filled(low, (*grad.sizes[:2], *windows.padded), "float32", lane, 0.0)
    for place in windows.places():
        seen = windows.seen(total, place)
        part = low.with_lane(share(place), lane)
        low.builder.add(DeviceOp(OpKind.POINTWISE, "add", (seen, part), seen))
    return low.copy(windows.inner(total))


def mean_in_windows(low: Lowering, x: Value, *args: Any) -> Value:
    """Σ over the window, in float32, times a number or a factor per position."""
    *factors, windows, number, dtype = args
    padded = padded_input(low, low.convert(x, "float32"), windows)
    total: Value | None = None
    for place in windows.places():
        seen = windows.seen(padded, place)
        total = low.copy(seen) if total is None else low.pointwise("add", total, seen)
    assert total is not None
    return low.convert(_scaled(low, total, factors, number), dtype)


def mean_backward(low: Lowering, grad: Value, *args: Any) -> Value:
    """Every element's gradients, scaled as its window's mean was."""
    *factors, windows, number, dtype = args
    share = _scaled(low, low.convert(grad, "float32"), factors, number)
    return low.convert(_handed_back(low, share, windows, lambda _: share), dtype)


def _scaled(low: Lowering, x: Value, factors: Sequence[Value], number: float) -> Value:
    factor = factors[0] if factors else low.constant(number, "float32")
    return low.pointwise("mul", x, factor)


# --- windows of aten's arguments -----------------------------------------------------------------


def _listed(numbers: Sequence[int], count: int, default: Sequence[int] = ()) -> list[int]:
    numbers = list(numbers) or list(default)
    return numbers * count if len(numbers) == 1 else numbers


def _pool_windows(
    x: torch.Tensor,
    positions: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int] = (1,),
) -> Windows:
    rank = len(positions)
    kernel = _listed(kernel, rank)
    lists = (_listed(stride, rank, kernel), _listed(padding, rank), _listed(dilation, rank))
    return Windows.of(x.shape[-rank:], positions, kernel, *lists)


def _lines(windows: Windows, device: torch.device) -> list[torch.Tensor]:
    return [row_numbers(n, device) for n in windows.positions]


def _batched(x: torch.Tensor, rank: int) -> torch.Tensor:
    """With a batch dim where there is none."""
    return x if x.dim() == rank + 2 else x.unsqueeze(0)


def _size_results(
    name: str, x: torch.Tensor, parameters: Sequence[Any], *outs: torch.Tensor
) -> None:
    """Tensors that the caller gives get the sizes of results; torch's errors for wrong windows."""
    meta = torch.empty(x.shape, dtype=x.dtype, device="meta")
    like = getattr(torch.ops.aten, name)(meta, *parameters)
    for out, result in zip(outs, like if isinstance(like, tuple) else (like,), strict=True):
        if out.shape != result.shape:
            out.resize_(result.shape)


# --- kernels: spatial rank, then aten's arguments ------------------------------------------------


def max_pool(
    rank: int,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
    *,
    out: torch.Tensor,
    indices: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::max_pool2d_with_indices.out and max_pool3d_with_indices."""
    given = kernel, stride, padding, dilation, ceil_mode
    _size_results(f"max_pool{rank}d_with_indices", x, given, out, indices)
    windows = _pool_windows(x, out.shape[-rank:], kernel, stride, padding, dilation)
    operands = [_batched(x, rank), *_lines(windows, x.device)]
    parameters = (windows, name_of(x.dtype))
    values, positions = run("max_pool", largest_in_windows, operands, parameters)
    found = values.reshape(out.shape), positions.reshape(out.shape)
    return copy_into(out, found[0]), copy_into(indices, found[1])


def max_pool_backward(
    rank: int,
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: torch.Tensor,
    *,
    grad_input: torch.Tensor,
) -> torch.Tensor:
    """aten::max_pool2d_with_indices_backward.grad_input, and that of three dims."""
    windows = _pool_windows(x, grad.shape[-rank:], kernel, stride, padding, dilation)
    operands = [_batched(grad, rank), _batched(indices, rank), *_lines(windows, x.device)]
    parameters = (windows, name_of(x.dtype))
    (result,) = run("max_pool backward", largest_backward, operands, parameters)
    return copy_into(grad_input, result.reshape(x.shape))


def new_max_pool(rank: int, x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """aten::max_pool3d_with_indices, which has no ``out`` variant that ATen would call."""
    meta = torch.empty(x.shape, dtype=x.dtype, device="meta")
    like = torch.ops.aten.max_pool3d_with_indices(meta, *args)
    out, indices = (torch.empty(t.shape, dtype=t.dtype, device=x.device) for t in like)
    return max_pool(rank, x, *args, out=out, indices=indices)


def new_max_pool_backward(
    rank: int, grad: torch.Tensor, x: torch.Tensor, *args: Any
) -> torch.Tensor:
    """aten::max_pool3d_with_indices_backward."""
    return max_pool_backward(rank, grad, x, *args, grad_input=torch.empty_like(x))


def avg_pool(
    rank: int,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """aten::avg_pool2d.out and avg_pool3d.out."""
    given = kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
    _size_results(f"avg_pool{rank}d", x, given, out)
    windows = _pool_windows(x, out.shape[-rank:], kernel, stride, padding)
    factors, number = _factors(x, windows, count_include_pad, divisor_override)
    parameters = (windows, number, name_of(x.dtype))
    (result,) = run("avg_pool", mean_in_windows, [_batched(x, rank), *factors], parameters)
    return copy_into(out, result.reshape(out.shape))


def avg_pool_backward(
    rank: int,
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
    *,
    grad_input: torch.Tensor,
) -> torch.Tensor:
    """aten::avg_pool2d_backward.grad_input, and that of three dims."""
    windows = _pool_windows(x, grad.shape[-rank:], kernel, stride, padding)
    factors, number = _factors(x, windows, count_include_pad, divisor_override)
    parameters = (windows, number, name_of(x.dtype))
    operands = [_batched(grad, rank), *factors]
    (result,) = run("avg_pool backward", mean_backward, operands, parameters)
    return copy_into(grad_input, result.reshape(x.shape))


def _factors(
    x: torch.Tensor, windows: Windows, counts_padding: bool, divisor: int | None
) -> tuple[list[torch.Tensor], float]:
    """What sums are multiplied by: one number, or a factor per position."""
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


def adaptive_avg_pool(rank: int, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """aten::_adaptive_avg_pool2d and 3d, where windows are equal."""
    kernel = [n // p for n, p in zip(x.shape[-rank:], sizes, strict=True)]
    pool = (torch.nn.functional.avg_pool2d, torch.nn.functional.avg_pool3d)[rank - 2]
    result: torch.Tensor = pool(x, kernel)
    return result


def adaptive_avg_pool_backward(rank: int, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Their backward passes."""
    windows_kernel = [n // p for n, p in zip(x.shape[-rank:], grad.shape[-rank:], strict=True)]
    arguments = (windows_kernel, windows_kernel, [0] * rank, False, True, None)
    backward = (torch.ops.aten.avg_pool2d_backward, torch.ops.aten.avg_pool3d_backward)[rank - 2]
    result: torch.Tensor = backward(grad, x, *arguments)
    return result


def _has_exact_positions(rank: int, call: Arguments) -> bool:
    """Positions of the largest elements, in float32."""
    return bool(prod(call.self.shape[-rank:]) < 1 << 24)


def _has_equal_windows(rank: int, call: Arguments) -> bool:
    sizes = call.output_size if hasattr(call, "output_size") else call.grad_output.shape[-rank:]
    pairs = zip(call.self.shape[-rank:], sizes, strict=True)
    return all(positions and n % positions == 0 for n, positions in pairs)


def _kernels(rank: int) -> Iterator[EagerKernel]:
    tensors = ("grad_output", "self")
    forward, backward = (
        Conditions(
            dtypes=dict.fromkeys(names, FLOATS),
            same_dtype=names,
            same_device=names,
            nonempty=names,
        )
        for names in (tensors[1:], tensors)
    )
    exact, equal = partial(_has_exact_positions, rank), partial(_has_equal_windows, rank)
    average, largest = f"avg_pool{rank}d", f"max_pool{rank}d_with_indices"
    adaptive = f"_adaptive_avg_pool{rank}d"
    rows = (
        (f"{largest}.out", max_pool, replace(forward, check=exact)),
        (f"{largest}_backward.grad_input", max_pool_backward, replace(backward, check=exact)),
        (f"{average}.out", avg_pool, forward),
        (f"{average}_backward.grad_input", avg_pool_backward, backward),
        (adaptive, adaptive_avg_pool, replace(forward, check=equal)),
        (f"{adaptive}_backward", adaptive_avg_pool_backward, replace(backward, check=equal)),
        (largest, new_max_pool, replace(forward, check=exact)),
        (f"{largest}_backward", new_max_pool_backward, replace(backward, check=exact)),
    )
    for name, function, conditions in rows[: 8 if rank == 3 else 6]:
        yield EagerKernel(name, partial(function, rank), conditions)


KERNELS = (*_kernels(2), *_kernels(3))
