"""A class with the calls of ktir-cpu's `KTIRInterpreter`, on the simulator, in IEEE numbers.

Scripts that use ktir-cpu run on the simulator when they import this class instead:

    from ktir_cpu_adapter import KTIRInterpreter

    interpreter = KTIRInterpreter()
    interpreter.load("examples/ktir/add.ktir")
    found = interpreter.execute_function("add", x=x, y=y, z=z)

`load` takes a text or a path. `execute_function` takes arrays and numbers by the names of the
arguments, or in their order under other names, and returns the arrays as they are afterwards. The
latencies, memories and parsers of ktir-cpu have no counterpart here: `spyre profile` has the times.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import spyre


class KTIRInterpreter:
    """Runs functions of KTIR texts. ``numerics``: the number mode, IEEE numbers as ktir-cpu has."""

    def __init__(self, numerics: str = "ieee") -> None:
        self.device = spyre.Device(numerics)
        self._program: spyre.KtirProgram | None = None

    @property
    def program(self) -> spyre.KtirProgram:
        """The program that is loaded."""
        if self._program is None:
            raise RuntimeError("No module loaded: call load first")
        return self._program

    def load(self, source: str | Path) -> None:
        """Read a text or a file. Errors of `spyre.load_ktir`."""
        self._program = spyre.load_ktir(source)

    def arg_names(self, function: str) -> list[str]:
        """Names of the arguments in order."""
        return [argument.name for argument in self.program.arguments(function)]

    def tensor_input_output_sizes(self, function: str) -> dict[str, dict[str, Any]]:
        """Shape and element type of every pointer whose view has a known size."""
        return {
            argument.name: {"shape": argument.shape, "dtype": argument.element}
            for argument in self.program.arguments(function)
            if argument.is_pointer and argument.shape is not None
        }

    def execute_function(self, function: str, **values: Any) -> dict[str, np.ndarray]:
        """The arrays among ``values`` after a run. Errors of `spyre.run`."""
        names = self.arg_names(function)
        if len(values) == len(names) and not {*values} & {*names}:
            values = dict(zip(names, values.values(), strict=True))
        given = {name: value for name, value in values.items() if name in names}
        result = spyre.run(self.program, given, device=self.device, function=function)
        stored = {
            tensor.name: np.asarray(array)
            for tensor, array in zip(result.output_tensors, result.outputs, strict=True)
        }
        return {
            name: stored.get(name, value).astype(value.dtype, copy=False)
            for name, value in values.items()
            if isinstance(value, np.ndarray)
        }
