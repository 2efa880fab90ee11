"""What traces each operation that is not elementwise, and `trace_function`, which traces one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from spyre.hw.tiles import control, data, deliveries, memory
from spyre.hw.tiles.generic import trace_generic
from spyre.hw.tiles.program import TracedKernel
from spyre.hw.tiles.trace import Array, PointerArgument, Tracer
from spyre.hw.tiles.values import Level
from spyre.mlir.tiles import KtirProgram, TileFunction, TileOp, operation_rows


def trace_function(
    program: KtirProgram,
    function: TileFunction,
    pointers: Mapping[str, PointerArgument],
    numbers: Mapping[str, float],
    half: Callable[[Array], Array],
    file: Path,
) -> TracedKernel:
    """The statements of ``function`` for these arguments; ``half`` rounds to the 16-bit format.

    LaunchError, DeviceFault and UnsupportedError with the place of the operation.
    """
    return Tracer(program, function, pointers, numbers, half, HANDLERS).trace(file)


def _unsupported(tracer: Tracer, op: TileOp, level: Level) -> None:
    tracer.refuse(op, "this operation", "operations on whole sticks")


def _nothing(tracer: Tracer, op: TileOp, level: Level) -> None:
    """A terminator: the operation that has the region reads it."""


HANDLERS: dict[str, Callable[[Tracer, TileOp, Level], None]] = {
    "ktdp.get_compute_tile_id": memory.trace_tile_id,
    "arith.constant": memory.trace_constant,
    "ktdp.runtime_arg_extract": memory.trace_extract_argument,
    "ktdp.construct_memory_view": memory.trace_view,
    "ktdp.construct_access_tile": memory.trace_access_tile,
    "ktdp.load": memory.trace_load,
    "ktdp.store": memory.trace_store,
    "linalg.fill": data.trace_fill,
    "tensor.splat": data.trace_splat,
    "tensor.empty": data.trace_empty,
    "linalg.broadcast": data.trace_broadcast,
    "linalg.transpose": data.trace_transpose,
    "tensor.expand_shape": data.trace_reshape,
    "tensor.collapse_shape": data.trace_reshape,
    "tensor.reshape": data.trace_reshape,
    "tensor.extract": data.trace_extract,
    "linalg.reduce": data.trace_reduce,
    "linalg.matmul": data.trace_matmul,
    "linalg.batch_matmul": data.trace_matmul,
    "linalg.generic": trace_generic,
    "scf.for": control.trace_for,
    "scf.if": control.trace_if,
    "ktdp.inter_tile_produce": deliveries.trace_produce,
    "ktdp.inter_tile_reduce": deliveries.trace_deliver,
    "ktdp.inter_tile_consume": deliveries.trace_deliver,
    "ktdp.yield_partial": _nothing,
    "ktdp.yield_reduced": _nothing,
    "return": _nothing,
    "func.return": _nothing,
    "scf.yield": _nothing,
    "linalg.yield": _nothing,
    **{
        name: data.trace_named
        for name, row in operation_rows().items()
        if row.rule in ("named1", "named2")
    },
    **{
        name: _unsupported
        for name, row in operation_rows().items()
        if row.rule in ("distributed", "indirect_tile", "insert", "elements",
                        "slice", "insert_slice", "index")
    },
}  # fmt: skip
