"""`RowsGraph`: what of a symbolic graph one bundle can do, for any number of rows."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sympy
import torch

from spyre.torch_backend.inductor.any_rows import GRANULES, RowsKernel, rows_kernel, rows_of
from spyre.torch_backend.inductor.compat import inductor_config
from spyre.torch_backend.inductor.granules import Collected, Granule, NotByRows, collected
from spyre.torch_backend.inductor.observing import (
    Graph,
    Operations,
    is_observed,
    note,
    observing,
)
from spyre.torch_backend.inductor.symbolic_parts import (
    Compile,
    Values,
    apart,
    is_size,
    module_at,
    symbols_of,
    value_at,
    values_of,
)
from spyre.torch_backend.inductor.tiling.hints import hints_key

_log = logging.getLogger("spyre.compile")
aten = torch.ops.aten

TAKES_SIZES = frozenset(
    {
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.expand.default,
    }
)
"""Operations that say the number of rows and compute nothing with it."""
MOST_KERNELS = 16
"""Kernels that are kept; they differ by the sizes that are no rows."""


class RowsGraph:
    """The kernels of one symbolic graph. For one thread at a time."""

    def __init__(self, module: torch.fx.GraphModule, compile_at: Compile) -> None:
        self._module = module
        self._compile_at = compile_at
        self._kernels: OrderedDict[Any, _Rows | None] = OrderedDict()
        self._seen: dict[Any, set[int]] = {}
        self._symbol: sympy.Symbol | None = None
        try:
            if hints_key(module):
                raise NotByRows("hints ask for loops of their own")
            self._symbol = _row_symbol(module)
        except NotByRows as error:
            _log.info("compiled once per set of sizes: %s", error)

    def __call__(self, given: Sequence[Any]) -> list[Any] | None:
        """The outputs; None where no kernel for any number of rows is to be had."""
        if self._symbol is None:
            return None
        sizes = values_of(self._module, given)
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        if any(not t.is_contiguous() or t.storage_offset() for t in tensors):
            return None
        key = (
            tuple(n for s, n in sizes.items() if s != self._symbol),
            tuple(t.device for t in tensors),
        )
        if key not in self._kernels:
            if not self._is_worth_it(key, sizes):
                return None
            self._kernels[key] = self._made(sizes, tensors)
            while len(self._kernels) > MOST_KERNELS:
                self._kernels.popitem(last=False)
        found = self._kernels[key]
        return None if found is None else found.run(sizes, tensors)

    def _is_worth_it(self, key: Any, sizes: Values) -> bool:
        """Whether to make a kernel: the first one, or where numbers of rows are what changes."""
        assert self._symbol is not None
        seen = self._seen.setdefault(key, set())
        seen.add(sizes[self._symbol])
        return not self._kernels or len(seen) > 1

    def _made(self, sizes: Values, tensors: Sequence[torch.Tensor]) -> _Rows | None:
        assert self._symbol is not None
        try:
            places = _row_inputs(self._module, self._symbol)
            granules = {}
            for rows in GRANULES:
                granules[rows] = self._granule(rows, sizes, tensors, places)
                if rows > 1:
                    rows_of(granules[rows], places, rows)
            kernel = rows_kernel(granules, places)
        except NotByRows as error:
            _log.info("compiled once per set of sizes: %s", error)
            return None
        _log.info("compiled for any %s", self._symbol)
        note(kernel.kernel)
        return _Rows(kernel, self._module, self._symbol)

    def _granule(
        self, rows: int, sizes: Values, tensors: Sequence[torch.Tensor], places: Sequence[int]
    ) -> Granule:
        assert self._symbol is not None
        known, _ = module_at(self._module, {**sizes, self._symbol: rows})
        some = list(tensors)
        for k in places:
            some[k] = torch.empty(
                (rows, *tensors[k].shape[1:]), dtype=tensors[k].dtype, device=tensors[k].device
            )

        def compile_it() -> tuple[Collected, list[Any]]:
            uncached = inductor_config.patch(force_disable_caches=True)
            with collected() as found, uncached, _observing_as(watched) as seen:
                self._compile_at(known, some)
            return found, seen

        watched = is_observed()
        found, seen = apart(compile_it, observed=False)
        for what in seen if rows == GRANULES[0] else ():
            note(what if isinstance(what, (Graph, Operations)) else None)
        if len(found.granules) != 1 or found.others:
            raise NotByRows(f"{len(found.granules)} bundles, and {', '.join(found.others) or '-'}")
        (granule,) = found.granules
        at_rows = {**sizes, self._symbol: rows}
        outputs = tuple(_view_at(t, at_rows) for t in _outputs(self._module))
        if len(granule.inputs) != len(some) or granule.views != outputs:
            raise NotByRows("inputs or outputs that AOTAutograd makes itself")
        return granule


def _observing_as(watched: bool) -> AbstractContextManager[list[Any]]:
    """What is noted in this block, if anybody watches."""
    return observing() if watched else nullcontext([])


class _Rows:
    """A kernel, and how to call it."""

    def __init__(
        self, kernel: RowsKernel, module: torch.fx.GraphModule, symbol: sympy.Symbol
    ) -> None:
        self.kernel = kernel
        self.symbol = symbol
        self.values = [_value(v) for v in _output_nodes(module)]

    def run(self, sizes: Values, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """All outputs of the graph."""
        rows, device = int(sizes[self.symbol]), tensors[0].device
        made = [
            torch.empty(
                (b.sizes[0] * rows, *b.sizes[1:]), dtype=getattr(torch, b.dtype), device=device
            )
            for b in self.kernel.outputs
        ]
        found = (tensors if is_input else made for is_input, _ in self.kernel.arguments)
        places = (place for _, place in self.kernel.arguments)
        self.kernel.kernel.run(*(row[k] for row, k in zip(found, places, strict=True)), rows)
        results = iter(made)
        return [_seen(value, sizes, results) for value in self.values]


def _seen(value: Any, sizes: Values, results: Iterator[torch.Tensor]) -> Any:
    """An output: a number, or the next result in the sizes the graph says."""
    if not isinstance(value, torch.Tensor):
        return value_at(value, sizes) if is_size(value) else value
    result = next(results)
    shape, stride, _ = _view_at(value, sizes)
    same = (tuple(result.shape), result.stride()) == (shape, stride)
    return result if same else result.as_strided(shape, stride)


def _view_at(value: torch.Tensor, sizes: Values) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Sizes, strides and offset of a tensor with symbols."""
    shape = tuple(value_at(n, sizes) if is_size(n) else n for n in value.shape)
    stride = tuple(value_at(n, sizes) if is_size(n) else n for n in value.stride())
    offset = value.storage_offset()
    return shape, stride, value_at(offset, sizes) if is_size(offset) else offset


def _output_nodes(module: torch.fx.GraphModule) -> list[Any]:
    (output,) = module.graph.find_nodes(op="output")
    return list(output.args[0])


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


def _outputs(module: torch.fx.GraphModule) -> list[torch.Tensor]:
    return [v for v in map(_value, _output_nodes(module)) if isinstance(v, torch.Tensor)]


# --- which symbol counts rows --------------------------------------------------------------------


def _row_symbol(module: torch.fx.GraphModule) -> sympy.Symbol:
    """The symbol that counts rows: of first dims only, and of nothing else. NotByRows if none."""
    tensors = _tensors(module)
    firsts = [symbols_of(t.shape[0]) for t in tensors if t.dim()]
    candidates = dict.fromkeys(s for found in firsts for s in found)
    for symbol in candidates:
        if all(_is_row_of(symbol, t) for t in tensors) and not _used_as_number(module, symbol):
            return symbol
    raise NotByRows("no size is that of first dims alone")


def _tensors(module: torch.fx.GraphModule) -> list[torch.Tensor]:
    nodes = module.graph.find_nodes(op="placeholder")
    return [v for n in nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]


def _is_row_of(symbol: sympy.Symbol, tensor: torch.Tensor) -> bool:
    others = [*tensor.shape[1:], *tensor.stride(), tensor.storage_offset()]
    if any(symbol in symbols_of(number) for number in others):
        return False
    first = tensor.shape[0] if tensor.dim() else 1
    expression = first.node.expr if isinstance(first, torch.SymInt) else first
    return symbol not in symbols_of(first) or bool(expression == symbol)


def _row_inputs(module: torch.fx.GraphModule, symbol: sympy.Symbol) -> list[int]:
    tensors = enumerate(_tensors(module))
    return [k for k, t in tensors if t.dim() and symbol in symbols_of(t.shape[0])]


def _used_as_number(module: torch.fx.GraphModule, symbol: sympy.Symbol) -> bool:
    """Whether an operation computes with the size, or makes tensors of it."""
    for node in module.graph.nodes:
        if not is_size(node.meta.get("val")) or symbol not in symbols_of(node.meta["val"]):
            continue
        for user in node.users:
            takes_it = user.op == "output" or user.target in TAKES_SIZES
            if not takes_it and not is_size(user.meta.get("val")):
                return True
    return False
