"""What a launch compares: tensors as the kernel expects them, and as they are bound.

Immutable, usable from several threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from spyre.hw.device import DeviceTensor
from spyre.layout import SpyreTensorLayout
from spyre.runtime.launch_spec import Role
from spyre.runtime.tiling.device_dims import DeviceDims, device_dims


@dataclass(frozen=True, slots=True)
class KernelDim:
    """One dim of a kernel as its arguments share it; equal in all of them.

    ``name``: of the operation that has it first. ``reduced_by``: the operation that reduces it.
    ``accumulated_by``: the operation that combines results of its tiles ('' where none does).
    ``fixed``: why it cannot be tiled.
    """

    index: int
    name: str
    reduced_by: str = ""
    accumulated_by: str = ""
    fixed: str = ""


@dataclass(frozen=True)
class ExpectedTensor:
    """An argument as the kernel was compiled for it.

    ``shape``/``strides`` in elements; ``dims``: the kernel's dim of every host dim, None where no
    operation walks it.
    """

    arg_index: int
    name: str
    role: Role
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype_name: str
    layout: SpyreTensorLayout
    dims: tuple[KernelDim | None, ...]

    @property
    def device_dims(self) -> DeviceDims:
        """Host dims of the layout's dims."""
        return device_dims(self.layout, self.shape, self.strides)


@dataclass(frozen=True)
class ActualTensor:
    """A tensor bound at launch: ``shape`` and ``strides`` in elements, and where they lie."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype_name: str
    layout: SpyreTensorLayout

    @classmethod
    def of(cls, tensor: DeviceTensor) -> ActualTensor:
        """What a plan needs of ``tensor``."""
        return cls(tensor.name, tensor.sizes, tensor.strides, tensor.dtype, tensor.layout)

    @property
    def device_dims(self) -> DeviceDims:
        """Host dims of the layout's dims."""
        return device_dims(self.layout, self.shape, self.strides)
