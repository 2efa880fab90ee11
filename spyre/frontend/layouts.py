"""``torch_spyre._C.SpyreTensorLayout``: `spyre.layout`'s, with the constructors of the extension.

The stride rule is that of torch-spyre's own code: unclamped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from inspect import signature
from math import prod
from typing import Any

import torch

from spyre.frontend.formats import DataFormats, ElementArrangement, formats_of, named_as_extension
from spyre.layout import SpyreTensorLayout
from spyre.torch_backend.device import NAMES

MAX_RANK = 6
"""Host dims of a layout; one more entry of a dim order says that sticks are sparse."""


@named_as_extension("SpyreTensorLayout")
class FrontendLayout:
    """A layout: from host sizes, from a dim order, or from device extents.

    (host_size, dtype); (host_size, host_strides, dtype, dim_order[, element_arrangement]);
    (device_size, stride_map, device_dtype[, element_arrangement]). All in elements. RuntimeError
    for arguments that disagree, TypeError for those of no constructor. ``inner``: the simulator's
    layout.
    """

    __slots__ = ("inner",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.inner = _constructed(_hashable(args), tuple(kwargs), _hashable(kwargs.values()))

    @classmethod
    def of(cls, inner: SpyreTensorLayout) -> FrontendLayout:
        """The layout that ``inner`` is."""
        layout = cls.__new__(cls)
        layout.inner = inner
        return layout

    @property
    def device_size(self) -> list[int]:
        """Extents of the device dims, the last one the elements of a stick."""
        return list(self.inner.device_size)

    @property
    def stride_map(self) -> list[int]:
        """Host elements per step of each device dim; -1: none."""
        return list(self.inner.stride_map)

    @property
    def device_dtype(self) -> Any:
        """Its `DataFormats`."""
        return DataFormats[self.inner.device_dtype]

    @property
    def element_arrangement(self) -> ElementArrangement:
        return ElementArrangement[self.inner.element_arrangement]

    def elems_per_stick(self) -> int:
        return int(self.device_dtype.elems_per_stick())

    def with_element_arrangement(self, element_arrangement: ElementArrangement) -> FrontendLayout:
        """The same with another arrangement."""
        return FrontendLayout(
            self.device_size, self.stride_map, self.device_dtype, element_arrangement
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrontendLayout) and self.inner == other.inner

    def __hash__(self) -> int:
        return hash(self.inner)

    def __str__(self) -> str:
        return str(self.inner)

    __repr__ = __str__

    def __getstate__(self) -> tuple[Any, ...]:
        fields = (self.device_size, self.stride_map, self.device_dtype, self.element_arrangement)
        return (3, *fields)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.inner = _unpickled(state)

    def __copy__(self) -> FrontendLayout:
        return self

    def __deepcopy__(self, memo: Any) -> FrontendLayout:
        return self


_PICKLED_FIELDS = {1: (1, 3, 4), 2: (1, 2, 3), 3: (1, 2, 3, 4)}
"""Positions of extents, strides, format and arrangement in a pickled tuple, by its version."""
_PICKLED_LENGTH = {1: 5, 2: 4, 3: 5}


def _unpickled(state: tuple[Any, ...]) -> SpyreTensorLayout:
    version = state[0]
    if version not in _PICKLED_FIELDS:
        raise ValueError(f"Unsupported SpyreTensorLayout pickle version: {version}")
    if len(state) != _PICKLED_LENGTH[version]:
        raise ValueError(f"Invalid SpyreTensorLayout pickle v{version}: wrong tuple size")
    return FrontendLayout(*[state[k] for k in _PICKLED_FIELDS[version]]).inner


def _hashable(arguments: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([tuple(map(int, a)) if isinstance(a, list) else a for a in arguments])


@lru_cache(4096)
def _constructed(
    args: tuple[Any, ...], names: tuple[str, ...], values: tuple[Any, ...]
) -> SpyreTensorLayout:
    kwargs = dict(zip(names, values, strict=True))
    for make in (_of_host_size, _of_dim_order, _of_device_size):
        try:
            given = signature(make).bind(*args, **kwargs).arguments
        except TypeError:  # the arguments are those of another constructor
            continue
        if all(isinstance(given[k], kind) for k, kind in _KINDS.items() if k in given):
            return make(**given)
    raise TypeError(
        "__init__(): incompatible constructor arguments. The following argument types are "
        "supported: (host_size, dtype), (host_size, host_strides, dtype, dim_order, "
        "element_arrangement=STANDARD), (device_size, stride_map, device_dtype, "
        f"element_arrangement=STANDARD); invoked with: {args}, {kwargs}"
    )


_KINDS = {
    "dtype": torch.dtype,
    "device_dtype": DataFormats,
    "element_arrangement": ElementArrangement,
}


def _of_device_size(
    device_size: Sequence[Any],
    stride_map: Sequence[Any],
    device_dtype: Any,
    element_arrangement: ElementArrangement = ElementArrangement.STANDARD,
) -> SpyreTensorLayout:
    extents, strides = tuple(map(int, device_size)), tuple(map(int, stride_map))
    return SpyreTensorLayout(extents, strides, device_dtype.name, element_arrangement.name)


def _of_host_size(host_size: Sequence[Any], dtype: torch.dtype) -> SpyreTensorLayout:
    size = [int(n) for n in host_size]
    # an extent of 0 makes all strides before it 0, as the extension does
    strides = [prod(size[k + 1 :]) for k in range(len(size))]
    return _of_dim_order(size, strides, dtype, range(len(size)))


def _of_dim_order(
    host_size: Sequence[Any],
    host_strides: Sequence[Any],
    dtype: torch.dtype,
    dim_order: Sequence[Any],
    element_arrangement: ElementArrangement = ElementArrangement.STANDARD,
) -> SpyreTensorLayout:
    size, strides = [int(n) for n in host_size], [int(n) for n in host_strides]
    order = [int(n) for n in dim_order]
    _check_order(size, order)
    if not formats_of(dtype)[1].elems_per_stick():
        raise RuntimeError(f"Spyre backend does not support dtype {dtype}")
    arrangement = element_arrangement.name
    return SpyreTensorLayout.from_dim_order(
        size, strides, NAMES[dtype], order, arrangement, clamped=False
    )


def _check_order(size: Sequence[int], order: Sequence[int]) -> None:
    is_sparse = len(order) == len(size) + 1 and order[-1] == -1
    if len(order) != len(size) and not is_sparse:
        raise RuntimeError("Incompatible host_size and dim_order")
    if len(order) > MAX_RANK + 1:
        raise RuntimeError(f"Unsupported tensor rank: {len(order)}")
    if len(order) == MAX_RANK + 1 and order[-1] != -1:
        raise RuntimeError(
            "7-element dim_order is only valid for sparse-stick (last entry must be -1)"
        )
