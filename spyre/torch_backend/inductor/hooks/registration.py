"""Registration of the backend with Inductor, and the context of compilations for spyre.

The settings and hooks of `spyre_context` are active only while a graph with tensors on spyre is
compiled, in the compiling thread. The backward graph, which is compiled later, enters the same
context.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch

from spyre import config
from spyre.errors import UnsupportedError
from spyre.torch_backend import device as cards
from spyre.torch_backend.compat import storage_key
from spyre.torch_backend.eager.overlap import refuse_traced_overlap
from spyre.torch_backend.fallback import overlaps_itself
from spyre.torch_backend.inductor.base import compat
from spyre.torch_backend.inductor.base.compat import V
from spyre.torch_backend.inductor.base.notes import FX_GRAPH, is_observed, note
from spyre.torch_backend.inductor.base.settings import (
    cache_key,
    chosen_settings,
    mark_graph,
    settings,
)
from spyre.torch_backend.inductor.base.sources import sources_of
from spyre.torch_backend.inductor.dynamic.graph import DynamicGraph, with_eager_views
from spyre.torch_backend.inductor.hooks.pre_scheduling import (
    KnownInput,
    compiled_with,
    known_inputs,
    pre_scheduling,
)
from spyre.torch_backend.inductor.hooks.scheduling import (
    PostFusionPasses,
    SpyreScheduling,
    SpyreWrapper,
)
from spyre.torch_backend.inductor.lowering.decompositions import (
    GRAPH_PASSES,
    RUN,
    SEQUENCES,
    decompositions,
    functional_kernels,
    lower_run,
    mark_fallbacks,
)
from spyre.torch_backend.inductor.tiling.accesses import by_graph_input
from spyre.torch_backend.recorded_calls import on_cpu, recorded

# --- the device for Dynamo and Inductor ----------------------------------------------------------


class SpyreInterface(compat.DeviceInterface):  # type: ignore[misc]
    """Dynamo's device interface over the cards of this process."""

    class Worker(compat.DeviceInterface.Worker):  # type: ignore[misc]
        """Compile workers, which do not use the device."""

        set_device = staticmethod(lambda device: None)
        current_device = staticmethod(lambda: 0)
        get_device_properties = staticmethod(cards.get_device_properties)

    is_available = staticmethod(cards.is_available)
    device_count = staticmethod(cards.device_count)
    current_device = staticmethod(cards.current_device)
    set_device = staticmethod(cards.set_device)
    exchange_device = maybe_exchange_device = staticmethod(cards._exchange_device)
    synchronize = staticmethod(cards.synchronize)
    get_device_properties = staticmethod(cards.get_device_properties)
    # there is one generation of cards, kernels find the current stream, bfloat16 is stored as DL16
    get_compute_capability = staticmethod(lambda device=None: "spyre")
    get_raw_stream = staticmethod(lambda device_index: 0)
    is_bf16_supported = staticmethod(lambda including_emulation=False: True)


class SpyreOpOverrides(compat.DeviceOpOverrides):  # type: ignore[misc]
    """Device code in wrappers: none, since kernels find card and stream themselves."""

    def import_get_raw_stream_as(self, name: str) -> str:
        """A function whose result, a stream, is not used."""
        return f"def {name}(_):\n    return 0\n"

    def set_device(self, device_idx: int) -> str:
        return "pass"

    def synchronize(self) -> str:
        return "torch.spyre.synchronize()"

    def device_guard(self, device_idx: int) -> str:
        """Code that makes a card current."""
        return f"torch.spyre.device({device_idx})"


# --- the backend in Inductor ------------------------------------------------------------------


_installed = False


def install() -> None:
    """Register everything, once per process."""
    global _installed
    if _installed:
        return
    _installed = True
    compat.register_interface_for_device("spyre", SpyreInterface)
    compat.register_device_op_overrides("spyre", SpyreOpOverrides())
    compat.register_backend_for_device("spyre", SpyreScheduling, SpyreWrapper)
    compat.lowering.register_lowering(RUN, type_promotion_kind=None)(lower_run)
    _install_hooks()
    entry = compat.compile_fx_module()
    entry.compile_fx = _compiling(entry)


def _compiling(entry: Any) -> Callable[..., Any]:
    """``compile_fx`` with support for spyre; it calls itself again to apply ``config_patches``."""
    original: Callable[..., Any] = entry.compile_fx

    @functools.wraps(original)
    def compile_fx(model: Any, example_inputs: Any, *args: Any, **named: Any) -> Any:
        if named.get("config_patches") or not uses_spyre(model, example_inputs):
            return original(model, example_inputs, *args, **named)
        original_model = on_cpu(model)
        refuse_native_code()
        refuse_overlapping_writes(model)
        fill_elements_once(model)
        inner = named.pop("inner_compile", entry.compile_fx_inner)
        asked = settings().symbolic_sizes
        symbolic = compat.asks_for_symbols(example_inputs) if asked is None else asked
        symbolic = symbolic and any(isinstance(v, torch.SymInt) for v in example_inputs)
        if not symbolic and isinstance(model, torch.fx.GraphModule):
            take_sizes(model)
        table = whole_operations() if symbolic else spyre_decompositions()
        table = named.pop("decompositions", None) or table
        identity, names = sources_of(model)
        known = known_inputs(example_inputs, names)
        mark_graph(model, dict(enumerate(known)), identity, (symbolic, *shared(example_inputs)))
        in_context = _symbolic if symbolic else _in_context
        with spyre_context():
            compiled = original(
                model,
                example_inputs,
                *args,
                inner_compile=in_context(inner, known, identity),
                decompositions=table,
                **named,
            )
        compiled = with_eager_views(model, compiled, [*views_of_arguments(model)])
        return recorded(original_model, compiled)

    return compile_fx


def _in_context(
    inner: Callable[..., Any], known: Sequence[KnownInput | None], identity: str
) -> Callable[..., Any]:
    """``inner`` in the context and with the settings of now. A backward graph is compiled when it
    is first needed, after `compile_fx` and perhaps in another thread.

    ``known``: of the function's arguments. ``identity``: of its graph.
    """
    chosen = chosen_settings()

    @functools.wraps(inner)
    def compiled(model: Any, *args: Any, **named: Any) -> Any:
        inputs = by_graph_input(model, known)
        mark_graph(model, inputs, identity)
        with compat.inductor_config.patch(chosen), spyre_context(), compiled_with(inputs):
            return inner(model, *args, **named)

    return compiled


def _symbolic(
    inner: Callable[..., Any], known: Sequence[KnownInput | None], identity: str
) -> Callable[..., Any]:
    """`_in_context` for a graph with symbols, which is compiled when its sizes are known."""
    chosen = chosen_settings() | {"spyre.symbolic_sizes": False}
    plain = _in_context(inner, known, identity)

    def compile_at(module: torch.fx.GraphModule, tensors: Sequence[Any]) -> Any:
        static = compat.dynamo_config.patch(assume_static_by_default=True)
        with (
            compat.inductor_config.patch(chosen),
            static,
            torch.no_grad(),
            compat.symbols_allowed(tensors),
        ):
            return compat.compile_fx_module().compile_fx(module, tensors)

    @functools.wraps(inner)
    def compiled(model: Any, example_inputs: Any, *args: Any, **named: Any) -> Any:
        if not uses_spyre(model, example_inputs):
            return plain(model, example_inputs, *args, **named)
        return DynamicGraph(model, compile_at)

    return compiled


class _Decompositions(dict[Any, Callable[..., Any]]):
    """A table that pickles as the function ``source`` that returns it, as cache keys need."""

    def __init__(self, table: Any, source: Callable[[], Any]) -> None:
        super().__init__(table)
        self.source = source

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return self.source, ()


@functools.cache
def spyre_decompositions() -> dict[Any, Callable[..., Any]]:
    """Inductor's table, but operations with an eager kernel become ``spyre::run``.

    Random operations are not decomposed, so that they draw the same numbers as in eager mode.
    """
    return _Decompositions(whole_operations() | decompositions(), spyre_decompositions)


@functools.cache
def whole_operations() -> dict[Any, Callable[..., Any]]:
    """Inductor's table without operations that have an eager kernel, or run on the host since
    Inductor's decompositions compute in float64.
    """
    packets = (torch.ops.aten.linspace, torch.ops.aten.logspace)
    in_float64 = {getattr(packet, name) for packet in packets for name in packet.overloads()}
    known = functional_kernels().keys() | decompositions().keys() | in_float64
    with compat.inductor_config.patch(fallback_random=True):
        whole = compat.select_decomp_table()
    table = {op: decompose for op, decompose in whole.items() if op not in known}
    made = {
        op: functools.partial(_on_other_devices, whole[op]) for op in set(SEQUENCES) - in_float64
    }
    return _Decompositions(table | made, whole_operations)


def _on_other_devices(decompose: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Decompose an operation that makes a tensor of numbers, unless it makes it on spyre."""
    device = torch.device(named.get("device") or torch.get_default_device())
    return NotImplemented if device.type == "spyre" else decompose(*args, **named)


def take_sizes(model: torch.fx.GraphModule) -> None:
    """Specialise a graph to the sizes of its spyre inputs, which become guards of the function.

    Dynamo makes symbols of sizes that have changed between calls.
    """
    for node in model.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor) or value.device.type != "spyre":
            continue
        for number in (*value.shape, *value.stride(), value.storage_offset()):
            if not compat.free_unbacked_symbols(number):
                int(number)


def uses_spyre(model: Any, example_inputs: Any) -> bool:
    """Return True if a graph has tensors on spyre; its nodes need not have values."""
    values = [*example_inputs]
    if isinstance(model, torch.fx.GraphModule):
        nodes = model.graph.nodes
        values += [n.meta.get("val", n.meta.get("example_value")) for n in nodes]
        values += [n.kwargs.get("device") for n in nodes]
    devices = (v.device if isinstance(v, torch.Tensor) else v for v in values)
    return any(isinstance(d, torch.device) and d.type == "spyre" for d in devices)


WRITERS = {
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
    *(operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor),
    *(operator.ilshift, operator.irshift, operator.imatmul, operator.setitem),
}
"""Functions that write their first argument, besides names with a final underscore."""


def shared(example_inputs: Sequence[Any]) -> Iterator[tuple[int, int, str]]:
    """Pairs of arguments in one memory, with the elements from one's offset to the other's."""
    keys = [storage_key(v) if isinstance(v, torch.Tensor) else object() for v in example_inputs]
    for k, (key, value) in enumerate(zip(keys, example_inputs, strict=True)):
        if (first := keys.index(key)) < k:
            yield first, k, str(value.storage_offset() - example_inputs[first].storage_offset())


def refuse_native_code() -> None:
    """UnsupportedError SPY996 if Inductor is asked for C++, by AOTInductor or ``cpp_wrapper``:
    bundles are launched from Python.
    """
    if V.aot_compilation or compat.inductor_config.cpp_wrapper:
        raise UnsupportedError(
            "SPY996",
            "graphs on spyre are not compiled to native code",
            expected="torch.compile, whose wrapper is Python",
            found="AOTInductor" if V.aot_compilation else "cpp_wrapper",
            hint="keep the exported program (torch.export.save) and compile it where it runs, or "
            "write its bundles with spyre-compile",
        )


def refuse_overlapping_writes(model: Any) -> None:
    """RuntimeError for a write in Dynamo's graph that eager mode refuses because memory overlaps.
    Later graphs are functional and have no writes.
    """
    nodes = model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ()
    for node in nodes:
        function = writing_function(node)
        if function is not None:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), _example_of)
            refuse_traced_overlap(function, args, kwargs)


def _example_of(node: torch.fx.Node) -> Any:
    return node.meta["example_value"]


def writing_function(node: torch.fx.Node) -> Callable[..., Any] | None:
    """The function that a node calls, if it may write an argument and all arguments have values."""
    if any("example_value" not in argument.meta for argument in node.all_input_nodes):
        return None
    if node.op == "call_method":
        name = str(node.target)
        writes = name.endswith("_") or "out" in node.kwargs
        return getattr(torch.Tensor, name) if writes else None
    if node.op != "call_function":
        return None
    function: Any = node.target
    is_named_so = getattr(function, "__name__", "").endswith("_")
    return function if function in WRITERS or is_named_so or "out" in node.kwargs else None


FILLS = ("fill_", "zero_", "masked_fill_")
"""Operations that torch allows on tensors with repeated elements."""


def fill_elements_once(model: Any) -> None:
    """Replace fills of tensors with repeated elements by fills of views without repetitions.

    torch's functionalization inverts an ``expand`` by adding the changes of all repetitions, so
    that a fill would be applied several times.
    """
    nodes = [*model.graph.nodes] if isinstance(model, torch.fx.GraphModule) else []
    for node in nodes:
        if getattr(writing_function(node), "__name__", "") not in FILLS:
            continue
        view, *value = node.args
        value += [node.kwargs[key] for key in ("mask", "value") if key in node.kwargs]
        holder = _holder_of(view)
        if overlaps_itself(_example_of(view)) and not overlaps_itself(_example_of(holder)):
            with model.graph.inserting_before(node):
                if len(value) > 1:  # a mask and a number
                    value[0] = _any_repetition(view, value[0])
                node.args, node.kwargs = (_elements_of(view, holder), *value), {}
            node.replace_all_uses_with(view)
    if nodes:
        model.recompile()


def _holder_of(view: torch.fx.Node) -> torch.fx.Node:
    """The first tensor in the memory of ``view``, of which torch allows ``as_strided`` views."""
    memory, holder, node = _memories_of(view), view, view
    while sources := [n for n in node.all_input_nodes if memory & _memories_of(n)]:
        node = sources[0]
        holder = node if isinstance(_example_of(node), torch.Tensor) else holder
    return holder


def _memories_of(node: torch.fx.Node) -> set[int]:
    values = compat.tree_leaves(node.meta.get("example_value"))
    return {storage_key(v) for v in values if getattr(v, "layout", None) is torch.strided}


def _any_repetition(view: torch.fx.Node, mask: torch.fx.Node) -> torch.fx.Node:
    """A mask of ``view`` reduced to its elements: true if any repetition of one is masked."""
    shown, whole = _example_of(view), view.graph.call_method("expand_as", (mask, view))
    repeated = [d for d in range(shown.dim()) if not shown.stride(d)]
    return view.graph.call_method("any", (whole, repeated)) if repeated else whole


def _elements_of(view: torch.fx.Node, holder: torch.fx.Node) -> torch.fx.Node:
    """The elements of ``view`` without repetitions, as a view of ``holder``, in new nodes at the
    graph's insertion point.
    """
    graph, shown = view.graph, _example_of(view)
    dims = [d for d in range(shown.dim()) if shown.stride(d)]
    numbers = [[graph.call_method(of, (view, d)) for d in dims] for of in ("size", "stride")]
    return graph.call_method(
        "as_strided", (holder, *numbers, graph.call_method("storage_offset", (view,)))
    )


def views_of_arguments(model: Any) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Per result that is a view of an argument: its number, the argument's, and an example."""
    nodes = [*model.graph.nodes] if isinstance(model, torch.fx.GraphModule) else []
    places = [node for node in nodes if node.op == "placeholder"]
    for k, node in enumerate(compat.tree_leaves(nodes[-1].args) if nodes else ()):
        holder = _holder_of(node) if isinstance(node, torch.fx.Node) else node
        if holder in places and holder is not node:
            view, whole = _example_of(node), _example_of(holder)
            if view is not whole and view.itemsize == whole.itemsize:
                yield k, places.index(holder), view


_OFF = (
    *("split_reductions", "benchmark_harness", "permute_fusion", "allow_buffer_reuse"),
    *("inplace_buffers", "online_softmax", "layout_optimization", "pattern_matcher"),
    *("loop_ordering_after_fusion", "pick_loop_orders", "reorder_for_locality"),
    "reorder_for_peak_memory",
)
INDUCTOR_SETTINGS = dict.fromkeys(_OFF, False) | {
    "always_keep_tensor_constants": True,
    "unroll_reductions_threshold": 1,
    "max_fusion_buffer_group_pairwise_attempts": 0,
    "fallback_random": True,
}
"""Inductor's settings for spyre: one ir.Operation is one device operation, the order of dims is
kept, and Inductor does not fuse, as `SpyreScheduling` makes bundles itself.
"""


class PostGradPasses(compat.CustomGraphPass):  # type: ignore[misc]
    """Passes on FX graphs before lowering."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Change ``graph`` in place."""
        # torch makes loops of scan and map after this pass, which read their index from a tensor
        shapes = V.fake_mode.shape_env
        shapes.settings = replace(shapes.settings, allow_scalar_outputs=True)
        for change in GRAPH_PASSES:
            change(graph)
        if is_observed():
            note((FX_GRAPH, str(graph)))

    def uuid(self) -> str | None:
        """A cache key of everything else that generated code depends on."""
        key, optimizer = cache_key(), config.GLOBAL_STICK_OPTIMIZER.read()
        return None if key is None else f"{key} stick optimizer {optimizer}"


_in_spyre_context: ContextVar[bool] = ContextVar("in_spyre_context", default=False)
"""True while this thread compiles for spyre."""


@contextmanager
def spyre_context() -> Iterator[None]:
    """Compile for spyre in this block; nested blocks have no effect."""
    if _in_spyre_context.get():
        yield
        return
    token = _in_spyre_context.set(True)
    try:
        passes = {
            "post_grad_custom_post_pass": PostGradPasses(),
            "_post_fusion_custom_pass": PostFusionPasses(),
        }
        with compat.inductor_config.patch(INDUCTOR_SETTINGS | passes):
            yield
    finally:
        _in_spyre_context.reset(token)


def _install_hooks() -> None:
    """Patch Inductor where it has no hook: realise every operation, run passes before scheduling.

    Patterns of joint graphs are not traced, which would take seconds: ``pattern_matcher`` is off.
    The patches have no effect in threads that compile for other devices.
    """
    update, run = compat.GraphLowering._update_scheduler, compat.GraphLowering.run

    def passes_first(graph: Any) -> None:
        if _in_spyre_context.get():
            pre_scheduling(graph)
        update(graph)

    def fallbacks_marked(graph: Any, *args: Any) -> Any:
        if _in_spyre_context.get():
            for part in graph.module.modules():
                if isinstance(part, torch.fx.GraphModule):
                    mark_fallbacks(part.graph)
        return run(graph, *args)

    compat.GraphLowering._update_scheduler = passes_first
    compat.GraphLowering.run = fallbacks_marked
    compat.ir.Loops.has_large_inner_fn = _true_in_context(compat.ir.Loops.has_large_inner_fn)
    compat.joint_graph.lazy_init = _true_in_context(compat.joint_graph.lazy_init)


def _true_in_context(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        return True if _in_spyre_context.get() else original(*args, **named)

    return call
