"""The common template of Inductor's tests (``CommonTemplate``) for "spyre", or for the CPU.

Collected by pytest in a separate process; ``PYTORCH_CHECKOUT`` is the path of torch's checkout. A
test that calls ``self.common`` with a function and its inputs is compared with the CPU in eager
mode; other tests are unchanged. Checks of the code that Inductor writes are skipped, because the
device's code differs. Tests of AOTInductor, which writes libraries of machine code, are left out.
"""

from __future__ import annotations

import ast
import copy
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_utils import TestCase

FOLDER = Path(os.environ["PYTORCH_CHECKOUT"], "test", "inductor")
DEVICE = os.environ["UPSTREAM_DEVICE"]
TOLERANCES: dict[torch.dtype, float] = {torch.float16: 2.0**-7, torch.bfloat16: 2.0**-6}
"""Relative and absolute tolerance of 16-bit results: several roundings to 9 fraction bits."""
SINGLE = 1e-3
"""Tolerance of float32: the template sums and multiplies up to a thousand numbers."""


def _loaded() -> Any:
    """Load the module of the checkout up to its classes for devices.

    Its imports may be missing in another release of torch; only tests that use them fail.
    """
    sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]
    path = FOLDER / "test_torchinductor.py"
    module = types.ModuleType("template_of_inductor")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.If):
            continue
        code = compile(ast.Module([statement], []), str(path), "exec")
        try:
            exec(code, vars(module))
        except ImportError as error:
            print(f"not in torch {torch.__version__}: {error}", file=sys.stderr)
    return module


def common(
    test: TestCase,
    model: Any,
    inputs: Any = (),
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Compare results and inputs of the compiled function with eager mode on the CPU."""
    torch._dynamo.reset()
    given = (tuple(inputs), kwargs or {})
    there, here = (torch.utils._pytree.tree_map(_copied_to(d), given) for d in (DEVICE, "cpu"))
    on_host, on_device = model, model
    if isinstance(model, torch.nn.Module):
        on_host, on_device = copy.deepcopy(model).cpu(), copy.deepcopy(model).to(DEVICE)
    torch.manual_seed(0)
    wanted = on_host(*here[0], **here[1])
    torch.manual_seed(0)
    found = torch.compile(on_device, dynamic=False)(*there[0], **there[1])
    for one, other in zip(_leaves((found, there)), _leaves((wanted, here)), strict=True):
        _compare(one, other, options)


def _copied_to(device: str) -> Any:
    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)
        return leaf

    return copy


def _leaves(tree: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(tree))


def _compare(found: Any, wanted: Any, options: dict[str, Any]) -> None:
    if not isinstance(wanted, torch.Tensor):
        assert found == wanted, f"{found} instead of {wanted}"
        return
    limit = TOLERANCES.get(wanted.dtype, SINGLE)
    limits = {name: max(options.get(name) or 0.0, limit) for name in ("rtol", "atol")}
    torch.testing.assert_close(found.cpu(), wanted, **limits, equal_nan=True)


class Template(TestCase):
    """Tests of the template, with the attributes that they read of their class."""

    device = DEVICE
    common = common


_module = _loaded()
_chosen = {name: test for name, test in vars(_module.CommonTemplate).items() if "aoti" not in name}
_module.copy_tests(type("Chosen", (), _chosen), Template, DEVICE)
del _module
