"""The programs of the kernel benchmark, and the same arithmetic in numpy and torch.

Every workload runs through the whole engine: a linked program over device memory that real
transfers filled. References use float32 (torch's float16 matmul on CPU is no reference).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spyre.hw.device.device import Device
from spyre.hw.linking.binding import Allocation, Binding
from spyre.hw.linking.linked_program import LinkedProgram
from spyre.hw.linking.linker import Linker
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.spec import REGION_BYTES, REGIONS
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, matmul, pointwise, reduction, restickify
from spyre.mlir.text.lowering import lower
from spyre.mlir.text.parser import parse_module

ROWS, COLUMNS = 2048, 4096
Call = Callable[[], object]
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Workload:
    """``run``: call on the simulated card; ``reference``: call of ``against`` on the host.

    ``bytes_moved``, ``operations``: of the card's side. ``target``: least ratio of the times.
    """

    name: str
    run: Call
    reference: Call
    against: str
    target: float
    bytes_moved: int
    operations: int = 0


def link_operations(
    device: Device, specs: Sequence[OperationSpec], repeat: int = 1
) -> LinkedProgram:
    """Link a program that executes ``specs`` in order, ``repeat`` times, at literal addresses."""
    names = [f"sdsc_{k}.json" for k in range(len(specs))]
    operations = {n: build_operation(spec) for n, spec in zip(names, specs, strict=True)}
    body = "\n".join(f'sdscbundle.sdsc_execute () {{sdsc_filename="{n}"}}' for n in names)
    constants = [("c0", 0), ("c1", 1), ("n", repeat)]
    lines = [f"%{name} = arith.constant {value} : index" for name, value in constants]
    lines.append(f"scf.for %i = %c0 to %n step %c1 {{\n{body}\n}}")
    text = "module {\nfunc.func @sdsc_bundle() {\n" + "\n".join(lines) + "\nreturn\n}\n}\n"
    program = lower(parse_module(text, "benchmark"))
    linker = Linker(program, operations, device.numerics, device.threads)
    regions = [Allocation(f"region {k}", k * REGION_BYTES, REGION_BYTES) for k in range(REGIONS)]
    return linker.link(Binding(allocations=tuple(regions)))


def upload(device: Device, region: int, values: Array) -> DeviceTensor:
    """Copy ``values`` to a float16 tensor at the start of ``region`` and return it."""
    half = np.ascontiguousarray(values.astype(np.float16))
    layout = SpyreTensorLayout.from_host(half.shape, "float16")
    strides = contiguous_strides(half.shape)
    tensor = DeviceTensor(
        f"region {region}", region * REGION_BYTES, layout, "float16", half.shape, strides
    )
    device.upload(tensor, half.ravel(), "float16")
    return tensor


def _at(region: int, absent_axes: tuple[int, ...] = (), offset: int = 0) -> HostOperand:
    return HostOperand(region * REGION_BYTES + offset, absent_axes)


def _torch() -> Any | None:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


class Workloads:
    """Builds the workloads on one device; operands are in regions 0-2, results in 3."""

    def __init__(self, device: Device) -> None:
        self.device = device
        rng = np.random.default_rng(0)
        self.a = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        self.b = rng.standard_normal((ROWS, COLUMNS), dtype=np.float32)
        self.out = np.empty_like(self.a)
        self.torch = _torch()
        if self.torch is not None:
            self.torch.set_num_threads(device.threads)

    def all(self) -> Iterator[Workload]:
        """Yield all workloads in the table's order. Matmuls overwrite regions 1 and 2."""
        upload(self.device, 0, self.a)
        upload(self.device, 1, self.b)
        upload(self.device, 2, self.a > 0)
        yield from self.pointwise()
        yield from self.reductions()
        yield self.softmax()
        yield self.restickify()
        yield from self.transfers()
        yield from self.matmuls()

    def pointwise(self) -> Iterator[Workload]:
        """Elementwise operations over 2048 × 4096, rows split over 32 cores."""
        for name, inputs, reference, target in self._pointwise_rows():
            spec = pointwise(name, (ROWS, COLUMNS), inputs, _at(3), {"mb": 32})
            moved = 2 * ROWS * COLUMNS * (len(inputs) + 1)
            yield self._workload(name, [spec], reference, "torch", target, moved)

    def _pointwise_rows(self) -> list[tuple[str, list[HostOperand], Call, float]]:
        torch = self.torch
        a, b = _at(0), _at(1)
        if torch is None:
            return [
                ("add", [a, b], lambda: np.add(self.a, self.b, out=self.out), 1.0),
                ("exp", [a], lambda: np.exp(self.a, out=self.out), 1.2),
            ]
        x, y, out = (torch.from_numpy(v) for v in (self.a, self.b, self.out))
        positive, nn = x > 0, torch._C._nn
        return [
            ("add", [a, b], lambda: torch.add(x, y, out=out), 1.0),
            ("mul", [a, b], lambda: torch.mul(x, y, out=out), 1.0),
            ("relufwd", [a], lambda: torch.clamp(x, min=0, out=out), 1.0),
            ("where3", [_at(2), a, b], lambda: torch.where(positive, x, y, out=out), 1.0),
            ("exp", [a], lambda: torch.exp(x, out=out), 1.2),
            ("gelufwd", [a], lambda: nn.gelu(x, out=out), 0.9),
            ("sigmoid", [a], lambda: torch.sigmoid(x, out=out), 0.9),
            ("silu", [a], lambda: nn.silu(x, out=out), 0.9),
        ]

    def reductions(self) -> Iterator[Workload]:
        """Sum and maximum along rows (the stick dim) and along columns."""
        rows: Mapping[str, tuple[str, int, float, str]] = {
            "row sum": ("sum", 1, 1.0, "mb"),
            "row amax": ("max", 1, 1.0, "mb"),
            "column sum": ("sum", 0, 2.0, "out"),
            "column amax": ("max", 0, 2.0, "out"),
        }
        for name, (op, axis, target, split) in rows.items():
            spec = reduction(op, (ROWS, COLUMNS), (axis,), _at(0), _at(3), {split: 32})
            reference, against = self._reduction_reference(op, axis)
            moved = 2 * ROWS * COLUMNS
            yield self._workload(name, [spec], reference, against, target, moved)

    def _reduction_reference(self, op: str, axis: int) -> tuple[Call, str]:
        result = np.empty(self.a.shape[1 - axis], np.float32)
        if self.torch is None:
            function = np.add.reduce if op == "sum" else np.maximum.reduce
            return lambda: function(self.a, axis, out=result), "numpy"
        torch = self.torch
        x, out = torch.from_numpy(self.a), torch.from_numpy(result)
        call = torch.sum if op == "sum" else torch.amax
        return lambda: call(x, axis, out=out), "torch"

    def softmax(self) -> Workload:
        """Softmax as five executes that round to DL16: max, sub, exp, sum, realdiv."""
        shape, split = (ROWS, COLUMNS), {"mb": 32}
        difference, exponent = _at(3, offset=1 << 30), _at(5)
        specs = [
            reduction("max", shape, (1,), _at(0), _at(4), split),
            pointwise("sub", shape, [_at(0), _at(4, (1,))], difference, split),
            pointwise("exp", shape, [difference], exponent, split),
            reduction("sum", shape, (1,), exponent, _at(6), split),
            pointwise("realdiv", shape, [exponent, _at(6, (1,))], _at(3), split),
        ]
        moved = 2 * ROWS * COLUMNS * 8
        if self.torch is None:
            return self._workload("softmax", specs, self._numpy_softmax, "numpy", 0.35, moved)
        torch = self.torch
        x, out = torch.from_numpy(self.a), torch.from_numpy(self.out)
        return self._workload(
            "softmax", specs, lambda: torch.softmax(x, 1, out=out), "torch", 0.35, moved
        )

    def _numpy_softmax(self) -> Array:
        np.subtract(self.a, self.a.max(1, keepdims=True), out=self.out)
        np.exp(self.out, out=self.out)
        self.out /= self.out.sum(1, keepdims=True)
        return self.out

    def restickify(self) -> Workload:
        """A change of stick dim against a transposing copy of the same 16-bit elements."""
        spec = restickify((ROWS, COLUMNS), _at(0), _at(3))
        codes = self.a.astype(np.float16).view(np.uint16)
        moved = 4 * ROWS * COLUMNS
        return self._workload(
            "restickify", [spec], lambda: np.ascontiguousarray(codes.T), "numpy", 15, moved
        )

    def transfers(self) -> Iterator[Workload]:
        """Host ↔ device copies with conversion against a conversion of the same elements."""
        half = self.a.astype(np.float16)
        tensor = upload(self.device, 0, half)
        source, sink = half.ravel(), np.empty(half.size, np.float16)
        moved = 4 * half.size
        reference = lambda: half.astype(np.float32)  # noqa: E731
        device = self.device
        yield Workload(
            "host to device",
            lambda: device.upload(tensor, source, "float16"),
            reference,
            "numpy",
            6,
            moved,
        )
        yield Workload(
            "device to host",
            lambda: device.download(tensor, sink, "float16"),
            reference,
            "numpy",
            6,
            moved,
        )

    def matmuls(self) -> Iterator[Workload]:
        """Matrix products by size and core split."""
        yield self._matmul(2048, 2048, 2048, {"mb": 8, "out": 4}, 0.85)
        yield self._matmul(2048, 2048, 2048, {"mb": 32}, 0.7)
        yield self._matmul(2048, 2048, 2048, {"out": 32}, 0.7)
        yield self._matmul(512, 512, 512, {"mb": 8, "out": 4}, 0.7)
        yield self._matmul(32, 4096, 4096, {"out": 32}, 0.9)

    def _matmul(
        self, rows: int, inner: int, columns: int, splits: dict[str, int], target: float
    ) -> Workload:
        left = self.a.ravel()[: rows * inner].reshape(rows, inner).copy()
        values = np.resize(self.b.ravel(), inner * columns)
        right = values.reshape(inner, columns).copy()
        product = np.empty((rows, columns), np.float32)
        upload(self.device, 1, left)
        upload(self.device, 2, right)
        spec = matmul(rows, inner, columns, _at(1), _at(2), _at(3), (), splits)
        split = "x".join(str(splits.get(d, 1)) for d in ("mb", "out"))
        return self._workload(
            f"matmul {rows}x{inner}x{columns} split {split}",
            [spec],
            lambda: np.matmul(left, right, out=product),
            "numpy",
            target,
            2 * (rows * inner + inner * columns + rows * columns),
            2 * rows * inner * columns,
        )

    def _workload(
        self,
        name: str,
        specs: Sequence[OperationSpec],
        reference: Call,
        against: str,
        target: float,
        bytes_moved: int,
        operations: int = 0,
    ) -> Workload:
        linked = link_operations(self.device, specs)
        run = lambda: self.device.executor.run(linked)  # noqa: E731
        return Workload(name, run, reference, against, target, bytes_moved, operations)
