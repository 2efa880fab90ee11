"""Command lines of KTIR programs: arguments by name (``-i NAME=FILE``), functions by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from spyre.cli.options import ComparisonOptions, Options
from spyre.dtypes import find_host_dtype
from spyre.errors import LaunchError
from spyre.runtime.arguments import HostTensor, load_tensors, parse_tensor_spec, random_tensor
from spyre.runtime.compare import require_equal_shapes
from spyre.runtime.run import Run, Session

SUFFIXES = (".ktir", ".mlir")
_SHAPE = re.compile(r"(scalar|\d+(x\d+)*)@\w+")


def is_tile_program(path: str) -> bool:
    """True for a file that holds a KTIR text, by its name; bundle.mlir belongs to a bundle."""
    return path.endswith(SUFFIXES) and Path(path).name != "bundle.mlir"


def describe_tile_run(options: Options, session: Session) -> Run:
    """The run of a text with the arguments of the command line. Errors as of `spyre.run`."""
    from spyre.cli.commands import tolerance_of
    from spyre.mlir.tiles import load_ktir

    program = load_ktir(options.path)
    given: dict[str, HostTensor | float] = {}
    for k, (name, file) in enumerate(map(_named, (*options.inputs, *options.shapes))):
        given[name] = _tensor(name, file, options.seed + k)
    given |= dict(options.values)
    expected = options.expected if isinstance(options, ComparisonOptions) else ()
    for name, file in map(_named, expected):
        if name.startswith("@") and name not in given:  # memory that is only compared
            tensor = _tensor(name, file, 0)
            empty = np.zeros_like(tensor.to_array())
            given[name] = HostTensor.from_array(name, empty, tensor.dtype_name)
    run = session.describe_tiles(program, given, options.function)
    outputs = {output.buffer: output for output in run.outputs}
    for name, file in map(_named, expected):
        if name not in outputs:
            raise LaunchError(
                "SPY342", f"{name} is no argument that is stored to",
                expected=", ".join(outputs) or "none", found=name,
            )  # fmt: skip
        assert isinstance(options, ComparisonOptions)
        tensor, output = _tensor(name, file, 0), outputs[name]
        require_equal_shapes(output.view[0], tensor.shape, LaunchError)
        stored, mode = find_host_dtype(output.read_as).device_format, session.device.numerics.mode
        tolerance = tolerance_of(options, output.read_as, stored, mode)
        outputs[name] = replace(output, expected=tensor.to_values, tolerance=tolerance)
    return replace(run, outputs=tuple(outputs.values()))


def _named(text: str) -> tuple[str, str]:
    name, separator, file = text.partition("=")
    if not separator or not name or not file:
        raise LaunchError(
            "SPY342", "an argument of a KTIR program is given without its name",
            expected="NAME=FILE", found=text,
        )  # fmt: skip
    return name.removeprefix("%"), file


def _tensor(name: str, file: str, seed: int) -> HostTensor:
    if _SHAPE.fullmatch(file) and not os.path.exists(file):
        spec = parse_tensor_spec(file, name)
        return random_tensor(spec.shape, spec.dtype_name, seed, name)
    tensors = load_tensors(file)
    if len(tensors) != 1:
        raise LaunchError(
            "SPY332", f"{file} holds {len(tensors)} tensors", expected="one, or FILE.npz:KEY"
        )
    return replace(tensors[0], name=name)
