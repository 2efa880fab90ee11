"""Reference results of a sample on the CPU: in float32, the dtype under test and float64."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from qa.opinfo.compare import EXPLAINED, Expected
from qa.opinfo.samples import Sample, seed_all
from qa.opinfo.stored import StoredResults
from qa.opinfo.target import whole_storage
from qa.opinfo.trees import leaves, mapped

Operator = Callable[..., Any]
REFERENCE_SEED, NATIVE_SEED, DEVICE_SEED = 1, 2, 3
"""Different seeds per run, so that a random operator missing in :mod:`.rules` shows as wrong."""
CHANGES = 4
"""Number of fixed changes of the inputs that :func:`movements` tries."""
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)


@dataclass(frozen=True)
class Run:
    """One call on the CPU: its result, and its arguments afterwards."""

    result: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> list[torch.Tensor]:
        """Return the tensors of the result, then those of the arguments."""
        found = leaves(self.result) + leaves((self.args, self.kwargs))
        return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]


def run_native(function: Operator, sample: Sample, *, stored: bool) -> Run:
    """Run in the dtype under test; ``stored``: round each result to the device's formats."""
    args, kwargs = mapped((sample.args, sample.kwargs), _copied)
    with StoredResults() if stored else nullcontext():
        return _run(function, args, kwargs, NATIVE_SEED)


def run_reference(function: Operator, sample: Sample) -> Run:
    """Run with every 16-bit float argument, tensor or dtype, widened to float32."""
    return _run(
        function, mapped(sample.args, _widened), mapped(sample.kwargs, _widened), REFERENCE_SEED
    )


def run_truth(function: Operator, sample: Sample) -> Run:
    """Run in float64, including intermediate results that the operator makes narrower."""
    with _Float64():
        return _run(
            function, mapped(sample.args, _exact), mapped(sample.kwargs, _exact), REFERENCE_SEED
        )


def movements(function: Operator, sample: Sample, reference: Run, step: float) -> list[Any]:
    """Return the largest change of each tensor of ``reference`` when inputs change by ±``step``.

    Steps are relative to the inputs. None for results that are not floats, or whose shape changes.
    """
    tensors = reference.tensors()
    moved: list[Any] = [None] * len(tensors)
    for number in range(CHANGES):
        generator = torch.Generator().manual_seed(number)
        args, kwargs = mapped(
            (sample.args, sample.kwargs), lambda leaf, g=generator: _moved(leaf, step, g)
        )
        for place, changed in enumerate(_run(function, args, kwargs, REFERENCE_SEED).tensors()):
            moved[place] = _larger(moved[place], changed, tensors[place])
    return moved


def own_errors(native: Run, truth: Run, moved: list[Any]) -> list[Any]:
    """Return the larger of ``moved`` and the error of the tensor's worst element on the CPU.

    An error above a quarter of the largest value is ignored: torch computes something else then.
    """
    pairs = zip(native.tensors(), truth.tensors(), moved, strict=True)
    return [_larger_error(known, own, exact) for own, exact, known in pairs]


def _larger_error(known: Any, own: torch.Tensor, exact: torch.Tensor) -> Any:
    if known is None or own.shape != exact.shape or not exact.numel():
        return known
    off = (_dense(own).double() - _dense(exact).double()).abs()
    worst, size = off.nan_to_num(0, 0, 0).max(), _dense(exact).abs().nan_to_num(0, 0, 0).max()
    return torch.maximum(known, worst) if worst <= EXPLAINED * size else known


def expectations(native: Run, reference: Run, moved: list[Any]) -> list[Expected]:
    """Return the expected value of each tensor of the result and the arguments, in order.

    Where the shape in float32 differs from that in the dtype under test, the latter is expected.
    """
    pairs = zip(reference.tensors(), native.tensors(), moved, strict=True)
    return [
        Expected(_dense(wide if wide.shape == own.shape else own), _dense(own), movement)
        for wide, own, movement in pairs
    ]


def _run(function: Operator, args: Any, kwargs: Any, seed: int) -> Run:
    seed_all(seed)
    return Run(function(*args, **kwargs), args, kwargs)


def _copied(leaf: Any) -> Any:
    return _like_strides(leaf, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def _widened(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _like_strides(leaf, torch.float32 if leaf.dtype in HALVES else leaf.dtype)
    return torch.float32 if isinstance(leaf, torch.dtype) and leaf in HALVES else leaf


def _exact(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dtype in FLOATS:
        return _like_strides(leaf, torch.float64)
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in FLOATS else leaf


class _Float64(TorchDispatchMode):
    """While active, calls that ask for a narrower float dtype return float64."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if options.get("dtype") in FLOATS:
            options = {**options, "dtype": torch.float64}
        return func(*args, **options)


def _moved(leaf: Any, step: float, generator: torch.Generator) -> Any:
    wide = _widened(leaf)
    if isinstance(wide, torch.Tensor) and wide.dtype.is_floating_point:
        signs = torch.randint(0, 2, wide.shape, generator=generator) * 2 - 1
        return wide * (1 + step * signs).to(wide.dtype)
    return wide


def _like_strides(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy in ``dtype`` with the strides and storage offset of ``tensor``."""
    if tensor.layout is not torch.strided:
        return tensor.clone().to(dtype)
    storage = whole_storage(tensor).clone().to(dtype)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _larger(known: Any, changed: torch.Tensor, tensor: torch.Tensor) -> Any:
    if not tensor.dtype.is_floating_point or changed.shape != tensor.shape:
        return known
    change = (changed.double() - tensor.double()).abs()
    return change if known is None else torch.maximum(known, change)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.layout is torch.strided else tensor.to_dense()
