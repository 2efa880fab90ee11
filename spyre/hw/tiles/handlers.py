"""Tracing of a function; the handler of each operation that is not elementwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from spyre.hw.numerics import Numerics
from spyre.hw.tiles import control, data, memory
from spyre.hw.tiles.elementwise import trace_elementwise
from spyre.hw.tiles.generic import trace_generic, trace_map, trace_reduce
from spyre.hw.tiles.program import TracedKernel
from spyre.hw.tiles.storage import BlockedError, Scratchpad
from spyre.hw.tiles.trace import PointerArgument, Site, Tracer
from spyre.hw.tiles.values import Number
from spyre.mlir.tiles import BITS, FLOATS, KtirProgram, TileFunction, operation_rows


def trace_function(
    program: KtirProgram,
    function: TileFunction,
    pointers: Mapping[str, PointerArgument],
    numbers: Mapping[str, float],
    numerics: Numerics,
    file: Path,
) -> TracedKernel:
    """The statements of ``function`` for these arguments.

    LaunchError, DeviceFault and UnsupportedError with the place of the operation.
    """
    blocked: tuple[tuple[int, int], ...] = ()
    while True:
        scratchpad = Scratchpad(blocked)
        tracer = Tracer(program, function, pointers, numbers, numerics, _trace, scratchpad)
        try:
            return tracer.trace(file)
        except BlockedError as error:
            blocked = (*blocked, error.args)


def _trace(site: Site) -> None:
    handler = HANDLERS.get(site.op.name)
    if handler is not None:
        handler(site)
    elif operation_rows()[site.op.name].result:
        trace_elementwise(site)


def _trace_tile_id(site: Site) -> None:
    rest, grid = np.arange(site.n_tiles)[None], site.tracer.grid
    for k, name in enumerate(site.op.results):
        extent = site.n_tiles if len(site.op.results) == 1 else [*grid, 1, 1, 1][k]
        site.bind(Number((rest % extent).astype(np.int64), site.level), name)
        rest = rest // extent


def _trace_constant(site: Site) -> None:
    type_, value = site.op.fields.get("!result"), site.op.fields["value"]
    if type_ is None:
        site.bind(Number(np.array([[value.text == "true"]]), site.level, kind="i1"))
        return
    text = str(value).removeprefix("dense<").removesuffix(">") if type_.is_shaped else value.text
    kind, extents = type_.scalar, type_.extents
    literals = re.findall(r"[^\[\], ]+", text)
    try:
        if text.startswith('"0x'):  # the bytes of all elements
            rows = re.findall("." * (BITS[kind] // 4), text[3:-1])
            literals = [f"0x{bytes.fromhex(row)[::-1].hex()}" for row in rows]
        values = site.rounded(np.array([_literal(word, kind) for word in literals]), kind)
        held = values.reshape(1, 1, *(extents if len(literals) > 1 else (1,) * len(extents)))
    except (ValueError, OverflowError, TypeError):  # strings, and more than 64 bits
        site.refuse("this constant", "numbers", text)
    number = Number(held, site.level, kind=kind, shape=extents)
    is_data = type_.is_shaped and kind in FLOATS
    site.bind(site.constant(number, extents) if is_data else number)


def _literal(text: str, kind: str) -> float:
    """A number's value; hexadecimal digits are the bits of a float."""
    if text in ("true", "false"):
        return float(text == "true")
    if "x" in text and kind in FLOATS:
        bits, wide = int(text, 16) << 16 * (kind == "bf16"), kind in ("f32", "bf16")
        return float(np.uint32(bits).view(np.float32) if wide else np.uint16(bits).view(np.float16))
    return float(text) if "." in text else int(text, 0)


def _trace_extract_argument(site: Site) -> None:
    field = site.op.fields["field"].text
    if field == "value":
        number, kind = site.number(site.op.fields["argument"], True), site.op.fields["!result"].kind
        site.bind(number if number.origin is not None else replace(
            number, values=site.rounded(number.values, kind), kind=kind
        ))  # fmt: skip
    else:
        site.bind(site.number(dict(site.op.fields["!argument"].details)[field]))


def _trace_index(site: Site) -> None:
    site.bind(site.tracer.iterators[int(site.op.fields["dim"].value)])


_OPERATIONS: Mapping[Callable[[Site], None], str] = {
    _trace_tile_id: "ktdp.get_compute_tile_id",
    _trace_constant: "arith.constant",
    _trace_extract_argument: "ktdp.runtime_arg_extract",
    memory.trace_view: "ktdp.construct_memory_view",
    memory.trace_distributed: "ktdp.construct_distributed_memory_view",
    memory.trace_access_tile: "ktdp.construct_access_tile",
    memory.trace_indirect_tile: "ktdp.construct_indirect_access_tile",
    memory.trace_moved: "ktdp.load ktdp.store",
    data.trace_splat: "linalg.fill tensor.splat linalg.broadcast",
    data.trace_empty: "tensor.empty",
    data.trace_transpose: "linalg.transpose",
    data.trace_reshape: "tensor.expand_shape tensor.collapse_shape tensor.reshape",
    data.trace_extract: "tensor.extract",
    data.trace_insert: "tensor.insert tensor.insert_slice",
    data.trace_elements: "tensor.from_elements",
    data.trace_slice: "tensor.extract_slice",
    trace_map: "linalg.map",
    trace_reduce: "linalg.reduce",
    data.trace_product: "linalg.matmul linalg.batch_matmul",
    trace_generic: "linalg.generic",
    _trace_index: "linalg.index",
    control.trace_for: "scf.for",
    control.trace_if: "scf.if",
    control.trace_produce: "ktdp.inter_tile_produce",
    control.trace_deliver: "ktdp.inter_tile_reduce ktdp.inter_tile_consume",
}
HANDLERS = {name: handler for handler, names in _OPERATIONS.items() for name in names.split()}
