"""Tensors on the host, before they go to the card and after they come back.

A `HostTensor` is what tensor files are read into and what transfers move: a 1-D storage with
shape, strides and offset in elements, the way torch has it. `TensorSpec` is what is asked of a
tensor: by a launch spec, or by ``--shape 10x512@fp16``. Rules: runtime reference §2-3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spyre.dtypes import (
    HOST_DTYPES,
    NumericRules,
    decode_dl16,
    decode_host,
    encode_dl16,
    encode_host,
    find_host_dtype,
)
from spyre.errors import LaunchError
from spyre.layout import contiguous_strides

_HOST_ONLY_DTYPES = ("float64", "uint16", "uint32", "uint64")
_SCALAR = "scalar"
_MOST_ELEMENTS = 1 << 40
"""More than any host holds."""
_HOST_ROUNDING = NumericRules(bfloat16_rounding="even")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape (elements) and torch dtype name a tensor has to have."""

    name: str
    shape: tuple[int, ...]
    dtype_name: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape)) or _SCALAR}@{self.dtype_name}"


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """A host tensor: element (i0, i1, …) is ``storage[storage_offset + Σ i·strides]``.

    ``strides`` and ``storage_offset`` in elements. ``storage`` is 1-D with the numpy dtype of
    `spyre.dtypes.HostDtype`: bfloat16 and float8 hold bit patterns. LaunchError SPY334 when the
    storage's dtype is not one a tensor can have, or not the one of ``dtype_name``.
    """

    name: str
    dtype_name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    storage: NDArray[Any]

    def __post_init__(self) -> None:
        _check_storage_dtype(self.name, self.storage.dtype, self.dtype_name)

    @classmethod
    def from_array(
        cls, name: str, array: NDArray[Any], dtype_name: str | None = None
    ) -> HostTensor:
        """A contiguous tensor of the elements of ``array``, shared with it if that is contiguous.

        ``dtype_name`` is needed where the array holds bit patterns.
        """
        if dtype_name is None:
            dtype_name = array.dtype.name
        flat = np.ascontiguousarray(array).reshape(-1)
        return cls(name, dtype_name, array.shape, contiguous_strides(array.shape), 0, flat)

    @classmethod
    def from_values(cls, name: str, values: NDArray[Any], dtype_name: str) -> HostTensor:
        """A contiguous tensor of torch dtype ``dtype_name`` holding ``values`` rounded to it."""
        dtype = find_host_dtype(dtype_name)
        return cls.from_array(name, encode_host(values, dtype.name, _HOST_ROUNDING), dtype.name)

    def to_array(self) -> NDArray[Any]:
        """The elements in the tensor's shape, as stored (bit patterns stay bit patterns)."""
        view = np.lib.stride_tricks.as_strided(
            self.storage[self.storage_offset :],
            self.shape,
            tuple(s * self.storage.itemsize for s in self.strides),
        )
        return view.copy()

    def to_values(self) -> NDArray[Any]:
        """The numbers in the tensor's shape: float32 (float64 as it is), int64 or bool."""
        array = self.to_array()
        if self.dtype_name not in HOST_DTYPES:
            return array
        return decode_host(array, self.dtype_name)

    @property
    def spec(self) -> TensorSpec:
        """Name, shape and dtype."""
        return TensorSpec(self.name, self.shape, self.dtype_name)


def conform_tensor(tensor: HostTensor, spec: TensorSpec) -> HostTensor:
    """``tensor`` under the name of ``spec``, checked against it.

    float32 numbers are accepted for bfloat16 and float8, which .npy cannot name, when they are
    all representable. LaunchError SPY333 for the shape, SPY334 for the dtype.
    """
    if tensor.shape != spec.shape:
        raise LaunchError(
            "SPY333",
            f"tensor {spec.name} has the wrong shape",
            expected=str(spec),
            found=str(tensor.spec),
        )
    if tensor.dtype_name == spec.dtype_name:
        fields = (tensor.shape, tensor.strides, tensor.storage_offset, tensor.storage)
        return HostTensor(spec.name, spec.dtype_name, *fields)
    narrowed = _narrow(tensor, spec)
    if narrowed is None:
        raise LaunchError(
            "SPY334",
            f"tensor {spec.name} has the wrong dtype",
            expected=str(spec),
            found=str(tensor.spec),
        )
    return narrowed


def random_tensor(
    shape: tuple[int, ...], dtype_name: str, seed: int, name: str = "random"
) -> HostTensor:
    """A tensor of reproducible test numbers.

    Floats: standard normal, rounded to numbers both the dtype and DL16 can represent, so that
    the transfer to the card is exact. Integers: 0 to 7. Booleans: fair coins. LaunchError SPY382
    for more elements than the host has memory for.
    """
    spec = TensorSpec(name, shape, dtype_name)
    try:
        if spec.elements > _MOST_ELEMENTS:
            raise MemoryError
        return _random_tensor(shape, dtype_name, seed, name)
    except MemoryError as error:
        raise LaunchError(
            "SPY382", f"no memory for random numbers for {name}", found=str(spec)
        ) from error


def _random_tensor(shape: tuple[int, ...], dtype_name: str, seed: int, name: str) -> HostTensor:
    dtype = find_host_dtype(dtype_name)
    generator = np.random.default_rng(seed)
    if dtype.name == "bool":
        return HostTensor.from_values(name, generator.integers(0, 2, shape), dtype.name)
    if not _is_float(dtype.name):
        return HostTensor.from_values(name, generator.integers(0, 8, shape), dtype.name)
    normal = generator.standard_normal(shape, dtype=np.float32)
    return HostTensor.from_values(name, decode_dl16(encode_dl16(normal)), dtype.name)


def parse_tensor_spec(text: str, name: str = "") -> TensorSpec:
    """``10x512@fp16`` → shape (10, 512), dtype float16; ``scalar@fp32`` → shape ().

    Without ``@`` the dtype is float16; its aliases are those of `canonical_dtype_name`.
    LaunchError SPY337 when the text is not of this form, UnsupportedError SPY311 for the dtype.
    """
    shape_text, _, dtype_text = text.strip().partition("@")
    dtype_name = find_host_dtype(dtype_text or "float16").name
    if shape_text == _SCALAR:
        return TensorSpec(name, (), dtype_name)
    if not re.fullmatch(r"\d+(x\d+)*", shape_text):
        raise LaunchError(
            "SPY337",
            f"cannot read the shape {text!r}",
            expected="extents joined by x, then @dtype, such as 10x512@fp16 or scalar@fp32",
        )
    return TensorSpec(name, tuple(int(n) for n in shape_text.split("x")), dtype_name)


def _is_float(dtype_name: str) -> bool:
    return "float" in dtype_name


def _check_storage_dtype(name: str, found: np.dtype[Any], dtype_name: str) -> None:
    row = HOST_DTYPES.get(dtype_name)
    known = row is not None or dtype_name in _HOST_ONLY_DTYPES
    expected = row.storage_dtype if row is not None else dtype_name
    if not known or found != np.dtype(expected):
        raise LaunchError(
            "SPY334",
            f"tensor {name} cannot hold {found} as {dtype_name}",
            expected=f"{expected} storage" if known else "a torch dtype",
        )


def _narrow(tensor: HostTensor, spec: TensorSpec) -> HostTensor | None:
    """float32 numbers as bits of bfloat16 or float8, or None if some number would change."""
    row = HOST_DTYPES.get(spec.dtype_name)
    if tensor.dtype_name != "float32" or row is None or not row.holds_bits:
        return None
    values = tensor.to_values()
    narrowed = HostTensor.from_values(spec.name, values, spec.dtype_name)
    return narrowed if np.array_equal(narrowed.to_values(), values, equal_nan=True) else None
