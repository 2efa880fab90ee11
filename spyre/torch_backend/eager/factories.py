"""New tensors and their contents: empty, copies, fills, arange, linspace, eye.

Tensors whose content follows from sizes and numbers alone are made on the host and copied to the
card, as a compiler's constants are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from spyre.layout import contiguous_strides
from spyre.lru_cache import LruCache
from spyre.torch_backend.compat import COMPOSITE_KEYS, is_fake, operator
from spyre.torch_backend.device import NAMES, PARTS, card_of, doubles_on_host, is_on_card, name_of
from spyre.torch_backend.eager.compile import ScalarOperand, view_on_card
from spyre.torch_backend.eager.dispatch import (
    CONVERTED,
    INTEGERS,
    Arguments,
    Conditions,
    call,
    copy_into,
    one_launch,
)
from spyre.torch_backend.eager.launch import ready_buffer, repeated, run
from spyre.torch_backend.eager.overlap import overlap_check
from spyre.torch_backend.fallback import cpu_fallback
from spyre.torch_backend.program import Ints, Lowering, LoweringError, Value, current_recorder
from spyre.torch_backend.registration import refuse_layout
from spyre.torch_backend.tensors import (
    allocate,
    assemble,
    buffer_of,
    check_broadcast,
    download,
    fetched,
    is_whole,
    move,
    moves_bits,
    new_layout,
    relayout,
    to_host,
    upload,
)


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """aten::empty.memory_format."""
    _check_options(layout, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    stride = contiguous_strides(size)
    if memory_format not in PLAIN_FORMATS:
        like = torch.empty(size, device="meta", memory_format=memory_format)
        stride = like.stride()
    return _conspicuous(allocate(size, stride, dtype, _index_of(device)))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """aten::empty_strided."""
    _check_options(layout, pin_memory)
    dtype = dtype or torch.get_default_dtype()
    on_card = new_layout(tuple(size), tuple(stride), dtype)
    return _conspicuous(allocate(size, stride, dtype, _index_of(device), on_card))


def _conspicuous(new: torch.Tensor) -> torch.Tensor:
    """Fill a new tensor with NaN or the largest integer in torch's deterministic mode."""
    is_asked = torch.are_deterministic_algorithms_enabled()
    if is_asked and torch.utils.deterministic.fill_uninitialized_memory:
        fill_scalar(new, _conspicuous_value(new.dtype))
    return new


def _conspicuous_value(dtype: torch.dtype) -> float:
    if dtype.is_floating_point:
        return float("nan")
    # the card holds int64 as int32
    return 1 if dtype is torch.bool else min(torch.iinfo(dtype).max, torch.iinfo(torch.int32).max)


def _index_of(device: torch.device | None) -> int:
    return -1 if device is None or device.index is None else device.index


def _check_options(layout: torch.layout | None, pin_memory: bool | None) -> None:
    if layout not in (None, torch.strided):
        refuse_layout(layout)
    if pin_memory:
        raise RuntimeError("only dense CPU tensors can be pinned, not spyre tensors")


def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> Any:
    """aten::_copy_from: onto the card, from it, or within it."""
    if not is_on_card(target):
        download(source, target)
    elif source.is_conj() or target.is_conj() or source.is_neg() or target.is_neg():
        upload(target, to_host(source) if is_on_card(source) else source)
    elif _copy_overlaps((target, source), {}):
        is_beside = source.device == target.device
        cpu_fallback(operator("copy_"), target, source if is_beside else source.cpu())
    elif is_on_card(source):
        call(_COPY, source, out=target)
    else:
        upload(target, source, non_blocking)
    return target


_COPY = one_launch("copy_", ("source",), lambda args: copy_on_card(args.out, args.source))
_copy_overlaps = overlap_check(operator("copy_"))


def to_copy(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """aten::_to_copy. Copies to the host wait; torch must not request pinned memory for them,
    because a device in Python cannot provide its allocator.
    """
    waits = device is not None and device.type == "cpu"
    is_plain = memory_format in PLAIN_FORMATS and layout in (None, torch.strided) and not pin_memory
    is_fetched = waits and dtype in (None, x.dtype)
    is_converted = device in (None, x.device) and {x.dtype, dtype} in CONVERSIONS and is_on_card(x)
    if is_plain and (is_fetched or is_converted) and current_recorder() is None and not is_fake(x):
        made = None
        if x.is_contiguous():
            made = fetched(x) if is_fetched else _converted(x, dtype)
        if made is not None:
            return made
    if dtype is torch.float64 and doubles_on_host.depth and is_on_card(x):
        device, waits = torch.device("cpu"), True
    copy: Callable[..., torch.Tensor] = operator("_to_copy").redispatch
    options = {"dtype": dtype, "layout": layout, "device": device, "pin_memory": pin_memory}
    non_blocking = non_blocking and not waits
    return copy(
        COMPOSITE_KEYS, x, **options, non_blocking=non_blocking, memory_format=memory_format
    )


def _converted(x: torch.Tensor, dtype: Any) -> torch.Tensor | None:
    """A contiguous half as float32, or the other way round, without the empty tensor that torch
    would have filled; None without elements, or where that is no program.
    """
    if not x.numel():
        return None
    parameters = (tuple(x.shape), name_of(dtype))
    try:
        return repeated(_converted, (x, dtype), partial(run, "copy", converted, [x], parameters))[0]
    except LoweringError:
        return None


PLAIN_FORMATS = (None, torch.preserve_format, torch.contiguous_format)
CONVERSIONS = tuple({torch.float32, half} for half in (torch.float16, torch.bfloat16))


def copy_from_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """aten::_copy_from_and_resize."""
    target.resize_(source.size())
    copy_from(source, target)
    return target


def local_scalar_dense(tensor: torch.Tensor) -> Any:
    """aten::_local_scalar_dense: the one element, as a Python number."""
    on_host = fetched(tensor)
    return (to_host(tensor) if on_host is None else on_host).item()


def random_(tensor: torch.Tensor, *bounds: int | None, generator: Any = None) -> Any:
    """aten::random_ and random_.from, on the CPU; int64 without an upper bound is as int32."""
    if tensor.dtype is torch.int64 and bounds[1:] in ((), (None,)):
        bounds = (*(bounds[:1] or (0,)), torch.iinfo(torch.int32).max + 1)
    op = operator("random_.from" if bounds else "random_")
    return cpu_fallback(op, tensor, *bounds, generator=generator)


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """aten::record_stream: nothing to do.

    Work submitted to a stream keeps the memory that it uses until it has run.
    """


def converted(builder: Lowering, x: Value, sizes: Ints, dtype: str) -> Value:
    """``x`` as ``dtype``, broadcast to ``sizes``."""
    x = builder.convert(x, dtype)
    return builder.broadcast(x, sizes) if x.sizes != sizes else x


def filled(builder: Lowering, x: Value, number: Value) -> Value:
    """``number`` in the sizes of ``x``."""
    return builder.broadcast(number, x.sizes)


def copy_on_card(target: torch.Tensor, source: torch.Tensor) -> None:
    """Elements of ``source``, broadcast and converted, onto ``target``.

    From another card they come as they are: codes have a wider range than float16 has on the host.
    """
    check_broadcast(source, target)
    if target.numel() == 0:
        return
    dtypes = {source.dtype, target.dtype}
    if dtypes <= set(PARTS):
        source, target = torch.view_as_real(source), torch.view_as_real(target)
        dtypes = {source.dtype}
    if len(dtypes) > 1 and not dtypes <= set(CONVERTED):
        upload(target, to_host(source))
        return
    if buffer_of(source).card is not buffer_of(target).card:
        ready_buffer(source)
        if source.dtype == target.dtype and source.shape == target.shape and is_whole(target):
            move(source, target)
            return
        source = relayout(source, buffer_of(target).card)
    if not dtypes <= set(CONVERTED):
        _copy_bits(target, source)
        return
    parameters = (tuple(target.shape), name_of(target.dtype))
    results = run("copy", converted, [source], parameters, target)
    if results:  # not written straight to the target
        _copy_bits(target, results[0])


def _copy_bits(target: torch.Tensor, source: torch.Tensor) -> None:
    """Elements of one dtype, by DMA; over the host where the target's storage has another dtype."""
    ready_buffer(target)
    ready_buffer(source)
    if moves_bits(target):
        assemble(buffer_of(target), [(target, source.expand(target.shape))])
    else:
        upload(target, to_host(source))


def fill_scalar(x: torch.Tensor, value: Any) -> torch.Tensor:
    """aten::fill_.Scalar."""
    if x.numel() == 0:
        return x
    if expanded_dims(x):
        fill_scalar(without_expanded_dims(x), value)
        return x
    if x.dtype in CONVERTED and not isinstance(value, complex) and _is_writable(x):
        number = torch.tensor(value, dtype=x.dtype, device="cpu").item()
        if x.dtype not in INTEGERS or abs(number) < 1 << 31:
            run("fill", filled, [x, ScalarOperand(float(number), name_of(x.dtype))], (), x)
            return x
    upload(x, torch.tensor(value, dtype=x.dtype, device="cpu"))
    return x


def expanded_dims(x: torch.Tensor) -> Ints:
    """Dims along which all elements are the same memory."""
    return tuple(k for k, n in enumerate(x.shape) if n > 1 and not x.stride(k))


def without_expanded_dims(x: torch.Tensor) -> torch.Tensor:
    """A view of ``x`` with expanded dims cut to one element, so that the cores can write to it."""
    for dim in expanded_dims(x):
        x = x.narrow(dim, 0, 1)
    return x


def _is_writable(x: torch.Tensor) -> bool:
    """True if the cores can write its elements without touching others."""
    view = view_on_card(x, ready_buffer(x))
    return view is not None and view.writable


def _upload_into(out: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
    if out.shape != content.shape:
        out.resize_(content.shape)
    if content.numel():
        upload(out, content, non_blocking=True)
    return out


def _sequence(make: str, names: Sequence[str], args: Arguments) -> torch.Tensor:
    """Fill ``out`` with ``torch.<make>`` of the arguments of these names, made on the CPU.

    A short sequence that is asked for again stays on the card, and is copied from there.
    """
    out: torch.Tensor = args.out
    numbers = [getattr(args, name) for name in names]
    if (kept := _kept_sequence(make, numbers, out.dtype, out.device)) is not None:
        if out.shape != kept.shape:
            out.resize_(kept.shape)
        call(_COPY, kept, out=out)
        return out
    content = getattr(torch, make)(*numbers, dtype=out.dtype, device="cpu")
    if content.nbytes <= MAX_KEPT_BYTES:
        _asked.put((make, *map(repr, numbers), out.dtype, out.device), True)
    return _upload_into(out, content)


def _kept_sequence(
    make: str, numbers: Sequence[float], dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """`cached_sequence` if a short one was asked for before, else None."""
    key = (make, *map(repr, numbers), dtype, device)
    if current_recorder() is not None or _asked.get(key) is None:
        return None
    return cached_sequence(make, numbers, dtype, device)


def arange(name: str, *bounds: Any, **options: Any) -> Any:
    """aten::arange and its kin, without the empty tensor of torch's composition if it is kept."""
    numbers = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    dtype, device = options.get("dtype"), card_of(options.get("device"))
    if dtype is None:
        is_whole_number = all(isinstance(number, int) for number in numbers)
        dtype = torch.int64 if is_whole_number else torch.get_default_dtype()
    on = torch.device("spyre", device.index)
    kept = _kept_sequence("arange", numbers, dtype, on)
    if kept is None or not kept.numel() or options.get("pin_memory") or options.get("layout"):
        return operator(name).redispatch(COMPOSITE_KEYS, *bounds, **options)
    return repeated(arange, (kept,), lambda: (kept.clone(),))[0]


MAX_KEPT, MAX_KEPT_BYTES = 256, 1 << 16
"""Sequences that stay on the cards, and how long those are that are only asked for."""
_asked: LruCache[tuple[Any, ...], bool] = LruCache(MAX_KEPT)
_kept: LruCache[tuple[Any, ...], torch.Tensor] = LruCache(MAX_KEPT)


def cached_sequence(
    make: str, numbers: Sequence[float], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """``torch.<make>(*numbers)``, cached on its card: callers must not write to it. Any thread; two
    may make the same one at once.
    """
    make_it = partial(getattr(torch, make), *numbers, dtype=dtype, device="cpu")
    return kept_on_card(_kept, (make, *map(repr, numbers), dtype), device, make_it)


def kept_on_card(
    cache: LruCache[tuple[Any, ...], torch.Tensor],
    key: tuple[Any, ...],
    device: torch.device,
    make: Callable[[], torch.Tensor],
    most: int = sys.maxsize,
) -> torch.Tensor:
    """The tensor that ``make`` makes on the CPU, on a card; one of at most so many elements as
    ``most`` is kept in ``cache`` for the next call with this key on this card.
    """
    card = card_of(device)
    key = (card.index, card.device.resets, *key)
    tensor = cache.get(key)
    if tensor is None:
        tensor = make().to(device)
        if tensor.numel() <= most:
            buffer_of(tensor).leave_uncounted()
            cache.put(key, tensor)
    return tensor


def _made_on_host(
    make: Callable[..., torch.Tensor],
    names: Sequence[str],
    default: torch.dtype | None,
    args: Arguments,
) -> torch.Tensor:
    """Return ``make`` of the arguments of these names, made on the CPU."""
    dtype = args.dtype if isinstance(args.dtype, torch.dtype) else default
    content = make(*(getattr(args, name) for name in names), dtype=dtype, device="cpu")
    return _upload_into(torch.empty_like(content, device=args.device or "spyre"), content)


def _zeros(args: Arguments) -> torch.Tensor:
    """aten::_efficientzerotensor: gradients that are zero everywhere; with memory, as the cores
    know no tensors without.
    """
    options = {"dtype": args.dtype, "layout": args.layout, "device": args.device}
    return torch.zeros(args.size, **options, pin_memory=args.pin_memory)


FILLS = ("fill_.Scalar", "zero_")
_INDEX, _WINDOW = torch.int64, ("window_length", "periodic", "beta")
_SEQUENCE = Conditions(dtypes={"out": NAMES}, check=lambda args: not args.inputs)

KERNELS = (
    ("fill_.Scalar", lambda args: fill_scalar(args.self, args.value), None),
    ("zero_", lambda args: fill_scalar(args.self, 0), None),
    *(
        (name, partial(_sequence, name.partition(".")[0], names), _SEQUENCE)
        for name, names in (
            ("arange.start_out", ("start", "end", "step")),
            ("linspace.out", ("start", "end", "steps")),
            ("eye.m_out", ("n", "m")),
            ("eye.out", ("n",)),
        )
    ),
    (
        "narrow_copy.out",  # torch's of the CPU takes any ``out`` for contiguous
        lambda args: copy_into(args.out, args.self.narrow(args.dim, args.start, args.length)),
        None,
    ),
    ("_efficientzerotensor", _zeros, None),
    *(
        (name, partial(_made_on_host, getattr(torch, name), ("row", "col", "offset"), _INDEX), None)
        for name in ("tril_indices", "triu_indices")
    ),
    *(  # torch's own ask for a kernel by the name of the device
        (name, partial(_made_on_host, torch.kaiser_window, _WINDOW[:count], None), None)
        for name, count in (("", 1), (".periodic", 2), (".beta", 3))
        for name in (f"kaiser_window{name}",)
    ),
)
