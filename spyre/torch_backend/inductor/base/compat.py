"""All private symbols of torch 2.13's Inductor that the backend uses.

``tests/torch_backend/inductor/base/test_compat.py`` has a canary per symbol. Importing this loads
Inductor.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config, ir, lowering
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomSchedulerPass
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.dependencies import MemoryDep
from torch._inductor.fx_passes import joint_graph
from torch._inductor.graph import GraphLowering
from torch._inductor.ops_handler import DefaultHandler, WrapperHandler
from torch._inductor.output_code import OutputCode
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._inductor.scheduler import (
    BaseScheduling,
    FusedSchedulerNode,
    NopKernelSchedulerNode,
    SchedulerNode,
)
from torch._inductor.utils import get_fused_kernel_name, get_kernel_metadata, sympy_product
from torch._inductor.virtualized import V, ops
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing as without_tracing
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatefulSymbolicContext,
    free_unbacked_symbols,
)
from torch.utils._pytree import tree_leaves, tree_map

from spyre.torch_backend.compat import DYNAMIC_MARKS


def compile_fx_module() -> Any:
    """Import Inductor's entry module, which installs the backend, and return it."""
    return importlib.import_module("torch._inductor.compile_fx")


@contextmanager
def symbols_allowed(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Allow data-dependent sizes in a graph that is compiled in this block without Dynamo.

    The sizes of its inputs ``tensors`` are static.
    """
    context = TracingContext(FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv()))
    for k, tensor in enumerate(tensors):
        context.tensor_to_context[tensor] = StatefulSymbolicContext(
            dynamic_sizes=[DimDynamic.STATIC] * tensor.dim(),
            tensor_source=ConstantSource(f"input_{k}"),
        )
    with tracing(context):
        yield


def clear_caches(node: Any) -> None:
    """Delete the caches of an IR node whose ranges, body or layout have changed."""
    for name in [n for n in vars(node) if n.startswith("__") and n.endswith("_cache")]:
        object.__delattr__(node, name)


def asks_for_symbols(example_inputs: Any) -> bool:
    """Return True if symbolic sizes are requested: ``dynamic=True``, or a dim marked dynamic."""
    if not dynamo_config.assume_static_by_default:
        return True
    return any(getattr(value, mark, None) for value in example_inputs for mark in DYNAMIC_MARKS)


def compiled_input_index(placeholder: Any) -> int | None:
    """The number of a placeholder's argument of ``compile_fx``, before AOTAutograd.

    None for other placeholders: tangents and saved intermediates.
    """
    origin = placeholder.meta.get("desc")
    if type(origin).__name__ != "PlainAOTInput":
        return None
    index: int = origin.idx
    return index
