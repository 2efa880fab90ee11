"""Options of tiled launches, and the checks that find the dims to tile.

Each error names the tensor, the dim and the mismatch (runtime reference §6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from spyre import config
from spyre.errors import LaunchError
from spyre.runtime.program import Role
from spyre.runtime.tiling.device_dims import ActualTensor, ExpectedTensor, KernelDim


class Remainder(StrEnum):
    """A dim that is no multiple of its tile: raise, or run the last tile on padded copies."""

    ERROR = "error"
    PAD = "pad"


class Reduction(StrEnum):
    """A tiled dim that the kernel reduces: raise, or accumulate the results of its tiles."""

    ERROR = "error"
    ACCUMULATE = "accumulate"


@dataclass(frozen=True, slots=True)
class TilingOptions:
    """Options of one launch; ``allow_tiled_launch`` is SPYRE_ALLOW_TILED_LAUNCH by default."""

    allow_tiled_launch: bool = field(default_factory=config.tiled_launch_allowed)
    remainder: Remainder = Remainder.ERROR
    reduction: Reduction = Reduction.ERROR

    def __post_init__(self) -> None:
        object.__setattr__(self, "remainder", Remainder(self.remainder))
        object.__setattr__(self, "reduction", Reduction(self.reduction))


@dataclass(frozen=True, slots=True)
class Growth:
    """A dim of the kernel that tensors exceed: ``tile`` and ``total`` elements.

    ``where``: the tensor and dim it was found at. ``order``: place among the loops.
    """

    tile: int
    total: int
    where: str
    order: tuple[int, int, int]


def check_shapes(expected: Sequence[ExpectedTensor], actual: Sequence[ActualTensor]) -> None:
    """Number, dtype and rank of the tensors; none smaller than its tile."""
    if len(expected) != len(actual):
        raise LaunchError(
            "SPY854",
            "the kernel takes another number of tensors",
            expected=f"{len(expected)}: {', '.join(e.name for e in expected)}",
            found=str(len(actual)),
        )
    for want, have in zip(expected, actual, strict=True):
        if want.dtype_name != have.dtype_name:
            raise LaunchError(
                "SPY856",
                f"{have.name} ({want.name}) has another dtype than the kernel was compiled for",
                expected=want.dtype_name,
                found=have.dtype_name,
            )
        if len(want.shape) != len(have.shape):
            raise LaunchError(
                "SPY854",
                f"{have.name} ({want.name}) has another rank than the kernel was compiled for",
                expected=f"{len(want.shape)} dims: {list(want.shape)}",
                found=f"{len(have.shape)} dims: {list(have.shape)}",
            )
        _check_not_smaller(want, have)


def _check_not_smaller(want: ExpectedTensor, have: ActualTensor) -> None:
    for dim, (tile, size) in enumerate(zip(want.shape, have.shape, strict=True)):
        if size < tile:
            raise LaunchError(
                "SPY851",
                f"dim {dim} of {have.name} ({want.name}) is smaller than the kernel's tile",
                expected=f"at least {tile}",
                found=f"{size} in {list(have.shape)}",
            )


def find_growth(
    expected: Sequence[ExpectedTensor], actual: Sequence[ActualTensor], options: TilingOptions
) -> dict[KernelDim, Growth]:
    """The kernel's dims that tensors exceed. LaunchError SPY850, SPY852, SPY860."""
    growing: dict[KernelDim, Growth] = {}
    for want, have in zip(expected, actual, strict=True):
        for h, (tile, size) in enumerate(zip(want.shape, have.shape, strict=True)):
            if size == tile:
                continue
            where = f"dim {h} of {have.name} ({want.name})"
            _check_allowed(where, tile, size, options)
            dim = want.dims[h]
            if dim is None:
                raise LaunchError(
                    "SPY860",
                    f"{where} exceeds its tile, and no operation of the kernel walks it",
                    expected=f"{tile}",
                    found=f"{size}",
                )
            growth = Growth(tile, size, where, _order(dim, expected))
            growing.setdefault(dim, growth)
    return growing


def _check_allowed(where: str, tile: int, size: int, options: TilingOptions) -> None:
    if not options.allow_tiled_launch:
        raise LaunchError(
            "SPY850",
            f"{where} exceeds the kernel's tile, and tiled launches are not allowed",
            expected=str(tile),
            found=str(size),
            hint="allow_tiled_launch=True, or SPYRE_ALLOW_TILED_LAUNCH=1",
        )
    if size % tile and options.remainder is Remainder.ERROR:
        raise LaunchError(
            "SPY852",
            f"{where} is no multiple of the kernel's tile",
            expected=f"a multiple of {tile}",
            found=str(size),
            hint="remainder='pad' runs the last tile on padded copies",
        )


def _order(dim: KernelDim, expected: Sequence[ExpectedTensor]) -> tuple[int, int, int]:
    """Lowest dim outermost, as outputs count dims; dims that outputs lack innermost."""
    outputs = [e for e in expected if e.role is not Role.INPUT]
    for among in (outputs, expected):
        places = [e.dims.index(dim) for e in among if dim in e.dims]
        if places:
            return int(bool(dim.reduced_by)), min(places), dim.index
    return 1, 0, dim.index


def check_kernel_dims(
    expected: Sequence[ExpectedTensor],
    actual: Sequence[ActualTensor],
    growth: Mapping[KernelDim, Growth],
    options: TilingOptions,
) -> None:
    """Every tensor agrees on the tiled dims, and the kernel allows them to be tiled."""
    for dim, grown in growth.items():
        if dim.fixed:
            raise LaunchError(
                "SPY858",
                f"{grown.where} cannot be tiled: {dim.fixed}",
                expected=str(grown.tile),
                found=str(grown.total),
            )
        for want, have in zip(expected, actual, strict=True):
            _check_agreement(want, have, dim, grown)
        if dim.reduced_by:
            _check_reduction(dim, grown, expected, options)
        else:
            _check_untiled_updates(dim, grown, expected)


def _check_agreement(
    want: ExpectedTensor, have: ActualTensor, dim: KernelDim, grown: Growth
) -> None:
    for h, own_dim in enumerate(want.dims):
        if own_dim != dim or (want.shape[h], have.shape[h]) == (grown.tile, grown.total):
            continue
        raise LaunchError(
            "SPY853",
            f"dim {h} of {have.name} ({want.name}) and {grown.where} are one dim of the kernel "
            f"({dim.name}), but disagree",
            expected=f"{grown.total} in tiles of {grown.tile}",
            found=f"{have.shape[h]} in tiles of {want.shape[h]}",
        )


def _check_reduction(
    dim: KernelDim, grown: Growth, expected: Sequence[ExpectedTensor], options: TilingOptions
) -> None:
    if options.reduction is Reduction.ERROR:
        raise LaunchError(
            "SPY857",
            f"{grown.where} exceeds the kernel's tile, and {dim.reduced_by} reduces it",
            expected=str(grown.tile),
            found=str(grown.total),
            hint="reduction='accumulate' adds up the results of the tiles of a sum or matmul",
        )
    outputs = [e for e in expected if e.role is not Role.INPUT]
    if not dim.accumulated_by or any(e.role is Role.INPUT_OUTPUT for e in outputs):
        raise LaunchError(
            "SPY857",
            f"results of tiles of {grown.where} cannot be accumulated",
            expected="a kernel of one sum or batchmatmul whose output is not an input",
            found=f"reduced by {dim.reduced_by} "
            + ("in place" if dim.accumulated_by else "in a kernel that is no plain sum"),
        )


def _check_untiled_updates(
    dim: KernelDim, grown: Growth, expected: Sequence[ExpectedTensor]
) -> None:
    """A tensor updated in place must not be updated once per tile."""
    for want in expected:
        if want.role is Role.INPUT_OUTPUT and dim not in want.dims:
            raise LaunchError(
                "SPY858",
                f"{grown.where} cannot be tiled: the kernel updates {want.name}, which lacks "
                f"{dim.name}, in place",
                expected=str(grown.tile),
                found=str(grown.total),
            )
