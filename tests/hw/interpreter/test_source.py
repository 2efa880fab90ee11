"""Kernels read from their source: which loops become statements over arrays."""

from __future__ import annotations

import ast
import builtins
import dis
import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent
from types import FunctionType

import numpy as np
import pytest

from spyre.hw.interpreter.source import _Loops, interpreted, kernels_of
from spyre.hw.plan_table import DISPATCH_WORDS, KERNELS

NOT_CALLED = {"ir", "intrinsic", "cgutils", "I16", "I32", "I64"}
"""Names of code that writes LLVM's text, which is replaced when interpreted."""

FAMILIES = ("families.elementwise", "families.reduction", "families.movement")

LOOPS = {
    "elements": ("for i in range(n): z[i] = x[i] + y[i]", True),
    "places": ("for i in range(n): z[at + i] = x[i * stride]", True),
    "in place": ("for i in range(n): z[i] += x[i]", True),
    "names within": ("for i in range(n):\n a = x[i]\n z[i] = a * a", True),
    "a scalar condition": ("for i in range(n):\n if code == 1:\n  z[i] = x[i]", True),
    "a choice": ("for i in range(n): z[i] = x[i] if y[i] != 0 else w[i]", True),
    "a total": ("for i in range(n): total = total + x[i]", False),
    "a total in place": ("for i in range(n): total += x[i]", False),
    "the one before": ("for i in range(1, n): z[i] = z[i - 1] + x[i]", False),
    "one place of several": ("for i in range(n): z[i // 2] += x[i]", False),
    "a condition of elements": ("for i in range(n):\n if x[i] > 0:\n  z[i] = x[i]", False),
    "both conditions": ("for i in range(n): z[i] = a if x[i] > 0 and y[i] > 0 else b", False),
    "slices": ("for i in range(n): z[i] = x[i : i + 4]", False),
    "an unknown function": ("for i in range(n): z[i] = f(x[i])", False),
    "steps": ("for i in range(0, n, 2): z[i] = x[i]", False),
    "a fault": ("for i in range(n):\n if code == 1:\n  return i", False),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    """A loop whose steps are independent becomes an expression on arrays with equal results."""
    text, is_vector = LOOPS[name]
    body = _Loops({}).visit(ast.parse(dedent(text)))
    assert is_vector != any(isinstance(node, ast.For) for node in ast.walk(body))


@pytest.mark.parametrize("entry", KERNELS.values(), ids=KERNELS)
def test_every_kernel_can_be_read(entry: str) -> None:
    assert callable(interpreted(entry))


@pytest.mark.parametrize("entry", KERNELS.values(), ids=KERNELS)
def test_kernels_find_all_they_name(entry: str) -> None:
    """Including names of LLVM intrinsics."""
    names = kernels_of(entry.rpartition(".")[0])
    functions = [value for value in names.values() if isinstance(value, FunctionType)]
    for function in functions:
        used = {i.argval for i in dis.get_instructions(function) if i.opname == "LOAD_GLOBAL"}
        assert used <= {*function.__globals__, *vars(builtins)} | NOT_CALLED, function


def test_what_moves_and_links_programs() -> None:
    """Bases move with their allocations: those of the second dispatch, and of the first operand."""
    dispatch = np.arange(2 * DISPATCH_WORDS).reshape(2, DISPATCH_WORDS)
    anchors = np.full((2, 8), -1, np.int32)
    anchors[:, 0], anchors[1] = 0, 1
    origin, bases = np.array([100, 200]), np.array([[1000, 3000], [100, 200]])
    rows = [np.empty((4, DISPATCH_WORDS), np.int64) for _ in range(2)]
    from spyre.hw.kernels.machine_code import entry_of

    entry_of("driver.place_dispatches").function(dispatch, anchors, origin, bases, rows[0])
    kernels_of("spyre.hw.kernels.driver")["place_dispatches"](
        dispatch, anchors, origin, bases, rows[1]
    )
    assert np.array_equal(*rows)
    assert np.array_equal(rows[1][2:], dispatch)


def test_threads_read_modules_at_once():
    """A callback of the garbage collector lets other threads run while a tree is being parsed."""
    gc.callbacks.append(give_way := lambda *_: time.sleep(0))
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    modules = [f"spyre.hw.kernels.{name}" for name in ("blocks", *FAMILIES)]
    kernels_of.cache_clear()
    try:
        gc.set_threshold(50)
        sys.setswitchinterval(1e-6)
        with ThreadPoolExecutor(len(modules)) as threads:
            assert all(threads.map(kernels_of, modules))
    finally:
        gc.callbacks.remove(give_way)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
