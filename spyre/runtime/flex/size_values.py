"""Runtime sizes of a launch, from the shapes of its tensors.

A launch_spec.json names sizes in the shapes of its arguments; the tensors of a launch give them
their values. What several tensors say has to agree, and to agree with what the caller says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spyre.errors import LaunchError
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.launch_spec import LaunchSpec

Shapes = tuple[tuple[int | str, ...], ...]
"""Per argument its extents: numbers, and names of runtime sizes."""


def named_shapes(spec: LaunchSpec | None) -> Shapes:
    """The shapes of a launch spec, nothing where no size has a name."""
    shapes = () if spec is None else tuple(argument.shape for argument in spec.args)
    return shapes if any(isinstance(n, str) for shape in shapes for n in shape) else ()


def sizes_of_tensors(
    shapes: Shapes, tensors: Sequence[SpyreTensor], given: Mapping[str, int]
) -> dict[str, int]:
    """``given`` values, and those of the sizes that ``shapes`` name.

    LaunchError SPY873 where two of them differ. Tensors of another rank are left to the launch,
    which refuses them.
    """
    values = dict(given)
    source = dict.fromkeys(given, "the values of the launch")
    for shape, tensor in zip(shapes, tensors, strict=False):
        if len(shape) != len(tensor.shape):
            continue
        for name, extent in zip(shape, tensor.shape, strict=True):
            if not isinstance(name, str):
                continue
            if values.setdefault(name, extent) != extent:
                raise LaunchError(
                    "SPY873",
                    f"runtime size {name} has two values",
                    expected=f"{values[name]}, from {source[name]}",
                    found=f"{extent}, from {tensor.name}",
                )
            source.setdefault(name, tensor.name)
    return values
