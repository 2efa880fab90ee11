"""The programs that the kernel benchmark runs: one linked program each, data already on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyre.hw.binding import Allocation, Binding
from spyre.hw.device import Device
from spyre.hw.linker import LinkedProgram, Linker
from spyre.hw.spec import REGION_BYTES, REGIONS
from spyre.mlir.operation import Operation
from spyre.mlir.parser import parse_module
from spyre.mlir.program import lower
from spyre.mlir.sdsc_builder import OperationSpec, build_operation

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Workload:
    """``linked`` runs on ``device``; the numpy and torch sides do the same arithmetic in float32."""

    name: str
    device: Device
    linked: LinkedProgram
    numpy_side: Callable[[], object]
    torch_side: Callable[[], object] | None
    bytes_moved: int
    floating_operations: int
    target: float
    against: str

    def run(self) -> None:
        self.device.executor.run(self.linked)


def link_operations(
    device: Device, specs: Sequence[OperationSpec], repeat: int = 1
) -> LinkedProgram:
    """A program that executes ``specs`` in order, ``repeat`` times, at literal addresses."""
    names = [f"sdsc_{k}.json" for k in range(len(specs))]
    operations: dict[str, Operation] = {
        name: build_operation(spec) for name, spec in zip(names, specs, strict=True)
    }
    lines = [f'sdscbundle.sdsc_execute () {{sdsc_filename="{n}"}}' for n in names]
    body = "\n".join(lines)
    if repeat > 1:
        body = f"scf.for %i = %c0 to %n step %c1 {{\n{body}\n}}"
    text = (
        "module {\nfunc.func @sdsc_bundle() {\n%c0 = arith.constant 0 : index\n"
        f"%c1 = arith.constant 1 : index\n%n = arith.constant {repeat} : index\n{body}\nreturn\n}}\n}}\n"
    )
    linker = Linker(
        lower(parse_module(text, "benchmark")),
        operations,
        device.numerics.half_format,
        device.threads,
    )
    regions = tuple(
        Allocation(f"region {k}", k * REGION_BYTES, REGION_BYTES) for k in range(REGIONS)
    )
    return linker.link(Binding(allocations=regions))
