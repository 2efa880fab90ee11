"""Compares one tensor of the device with the CPU's, element by element.

All values are compared in float64. The bound is that of :mod:`.tolerances`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from qa.opinfo.tolerances import Tolerance, is_sixteen_bit, limit_of

EXPLAINED = 0.25
"""Share of a value up to which the CPU's error in the dtype widens the bound."""
INT32 = torch.iinfo(torch.int32)


@dataclass(frozen=True)
class Expected:
    """Expected value of one result: in float32, and by the CPU in the dtype under test.

    ``native`` has the dtype the device must return. ``movement`` is the largest change of the
    float32 result under fixed changes of the inputs, or None where it does not count.
    """

    reference: torch.Tensor
    native: torch.Tensor
    movement: torch.Tensor | None = None


@dataclass(frozen=True)
class Difference:
    """The worst element: its error divided by the bound, and a sentence about it."""

    error: float
    message: str = ""


def compare(actual: torch.Tensor, expected: Expected, tolerance: Tolerance) -> Difference:
    """Return the worst element of ``actual`` (a CPU tensor); an error above 1.0 is too large."""
    if not expected.native.dtype.is_floating_point and not expected.native.dtype.is_complex:
        return _compare_exactly(actual, expected)
    if expected.native.dtype.is_complex:
        return _compare_complex(actual, expected, tolerance)
    dtype = expected.native.dtype
    reference, native, found = (
        tensor.to(torch.float64).reshape(-1)
        for tensor in (expected.reference, expected.native, actual)
    )
    movement = torch.zeros(()) if expected.movement is None else expected.movement.reshape(-1)
    limit = limit_of(dtype)
    error = torch.minimum(
        _errors(found, reference, _bound(reference, native, movement, tolerance), limit),
        _errors(found, native, tolerance.atol + tolerance.rtol * native.abs(), limit),
    )
    same = _same_class(found, reference, dtype) | _same_class(found, native, dtype)
    return _worst(torch.where(same, 0.0, error), found, reference)


def _bound(
    reference: torch.Tensor, native: torch.Tensor, movement: torch.Tensor, tolerance: Tolerance
) -> torch.Tensor:
    """Return the absolute error allowed per element."""
    off = (native - reference).abs()
    explained = off.isfinite() & (off <= EXPLAINED * reference.abs())
    moved = torch.where(movement.isfinite(), movement, 0.0)
    return (
        tolerance.atol
        + tolerance.rtol * reference.abs()
        + tolerance.native * torch.where(explained, off, 0.0)
        + tolerance.condition * moved
    )


def _errors(
    found: torch.Tensor, wanted: torch.Tensor, bound: torch.Tensor, limit: float
) -> torch.Tensor:
    """Errors in units of ``bound``: 0 where equal, infinite where only one is finite."""
    off = (found - wanted.clamp(-limit, limit)).abs()
    ratio = torch.where(off == 0, 0.0, off / bound)
    finite = found.isfinite() & wanted.isfinite()
    return torch.where(finite, ratio, float("inf"))


def _same_class(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return where both are NaN or the same infinity; in 16 bits, where neither is finite."""
    if is_sixteen_bit(dtype):
        beyond = ~wanted.isfinite() | (wanted.abs() >= limit_of(dtype))
        return ~found.isfinite() & beyond
    return (found.isnan() & wanted.isnan()) | (found.isinf() & (found == wanted))


def _compare_exactly(actual: torch.Tensor, expected: Expected) -> Difference:
    """Compare booleans and integers, which must equal the float32 result or the CPU's.

    An int64 outside int32 may come back cut to its low 32 bits or as the nearest int32: the
    device format is int32 (Runtime reference §2).
    """
    found, native = actual.reshape(-1), expected.native.reshape(-1)
    reference = expected.reference.reshape(-1)
    right = (found == reference) | (found == native)
    if native.dtype is torch.int64:
        outside = native != native.clamp(INT32.min, INT32.max)
        cut = (found == native.to(torch.int32)) | (found == native.clamp(INT32.min, INT32.max))
        right |= outside & cut
    return _worst(torch.where(right, 0.0, float("inf")), found, reference)


def _compare_complex(actual: torch.Tensor, expected: Expected, tolerance: Tolerance) -> Difference:
    """Compare real and imaginary parts like elements of a real tensor."""
    reference, native, found = (
        torch.view_as_real(tensor.to(torch.complex128).resolve_conj().contiguous())
        for tensor in (expected.reference, expected.native, actual)
    )
    return compare(found, Expected(reference, native), tolerance)


def _worst(error: torch.Tensor, found: torch.Tensor, wanted: torch.Tensor) -> Difference:
    """Return the element with the largest error, NaN counting as infinite."""
    if error.numel() == 0:
        return Difference(0.0)
    error = torch.where(error.isnan(), float("inf"), error)
    place = int(error.argmax())
    worst = float(error[place])
    if worst <= 1.0:
        return Difference(worst)
    count = int((error > 1.0).sum())
    return Difference(
        worst,
        f"{count} of {error.numel()} elements differ; worst at flat index {place}: "
        f"{found[place].item()} instead of {wanted[place].item()}, "
        f"{worst:.3g} times what is allowed",
    )
