"""A canary per private symbol of Inductor: a release that takes one away fails here by its name."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from spyre.torch_backend.inductor.base import compat
from tests.torch_backend.processes import PROLOGUE, run_bare

PACKAGE = Path(compat.__file__).parent

SYMBOLS = (
    "torch._inductor.dependencies.MemoryDep",
    "torch._inductor.fx_passes.joint_graph.lazy_init",
    "torch._inductor.graph.GraphLowering._update_scheduler",
    "torch._inductor.graph.GraphLowering.get_buffer",
    "torch._inductor.graph.GraphLowering.get_output_names",
    "torch._inductor.graph.GraphLowering.qualify_name",
    "torch._inductor.graph.GraphLowering.try_get_buffer",
    "torch._inductor.ir.ComputedBuffer.decide_layout",
    "torch._inductor.ir.ComputedBuffer.get_read_writes",
    "torch._inductor.ir.FixedLayout",
    "torch._inductor.ir.IRNode.current_origins",
    "torch._inductor.ir.MutationLayoutSHOULDREMOVE.real_layout",
    "torch._inductor.ir.NonOwningLayout",
    "torch._inductor.ir.NopKernel.is_no_op",
    "torch._inductor.ir.Pointwise",
    "torch._inductor.ir.Reduction",
    "torch._inductor.ir.StorageBox",
    "torch._inductor.ir.TensorBox",
    "torch._inductor.ops_handler.WrapperHandler",
    "torch._inductor.output_code.OutputCode",
    "torch._inductor.scheduler.FusedSchedulerNode.get_nodes",
    "torch._inductor.scheduler.NodeUser.is_weak",
    "torch._inductor.sizevars.SizeVarAllocator.expect_true",
    "torch._inductor.virtualized.V.set_ops_handler",
    "torch._dynamo.source.ConstantSource",
    "torch._guards.TracingContext",
    "torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode",
    "torch.fx.experimental.symbolic_shapes.StatefulSymbolicContext",
    "torch._dynamo.config.assume_static_by_default",
    "torch._subclasses.fake_tensor.DataDependentOutputException",
    "torch._functorch._aot_autograd.descriptors.PlainAOTInput",
    "torch.compiler.assume_constant_result",
    "torch.fx.traceback.annotate",
    "torch.utils.weak.WeakTensorKeyDictionary",
)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_torch_has(symbol):
    parts = symbol.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n]))
            break
        except ModuleNotFoundError:
            continue
    for name in parts[n:]:
        found = getattr(found, name)


def test_only_compat_imports_private_modules():
    for path in PACKAGE.rglob("*.py"):
        if path.name == "compat.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            private = [n for n in names if n.startswith("torch.") and "._" in n]
            assert private == [], f"{path}: {private}"


def test_each_name_that_compat_imports_is_used():
    tree = ast.parse(Path(compat.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for path in PACKAGE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == compat.__name__:
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "compat":
                used.add(node.attr)
    assert imported - {"annotations"} - used == set()


def test_caches_of_nodes_are_cleared():
    class Node:
        pass

    node = Node()
    vars(node).update({"__inner_fn_str_cache": 1, "kept": 2})
    compat.clear_caches(node)
    assert vars(node) == {"kept": 2}


def test_neither_autoload_nor_hints_and_names_load_inductor():
    run_bare(
        """
        import sys
        assert not [n for n in sys.modules if n.startswith("spyre.torch_backend.inductor")]
        import spyre.torch_backend.inductor.hints
        import spyre.torch_backend.inductor.hints as hints
        with hints.spyre_hint({"A": 2}):
            pass
        assert "torch._inductor.ir" not in sys.modules
        assert "torch._inductor.scheduler" not in sys.modules
        """,
        PROLOGUE,
    )
