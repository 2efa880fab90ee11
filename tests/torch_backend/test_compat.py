"""A canary per private symbol of torch: a release that takes one away fails here by its name.

Each is checked as torch has it, in a process where the device is not registered.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from spyre.torch_backend import compat
from spyre.torch_backend.registration import patches
from spyre.torch_backend.registration.device_module import EXPORTS
from spyre.torch_backend.tensors import storages
from tests.torch_backend.processes import run_bare

BACKEND = Path(compat.__file__).parent

SYMBOLS = (
    "torch._C.DispatchKey.AutocastPrivateUse1",
    "torch._C.DispatchKey.CPU",
    "torch._C.DispatchKey.PrivateUse3",
    "torch._C.DispatchKey.PythonDispatcher",
    "torch._C.DispatchKeySet",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C._dynamo.guards._reinterpret_tensor",
    "torch._C._acc.register_python_privateuseone_device_guard",
    "torch._C._acc.register_python_privateuseone_hook",
    "torch._C._dispatch_tls_is_dispatch_key_included",
    "torch._C._from_dlpack",
    "torch._C._get_privateuse1_backend_name",
    "torch._C._is_torch_function_mode_enabled",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._should_allow_numbers_as_tensors",
    "torch._C._nn._parse_to",
    "torch._C.Generator",
    "torch._C.TensorBase.data",
    "torch._C._dynamo.eval_frame._FrameAction.SKIP",
    "torch._C._dynamo.eval_frame._FrameExecStrategy",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy",
    "torch._C._profiler._RecordFunctionFast",
    "torch._neg_view",
    "torch._prims_common.is_non_overlapping_and_dense_or_false",
    "torch._subclasses.fake_tensor.FakeTensor",
    "torch._tensor_str._tensor_str",
    "torch._utils._get_available_device_type",
    "torch.amp.GradScaler.unscale_",
    "torch.autograd._engine_run_backward",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.profiler._is_profiler_enabled",
    "torch.autograd.graph._engine_run_backward",
    "torch.autograd.set_multithreading_enabled",
    "torch.jit._builtins._builtin_table",
    "torch.jit._builtins._register_builtin",
    "torch.nn.Module._apply",
    "torch.nn.parameter.UninitializedTensorMixin._allowed_methods",
    "torch.overrides.handle_torch_function",
    "torch.overrides.has_torch_function_unary",
    "torch._inductor.config._config",
    "torch.utils._config_module.SubConfigProxy",
    "torch.utils._config_module.install_config_module",
    "torch.utils.backend_registration._DummyDeviceGuard",
    "torch.utils.backend_registration._DummyPrivateUse1Hook",
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend",
    "torch.utils.swap_tensors",
    *(f"torch._C.{name}" for name in patches.FUNCTIONS),
    *(f"torch.UntypedStorage.{name}" for name in patches.STORAGE_METHODS),
    *(f"torch.Tensor.{name}" for name in ("to", "pin_memory", "is_pinned", "__dlpack__")),
)

LOOK = """
import importlib
import torch
def look(symbol):
    parts = symbol.split(".")
    found = torch
    for k, part in enumerate(parts[1:], 1):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(parts[:k + 1]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True
for symbol in SYMBOLS:
    print(symbol, look(symbol))
"""


@pytest.fixture(scope="module")
def found():
    lines = run_bare(LOOK, f"SYMBOLS = {SYMBOLS!r}\n").splitlines()
    return dict(line.split() for line in lines)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbol(found, symbol):
    assert found[symbol] == "True"


def test_private_use_name():
    assert compat.private_use_name() == "spyre"
    assert torch.empty(1, device="spyre").device.type == "spyre"
    assert torch.spyre.Stream().device_type == compat.PRIVATE_USE_1


def test_parse_to():
    assert compat.parse_to("spyre", torch.float16, True)[:3] == (
        torch.device("spyre"),
        torch.float16,
        True,
    )


def test_storage_key_is_that_of_the_storage(card):
    assert compat.storage_key(card) == compat.storage_key(card.t())
    assert compat.storage_key(card) != compat.storage_key(card.clone())


def test_operators():
    assert compat.operator("add.Tensor") is torch.ops.aten.add.Tensor
    assert compat.operator("mm") is torch.ops.aten.mm.default
    assert compat.schema_of(compat.operator("mm")).name == "aten::mm"


def test_without_autocast(card):
    with torch.autocast("spyre", dtype=torch.float16), compat.without_autocast():
        assert (card @ card.t()).dtype == torch.float32


def test_tables_agree():
    assert set(patches.STORAGE_METHODS) == set(storages.METHODS)
    names = [name for names in EXPORTS.values() for name in names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", sorted(BACKEND.rglob("*.py")), ids=lambda path: path.name)
def test_private_symbols_are_touched_in_compat_only(path):
    if path.name == "compat.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            text = ast.unparse(node)
            is_torch = text.startswith("torch._") and not text.endswith("__")
            assert not is_torch, f"{path.name}: {text}"
