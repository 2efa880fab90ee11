"""Convolutions and their gradients, as matrix products; of single channels, as sums of products.

This is im2col: a row of the left factor holds the input elements under one window position. Each
place of the window is copied to a separate block along the sticks (few channels: all places
together), and the matrix units multiply the rows with the weights once. A transposed convolution,
and the gradient of the input, is a convolution of a tensor with zeros between its elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import prod
from typing import Any

import torch
from msgspec.structs import replace

from spyre.torch_backend.compat import operator
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import FLOATS, Arguments, Conditions, signature_of
from spyre.torch_backend.eager.launch import in_format_of, run_like
from spyre.torch_backend.eager.matmul import is_small_product, product
from spyre.torch_backend.eager.special import along, multiply_add
from spyre.torch_backend.eager.windows import (
    Windows,
    filled,
    laid_along,
    padded_input,
    restickified,
)
from spyre.torch_backend.program import (
    Ints,
    Lowering,
    LoweringError,
    LoweringFunction,
    Value,
    narrowed,
)

FEW_CHANNELS = 16
"""Up to so many, sticks that hold one place's channels only would be mostly empty."""


# --- lowerings -----------------------------------------------------------------------------------


def convolve(builder: Lowering, x: Value, weight: Value, *args: Any) -> Value:
    """[batch, outputs, *positions] of x and weight [outputs, channels, *size], and a bias.

    ``transposed``: the weight is [channels, outputs, *size], its places in reverse order.
    """
    *bias, windows, transposed, dtype = args
    x, weight = builder.convert(x, dtype), builder.convert(weight, dtype)
    if transposed:
        weight = weight.transposed(0, 1)
    rows = _seen_rows(builder, x, windows, transposed)
    factors = _weight_matrix(builder, weight, rows.sizes[1])
    result = product(builder, rows, factors, dtype)
    rank = len(x.sizes)
    result = result.reshaped((x.sizes[0], *windows.positions, weight.sizes[0]))
    result = result.permuted((0, rank - 1, *range(1, rank - 1)))
    return _biased(builder, result, bias, dtype)


def _biased(builder: Lowering, result: Value, bias: Sequence[Value], dtype: str) -> Value:
    for row in bias:
        row = along(builder.convert(row, dtype), 0, len(result.sizes) - 1)
        result = builder.pointwise("add", result, row)
    return result


def _channels_last(x: Value) -> Value:
    return x.permuted((0, *range(2, len(x.sizes)), 1))


def weight_gradient(
    builder: Lowering, x: Value, grad: Value, windows: Windows, dtype: str
) -> Value:
    """[outputs, channels, *size]: sums over all positions of input elements times ``grad``."""
    x, grad = builder.convert(x, dtype), builder.convert(grad, dtype)
    channels, outputs = x.sizes[1], grad.sizes[1]
    seen = _seen_rows(builder, x, windows, False)
    grads = _as_rows(builder, _channels_last(laid_along(builder, grad, 1)))
    result = product(builder, seen.transposed(0, 1), grads, dtype)
    result = builder.with_lane(result, 1 if outputs > 1 else -1)
    blocks = result.reshaped((*windows.size, -(-result.sizes[0] // prod(windows.size)), outputs))
    rank = len(blocks.sizes)
    blocks = narrowed(blocks, rank - 2, 0, channels)
    return blocks.permuted((rank - 1, rank - 2, *range(rank - 2)))


def _seen_rows(builder: Lowering, x: Value, windows: Windows, backwards: bool) -> Value:
    """The im2col matrix, [batch · positions, places · channels], in reverse order of places if
    ``backwards``; each place's channels fill whole sticks, unless they are few.
    """
    if x.sizes[1] <= FEW_CHANNELS and not windows.is_one_place:
        return _packed_rows(builder, x, windows, backwards)
    padded = padded_input(builder, x, windows)
    if windows.is_one_place:
        return _as_rows(builder, _channels_last(padded))
    places = [*windows.places()]
    if backwards:
        places.reverse()
    outer, channels = (x.sizes[0], *windows.positions), x.sizes[1]
    lanes = padded.view.elements_per_stick
    block = -(-channels // lanes) * lanes
    rows = builder.scratch((prod(outer), block * len(places)), x.dtype, 1)
    apart = rows.reshaped((*outer, block * len(places)))
    for k, place in enumerate(places):
        into = narrowed(apart, len(outer), k * block, channels)
        builder.copy_to(_channels_last(windows.seen(padded, place)), into)
    return rows


def _packed_rows(builder: Lowering, x: Value, windows: Windows, backwards: bool) -> Value:
    """`_seen_rows` without room between the places: every place laid out with sticks along the last
    spatial dim, then all of them along the places, with zeros up to whole sticks.
    """
    batch, channels = x.sizes[:2]
    positions, (*outer_size, width) = windows.positions, windows.size
    lines = _lines(builder, x, windows, backwards)
    order = (2, 0, 1, *range(3, len(lines.sizes)))
    count, lanes = prod(windows.size) * channels, lines.view.elements_per_stick
    whole = -(-count // lanes) * lanes
    lane = 1 + len(positions) if positions[-1] > 1 else -1
    places = builder.scratch((batch, whole, *positions), x.dtype, lane)
    if whole > count:
        builder.copy_to(builder.constant(0.0, x.dtype), narrowed(places, 1, count, whole - count))
    apart = narrowed(places, 1, 0, count)
    apart = apart.reshaped((batch, *outer_size, width, channels, *positions))
    for place in itertools.product(*map(range, outer_size)):
        into, seen = apart, lines
        for k, step in enumerate(place):
            into = narrowed(into, 1 + k, step, 1)
            step = windows.size[k] - 1 - step if backwards else step
            step *= windows.dilation[k]
            seen = narrowed(seen, 3 + k, step, positions[k], windows.stride[k])
        seen = seen.permuted(order)
        for _ in place:
            seen = seen.unsqueezed(1)
        builder.copy_to(seen, into)
    rows = builder.scratch((batch * prod(positions), whole), x.dtype, 1)
    target = rows.reshaped((batch, *positions, whole))
    restickified(builder, places.permuted((0, *range(2, len(places.sizes)), 1)), target)
    return replace(narrowed(rows, 1, 0, count), padding_is_finite=True)


def _lines(builder: Lowering, x: Value, windows: Windows, backwards: bool) -> Value:
    """[width, channels, batch, *padded extents, columns]: input elements at each place of the
    windows' last dim, with sticks along the columns.

    Lanes of a stick cannot be strided, so the input first gets its sticks along the largest of the
    other dims; those are padded afterwards.
    """
    last, (batch, channels, *extents) = len(x.sizes) - 1, x.sizes
    lane = max(range(last), key=lambda k: x.sizes[k])
    x = _padded_last(builder, laid_along(builder, x, lane), windows)
    columns, width = windows.positions[-1], windows.size[-1]
    lane = last + 1 if columns > 1 else -1
    seen_lines = builder.scratch((width, channels, batch, *extents[:-1], columns), x.dtype, lane)
    for k in range(width):
        step = (width - 1 - k if backwards else k) * windows.dilation[-1]
        seen = narrowed(x, last, step, columns, windows.stride[-1])
        if seen.sizes != x.sizes:  # a restickify walks memory without gaps only
            seen = builder.copy(seen)
        restickified(builder, seen.transposed(0, 1).unsqueezed(0), narrowed(seen_lines, 0, k, 1))
    if windows.padded[:-1] == windows.extents[:-1]:
        return seen_lines
    sizes = (width, channels, batch, *windows.padded[:-1], columns)
    lines = inner = filled(builder, sizes, x.dtype, lane, 0.0)
    for k, extent in enumerate(windows.extents[:-1]):
        inner = narrowed(inner, 3 + k, windows.before[k], extent, windows.spread[k])
    builder.copy_to(seen_lines, inner)
    return lines


def _padded_last(builder: Lowering, x: Value, windows: Windows) -> Value:
    """``x`` with the padding of its last dim, which has no sticks along it."""
    if windows.padded[-1] == windows.extents[-1]:
        return x
    into = filled(builder, (*x.sizes[:-1], windows.padded[-1]), x.dtype, x.lane_dim, 0.0)
    last = len(x.sizes) - 1
    inner = narrowed(into, last, windows.before[-1], windows.extents[-1], windows.spread[-1])
    builder.copy_to(x, inner)
    return into


def _as_rows(builder: Lowering, value: Value) -> Value:
    """All dims but the last as one of one pitch; a copy where memory has them otherwise."""
    sizes = (prod(value.sizes[:-1]), value.sizes[-1])
    with suppress(LoweringError):
        rows = value.reshaped(sizes)
        if len(rows.view.dims[0]) < 2:
            return rows
    rows = builder.scratch(sizes, value.dtype, 1 if sizes[1] > 1 else -1)
    builder.copy_to(value, rows.reshaped(value.sizes))
    return rows


def _weight_matrix(builder: Lowering, weight: Value, count: int) -> Value:
    """[places · channels, outputs], ``count`` rows: zeros where rows of a place are no channels."""
    outputs, channels, *size = weight.sizes
    rank = len(weight.sizes)
    weight = builder.materialized(weight).permuted((*range(2, rank), 1, 0))
    weight = builder.with_lane(weight, rank - 1)
    block = count // prod(size)
    if block == channels:
        return _as_rows(builder, weight)
    matrix = filled(builder, (count, outputs), weight.dtype, 1 if outputs > 1 else -1, 0.0)
    blocks = matrix.reshaped((*size, block, outputs))
    builder.copy_to(weight, narrowed(blocks, rank - 2, 0, channels))
    return matrix


def convolve_channels(builder: Lowering, x: Value, weight: Value, *args: Any) -> Value:
    """A depthwise convolution, weight [channels, 1, *size], summed in float32."""
    *bias, windows, backwards, dtype = args
    padded = padded_input(builder, builder.convert(x, "float32"), windows)
    weight = laid_along(builder, builder.convert(weight, "float32"), 0).transposed(0, 1)
    places = [*windows.places()]
    seen = [windows.seen(padded, place) for place in (places[::-1] if backwards else places)]
    factors = [_at(weight, place) for place in places]
    total = builder.pointwise("mul", seen[0], factors[0])
    for pair in zip(seen[1:], factors[1:], strict=True):
        total = multiply_add(builder, *pair, total)
    return builder.convert(_biased(builder, total, bias, "float32"), dtype)


def _at(weight: Value, place: Ints) -> Value:
    for k, step in enumerate(place):
        weight = narrowed(weight, 2 + k, step, 1)
    return weight


def channels_gradient(
    builder: Lowering, x: Value, grad: Value, windows: Windows, dtype: str
) -> Value:
    """Gradient of a weight [channels, 1, *size], summed in float32."""
    padded = padded_input(builder, builder.convert(x, "float32"), windows)
    grad = laid_along(builder, builder.convert(grad, "float32"), 1)
    channels = grad.sizes[1]
    dims = (0, *range(2, len(grad.sizes)))
    sums = builder.scratch((1, channels, *windows.size), "float32", 1 if channels > 1 else -1)
    for place in windows.places():
        products = builder.pointwise("mul", windows.seen(padded, place), grad)
        builder.copy_to(builder.reduce("sum", products, dims), _at(sums, place))
    return builder.convert(sums, dtype).transposed(0, 1)


# --- kernels -------------------------------------------------------------------------------------

MAX_ELEMENTS = 1 << 27
"""Most elements under the windows; larger convolutions run on the CPU."""


def convolution(args: Arguments) -> torch.Tensor:
    x, weight, windows = args.input, args.weight, _windows(args)
    if args.transposed:
        windows = windows.reversed()
    run, operands = partial(run_like, (x, weight)), args.inputs
    parameters = (windows, args.transposed, name_of(x.dtype))
    if _is_by_channel(weight, args.groups):
        return run("convolution of channels", convolve_channels, operands, parameters)[0]
    operands[1] = _dense(weight, args.groups)
    return run("convolution", convolve, operands, parameters)[0]


def _windows(args: Arguments) -> Windows:
    """The windows of a convolution; of a transposed one, those of the one it is the gradient of."""
    extents, size = tuple(args.input.shape[2:]), tuple(args.weight.shape[2:])
    stride, padding, dilation, more = _per_dim(args, len(size))
    columns = [*zip(extents, size, stride, padding, dilation, more, strict=True)]
    if args.transposed:
        larger = [(n - 1) * s - 2 * p + d * (k - 1) + a + 1 for n, k, s, p, d, a in columns]
        return Windows.of(larger, extents, size, stride, padding, dilation)
    positions = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in columns]
    return Windows.of(extents, positions, size, stride, padding, dilation)


def _is_by_channel(weight: torch.Tensor, groups: int) -> bool:
    return bool(1 < groups == weight.shape[0] and weight.shape[1] == 1)


def _dense(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """The weight of one group for all: zeros between outputs and channels of different groups."""
    if groups == 1:
        return weight
    spread = weight.unsqueeze(1) * _own_group(weight, groups)
    return spread.reshape(weight.shape[0], -1, *weight.shape[2:])


def _own_group(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """1 where a row of the weight is of a group: [rows, groups, 1, …]."""
    own = torch.eye(groups, dtype=weight.dtype, device=weight.device)
    own = own.repeat_interleave(weight.shape[0] // groups, 0)
    return own.reshape(*own.shape, *[1] * (weight.dim() - 1))


def _agree(args: Arguments) -> bool:
    """True if input, weight, bias and numbers go together."""
    x, weight, groups, spatial = args.input, args.weight, args.groups, args.input.dim() - 2
    numbers = ((args.stride, 1), (args.dilation, 1), (args.padding, 0), (args.output_padding, 0))
    if weight.dim() != x.dim() or spatial < 1 or groups < 1 or weight.shape[0] % groups:
        return False
    if any(len(n) not in (1, spatial) or min(n) < least for n, least in numbers):
        return False
    channels, outputs = weight.shape[1] * groups, weight.shape[0]
    if args.transposed:
        channels, outputs = outputs, channels
        columns = zip(*_per_dim(args, spatial), strict=True)
        if any(more >= max(stride, dilation) for stride, _, dilation, more in columns):
            return False
    bias = getattr(args, "bias", None)
    return x.shape[1] == channels and (bias is None or bias.shape == (outputs,))


def _per_dim(args: Arguments, count: int) -> list[Sequence[int]]:
    """Stride, padding, dilation and output padding of each dim."""
    numbers = (args.stride, args.padding, args.dilation, args.output_padding)
    return [[*n] * count if len(n) == 1 else [*n] for n in numbers]


def _has_room(args: Arguments) -> bool:
    """True if memory can hold the gathered windows and the terms of their float32 product."""
    if not _agree(args):
        return False
    x, weight, windows = args.input, args.weight, _windows(args)
    positions = windows.extents if args.transposed else windows.positions
    if min(*positions, *windows.extents) < 1:
        return False
    if _is_by_channel(weight, args.groups):
        return True
    rows, seen = x.shape[0] * prod(positions), prod(windows.size) * x.shape[1]
    outputs = weight.shape[1] * args.groups if args.transposed else weight.shape[0]
    fits = rows * -(-seen // 64) * 64 <= MAX_ELEMENTS
    return fits and (x.dtype is not torch.float32 or is_small_product((rows, seen), outputs))


def convolution_backward(args: Arguments) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of input, weight and bias that ``output_mask`` requests."""
    grad, x, weight, groups = args.grad_output, args.input, args.weight, args.groups
    windows, transposed, run = _windows(args), args.transposed, partial(run_like, (x, weight))
    dtype, by_channel = name_of(grad.dtype), _is_by_channel(weight, groups)
    of_channels = " of channels" if by_channel else ""
    grad_x = grad_weight = grad_bias = None
    if args.output_mask[0]:
        seen = windows if transposed else windows.reversed()
        forward: LoweringFunction = convolve_channels if by_channel else convolve
        operands = [grad, weight if by_channel else _dense(weight, groups)]
        parameters = (seen, not transposed, dtype)
        (grad_x,) = run(f"input gradient{of_channels}", forward, operands, parameters)
    if args.output_mask[1]:
        operands = [grad, x] if transposed else [x, grad]
        sums: LoweringFunction = channels_gradient if by_channel else weight_gradient
        (grad_weight,) = run(f"weight gradient{of_channels}", sums, operands, (windows, dtype))
        if groups > 1 and not by_channel:
            apart = grad_weight.reshape(weight.shape[0], groups, *weight.shape[1:])
            own = (apart * _own_group(weight, groups)).sum(1)
            grad_weight = in_format_of(x, in_format_of(weight, own))
    if args.output_mask[2]:
        grad_bias = grad.sum((0, *range(2, grad.dim())))
    return grad_x, grad_weight, grad_bias


def _overrideable(name: str, args: Arguments) -> Any:
    """Torch's formulas for second gradients call this name; the arguments are those of ``name``."""
    given = vars(args)
    if name == "convolution_backward":
        given["bias_sizes"] = [args.grad_output.shape[1]] if args.output_mask[2] else None
    positional, *_ = signature_of(name)
    return operator(name)(*(given[argument] for argument in positional))


_FORWARD = Conditions(
    dtypes={"input": FLOATS},
    same_dtype=("inputs",),
    same_device=("inputs",),
    nonempty=("inputs",),
    check=_has_room,
)

KERNELS = (
    ("convolution", convolution, _FORWARD),
    (
        "convolution_backward",
        convolution_backward,
        replace(_FORWARD, same_device=("input", "weight")),
    ),
    ("convolution_overrideable", partial(_overrideable, "convolution"), None),
    ("convolution_backward_overrideable", partial(_overrideable, "convolution_backward"), None),
)
