"""A graph with symbolic sizes: traced once, called with any sizes.

AOTAutograd traces it with sizes as symbols and does not decompose operations. The first call with a
set of sizes chooses the program: one bundle for any number of rows if there is one
(`RowwiseGraph`), otherwise the graph compiled for these sizes, without Dynamo.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import sympy
import torch

from spyre.lru_cache import LruCache
from spyre.torch_backend.inductor.base.compat import (
    OutputCode,
    free_unbacked_symbols,
    inductor_config,
    stable_topological_sort,
)
from spyre.torch_backend.inductor.base.notes import is_observed, note, observing
from spyre.torch_backend.inductor.dynamic.rows import (
    TILE_ROWS,
    NotRowwise,
    RowTile,
    RowwiseKernel,
    collected,
    rows_of,
    rowwise_kernel,
)
from spyre.torch_backend.inductor.hints import hints_key

SIZED_META = ("val", "tensor_meta", "eager_input_vals", "unbacked_bindings")
"""Metadata of nodes that contains the sizes they were traced with."""
AT_ANY_STRIDES = {torch.ops.aten.view.default: torch.ops.aten.reshape.default}
"""Operations that tracing chose for the strides of that time, by the general operation to use
instead: a graph compiled for known sizes may have other strides.
"""
Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
T = TypeVar("T")
Values = Mapping[sympy.Symbol, int]


def in_fresh_thread(compile_it: Callable[[], T], observed: bool = True) -> T:
    """Compile in another thread, since torch modes are active in the thread of a running graph.

    ``observed``: hand the notes of the compilation to the observer of the calling thread.
    """
    with ThreadPoolExecutor(1) as pool:
        if not observed or not is_observed():
            return pool.submit(compile_it).result()
        result, seen = pool.submit(_with_observer, compile_it).result()
    for item in seen:
        note(item)
    return result


def _with_observer(compile_it: Callable[[], T]) -> tuple[T, list[Any]]:
    with observing() as seen:
        return compile_it(), seen


def is_size(value: Any) -> bool:
    """Return True if a value is a symbolic number."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def symbols_of(value: Any) -> set[sympy.Symbol]:
    """Symbols of a number, or of the sizes of a tensor."""
    if isinstance(value, torch.Tensor):
        sizes = [*value.shape, *value.stride(), value.storage_offset()]
        return set().union(*map(symbols_of, sizes))
    return set(value.node.expr.free_symbols) if is_size(value) else set()


def values_of(module: torch.fx.GraphModule, given: Sequence[Any]) -> dict[sympy.Symbol, int]:
    """The values of a graph's symbols for given inputs."""
    values: dict[sympy.Symbol, int] = {}
    places = module.graph.find_nodes(op="placeholder")
    for node, value in zip(places, given, strict=True):
        known = node.meta.get("val", node.meta.get("example_value"))
        pairs = [(known, value)]
        if isinstance(known, torch.Tensor):
            pairs = [*zip(known.shape, value.shape, strict=True)]
            pairs += zip(known.stride(), value.stride(), strict=True)
            pairs.append((known.storage_offset(), value.storage_offset()))
        for symbol, number in pairs:
            if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_Symbol:
                values.setdefault(symbol.node.expr, int(number))
    return values


def value_at(value: Any, sizes: Values) -> Any:
    """The value of a symbolic number at given sizes."""
    expression = value.node.expr
    number = expression.subs(sizes) if hasattr(expression, "subs") else expression
    if isinstance(value, torch.SymBool):
        return bool(number)
    return float(number) if isinstance(value, torch.SymFloat) else int(number)


def module_at(
    module: torch.fx.GraphModule, sizes: Values
) -> tuple[torch.fx.GraphModule, list[float | None]]:
    """A graph with numbers for all symbols, and per output of the old graph its number, or None.

    The new graph has the tensors among the old inputs and outputs.
    """
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, Any] = {}
    numbers: list[float | None] = []
    # torch's constant folding puts a number ahead of the nodes that compute its sizes
    stable_topological_sort(module.graph)
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if is_size(value) and not free_unbacked_symbols(value):
            made[node] = value_at(value, sizes)
        elif node.op == "output":
            outputs = torch.fx.map_arg(node.args[0], made.__getitem__)
            numbers = [v if isinstance(v, (int, float)) else None for v in outputs]
            graph.output(tuple(v for v in outputs if not isinstance(v, (int, float))))
        elif node.op == "placeholder" and not isinstance(value, torch.Tensor):
            made[node] = value
        else:
            made[node] = graph.node_copy(node, made.__getitem__)
            made[node].target = AT_ANY_STRIDES.get(node.target, node.target)
            for name in SIZED_META:
                made[node].meta.pop(name, None)
    return torch.fx.GraphModule(module, graph), numbers


_log = logging.getLogger("spyre.compile")
aten = torch.ops.aten

TAKES_SIZES = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default}
)
"""Operations that take the number of rows without computing with it."""
MOST_KERNELS = 16
"""Kernels that are cached; they differ by the sizes that are no rows."""


class RowwiseGraph:
    """The kernels of one symbolic graph. For one thread at a time."""

    def __init__(self, module: torch.fx.GraphModule, compile_at: Compile) -> None:
        self._module = module
        self._compile_at = compile_at
        self._kernels: LruCache[Any, RowwiseKernel | NotRowwise] = LruCache(MOST_KERNELS)
        self._row_counts: dict[Any, set[int]] = {}
        self._symbol: Any = None  # no size counts rows
        (output,) = module.graph.find_nodes(op="output")
        self._outputs = [
            node.meta.get("val") if isinstance(node, torch.fx.Node) else node
            for node in output.args[0]
        ]
        try:
            if hints_key(module):
                raise NotRowwise("hints ask for separate loops")
            if any(node.meta.get("unbacked_bindings") for node in module.graph.nodes):
                raise NotRowwise("it has values that are known only at run time")
            self._symbol = _row_symbol(module)
        except NotRowwise as error:
            _log.info("compiled once per set of sizes: %s", error)

    def __call__(self, given: Sequence[Any]) -> list[Any] | None:
        """The outputs; None if there is no kernel for any number of rows."""
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
        kernel = self._kernels.get(key)
        if kernel is None:
            if not self._is_worth_it(key, sizes):
                return None
            kernel = self._made(sizes, tensors)
            self._kernels.put(key, kernel)
        return None if isinstance(kernel, NotRowwise) else self._run(kernel, sizes, tensors)

    def _is_worth_it(self, key: Any, sizes: Values) -> bool:
        """Return True for the first kernel, or if only the number of rows has changed."""
        row_counts = self._row_counts.setdefault(key, set())
        row_counts.add(sizes[self._symbol])
        return not len(self._kernels) or len(row_counts) > 1

    def _made(self, sizes: Values, tensors: Sequence[torch.Tensor]) -> RowwiseKernel | NotRowwise:
        try:
            pairs = enumerate(_tensors(self._module))
            places = [k for k, t in pairs if t.dim() and self._symbol in symbols_of(t.shape[0])]
            row_tiles = {}
            for rows in TILE_ROWS:
                row_tiles[rows] = self._row_tile(rows, sizes, tensors, places)
                if rows > 1:
                    rows_of(row_tiles[rows], places, rows)
            kernel = rowwise_kernel(row_tiles, places)
        except NotRowwise as error:
            _log.info("compiled once per set of sizes: %s", error)
            return error
        _log.info("compiled for any %s", self._symbol)
        note(kernel.kernel)
        return kernel

    def _row_tile(
        self, rows: int, sizes: Values, tensors: Sequence[torch.Tensor], places: Sequence[int]
    ) -> RowTile:
        known, _ = module_at(self._module, {**sizes, self._symbol: rows})
        some = list(tensors)
        for k in places:
            some[k] = torch.empty(
                (rows, *tensors[k].shape[1:]), dtype=tensors[k].dtype, device=tensors[k].device
            )

        def compile_it() -> tuple[list[RowTile], list[Any]]:
            uncached = inductor_config.patch(force_disable_caches=True)
            with collected() as row_tiles, uncached, watched as seen:
                self._compile_at(known, some)
            return row_tiles, seen

        watched: AbstractContextManager[list[Any]]
        watched = observing() if is_observed() else nullcontext([])
        try:
            row_tiles, seen = in_fresh_thread(compile_it, observed=False)
        except Exception as error:
            # The function may not exist for so many rows, like a view by twelves for 64 rows.
            # Errors at the sizes of the call are raised when it is compiled for these.
            raise NotRowwise(f"{rows} rows: {str(error).partition(chr(10))[0]}") from error
        for item in seen if rows == TILE_ROWS[0] else ():
            if isinstance(item, tuple):  # the text of a graph
                note(item)
        others = row_tiles[-1].others if row_tiles else ()
        if len(row_tiles) != 1 or others:
            raise NotRowwise(f"{len(row_tiles)} bundles, and {', '.join(others) or '-'}")
        (row_tile,) = row_tiles
        at_rows = {**sizes, self._symbol: rows}
        results = [value for value in self._outputs if isinstance(value, torch.Tensor)]
        outputs = tuple(_view_at(result, at_rows) for result in results)
        if len(row_tile.inputs) != len(some) or row_tile.views != outputs:
            raise NotRowwise("inputs or outputs that AOTAutograd makes itself")
        return row_tile

    def _run(
        self, kernel: RowwiseKernel, sizes: Values, tensors: Sequence[torch.Tensor]
    ) -> list[Any]:
        """All outputs of the graph."""
        rows, device = int(sizes[self._symbol]), tensors[0].device
        made = [
            torch.empty(
                (b.sizes[0] * rows, *b.sizes[1:]), dtype=getattr(torch, b.dtype), device=device
            )
            for b in kernel.outputs
        ]
        sources = ((tensors if is_input else made)[k] for is_input, k in kernel.arguments)
        kernel.kernel.run(*sources, rows)
        results = iter(made)
        return [_in_graph_sizes(value, sizes, results) for value in self._outputs]


def _in_graph_sizes(value: Any, sizes: Values, results: Iterator[torch.Tensor]) -> Any:
    """An output: a number, or the next result in the sizes of the graph."""
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


# --- which symbol counts rows --------------------------------------------------------------------


def _row_symbol(module: torch.fx.GraphModule) -> sympy.Symbol:
    """The symbol that occurs only as the size of first dims. NotRowwise if there is none."""
    tensors = _tensors(module)
    firsts = [symbols_of(t.shape[0]) for t in tensors if t.dim()]
    candidates = dict.fromkeys(s for symbols in firsts for s in symbols)
    for symbol in candidates:
        if all(_is_row_of(symbol, t) for t in tensors) and not _used_as_number(module, symbol):
            return symbol
    raise NotRowwise("no size is that of first dims alone")


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


def _used_as_number(module: torch.fx.GraphModule, symbol: sympy.Symbol) -> bool:
    """Return True if an operation computes with the size, or makes a tensor from it."""
    for node in module.graph.nodes:
        if not is_size(node.meta.get("val")) or symbol not in symbols_of(node.meta["val"]):
            continue
        for user in node.users:
            takes_it = user.op == "output" or user.target in TAKES_SIZES
            if not takes_it and not is_size(user.meta.get("val")):
                return True
    return False


MOST_SIZES = 64
"""Compiled graphs that are cached."""


class DynamicGraph(OutputCode):  # type: ignore[misc]
    """The compiled form of a graph with symbols. Any thread may call it.

    ``compile_at``: compiles a graph of known sizes for example inputs.
    """

    def __init__(self, graph_module: torch.fx.GraphModule, compile_at: Compile) -> None:
        super().__init__()
        self._boxed_call = True
        self._module = graph_module
        self._compile_at = compile_at
        self._rows = RowwiseGraph(graph_module, compile_at)
        self._compiled: LruCache[Any, Callable[..., Any]] = LruCache(MOST_SIZES)
        self._lock = threading.RLock()

    def __call__(self, inputs: Sequence[Any]) -> Any:
        """Run it; ``inputs``: numbers and tensors in the order of the placeholders."""
        given = list(inputs)
        if isinstance(inputs, list):
            inputs.clear()
        with self._lock:
            outputs = self._rows(given)
        return self._at(given)(given) if outputs is None else outputs

    def post_compile(self, *_: Any) -> None:
        pass

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        pass

    def _at(self, given: Sequence[Any]) -> Callable[..., Any]:
        key = tuple(
            (tuple(v.shape), v.stride(), v.device) if isinstance(v, torch.Tensor) else v
            for v in given
        )
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is None:
                sizes = values_of(self._module, given)
                _log.info("compiled for sizes %s", ", ".join(f"{k}={n}" for k, n in sizes.items()))
                compiled = compiled_at(self._module, sizes, given, self._compile_at)
                self._compiled.put(key, compiled)
        return compiled


def compiled_at(
    module: torch.fx.GraphModule, sizes: Values, given: Sequence[Any], compile_at: Compile
) -> Callable[..., Any]:
    """``module`` compiled for known sizes, with the inputs and outputs of the module.

    ``given``: inputs of these sizes; their tensors are the example inputs.
    """
    known, numbers = module_at(module, sizes)
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    compiled = in_fresh_thread(lambda: compile_at(known, tensors))

    def run(values: Sequence[Any]) -> list[Any]:
        computed = iter(compiled(*(v for v in values if isinstance(v, torch.Tensor))))
        return [next(computed) if number is None else number for number in numbers]

    return run


def with_eager_views(
    module: torch.fx.GraphModule,
    compiled: Callable[..., Any],
    views: Sequence[tuple[int, int, torch.Tensor]],
) -> Callable[..., Any]:
    """``compiled``, but results that view an argument have strides and offset of eager mode.

    AOTAutograd makes views of symbolic sizes by ``as_strided``. It takes the numbers from a view of
    the tensor that is computed for a written argument: it begins at offset 0 and has no gaps.

    ``views``: number of the result, number of the argument, and the result in ``module``.
    """

    @functools.lru_cache(MOST_SIZES)
    def places(*sizes: tuple[sympy.Symbol, int]) -> list[Any]:
        known = dict(sizes)
        return [(*k, *_view_at(v, known)) for *k, v in views if symbols_of(v) <= known.keys()]

    @functools.wraps(compiled)
    def run(*args: Any) -> list[Any]:
        results = [*compiled(*args)]
        for k, argument, *place in places(*values_of(module, args).items()):
            result = results[k]
            if [tuple(result.shape), result.stride(), result.storage_offset()] != place:
                view = args[argument].as_strided(*place)
                view = view if view.dtype == result.dtype else view.view(result.dtype)
                results[k] = view if result.requires_grad else view.detach()
        return results

    return run if views else compiled
