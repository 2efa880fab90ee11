"""The LLVM code of every kernel has no instruction whose bits depend on the processor.

Estimates of reciprocals and roots differ between makers of processors; results of reassociated or
fused operations depend on the width of vectors; the C library picks mathematical functions by
processor. The optimised module beside the object file in the kernel cache is read.
"""

from __future__ import annotations

import platform
import re
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from numba.core.registry import cpu_target

from spyre.hw.kernels.dl16_functions import CODE_OPERATIONS
from spyre.hw.kernels.jit import compile_object
from spyre.hw.kernels.machine_code import PLACES, _places, _read, entry_of
from tools.vector_bounds import compiled, counts_of

ESTIMATE = re.compile(
    r"^\s+v?((?:rsqrt|rcp)\d*[ps][sdh]|f?u?r(?:sqrt|ecp)[esx]\w*)\b", re.MULTILINE
)
"""x86: rsqrtps, vrcp14ps, vrsqrt28ss, vrcpph …; ARM: frsqrte, frecpe, frecps, vrsqrte …"""
FREEDOM = re.compile(
    r"^.*= .*\b(?:fadd|fsub|fmul|fdiv|frem|fneg|call)(?: \w+)*?"
    r" (?:fast|reassoc|contract|arcp|afn) .*"
    r"|^.*llvm\.(?:fmuladd|experimental\.constrained)\..*",
    re.MULTILINE,
)
LIBRARY = re.compile(
    r"@(?:llvm\.)?(?:a?sinh?|a?cosh?|a?tanh?|atan2|exp[2m]?1?|exp10|log1?[02p]?|pow|erfc?|hypot|cbrt)"
    r"f?(?:\.v?\w+)?\("
)


def findings(module: Any) -> list[str]:
    """Instructions of an optimised LLVM module that may give other bits elsewhere."""
    code, assembly = str(module), cpu_target.target_context.codegen()._tm.emit_assembly(module)
    estimates = {f"estimate {m[1]}" for m in ESTIMATE.finditer(assembly)}
    return [
        *sorted(estimates),
        *(m[0].strip() for m in FREEDOM.finditer(code)),
        *sorted({m[0] for m in LIBRARY.finditer(code)}),
    ]


@pytest.mark.parametrize("name", PLACES)
def test_kernels_leave_nothing_to_the_processor(name: str):
    assert entry_of(name).address
    kept = [_read(path.with_suffix(".bc")) for path in _places(PLACES[name])]
    module = next(filter(None, kept), b"") or compile_object(PLACES[name])[1]  # none in a wheel
    assert findings(llvm.parse_bitcode(module)) == []


@numba.njit(error_model="numpy")
def _exact(values):
    for i in range(values.size):
        values[i] = np.float32(1.0) / np.sqrt(values[i])


@numba.njit(error_model="numpy", fastmath={"arcp"})
def _estimated(values):
    for i in range(values.size):
        values[i] = np.float32(1.0) / np.sqrt(values[i])


@numba.njit(error_model="numpy", fastmath={"contract"})
def _fused_at_will(values):
    for i in range(values.size):
        values[i] = values[i] * values[i] + np.float32(1.0)


@numba.njit(error_model="numpy", fastmath={"reassoc", "nsz"})
def _summed_by_width(values):
    total = np.float32(0.0)
    for i in range(values.size):
        total += values[i]
    values[0] = total


@numba.njit(error_model="numpy")
def _from_the_library(values):
    for i in range(values.size):
        values[i] = np.exp(values[i])


def module_of(function: Any) -> Any:
    """The optimised LLVM module of a compiled function with all it calls."""
    function(np.ones(64, np.float32))
    (result,) = function.overloads.values()
    return result.library._get_module_for_linking()


@pytest.mark.parametrize(
    "function", [_estimated, _fused_at_will, _summed_by_width, _from_the_library]
)
def test_a_kernel_that_depends_on_the_processor_is_found(function: Any):
    assert findings(module_of(function))
    assert findings(module_of(_exact)) == []


@pytest.mark.skipif(platform.machine() != "x86_64", reason="an instruction of x86")
def test_an_estimate_is_found_in_the_assembly():
    assert any(f.startswith("estimate rsqrt") for f in findings(module_of(_estimated)))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86")
@pytest.mark.parametrize(
    ("name", "divides", "takes_roots"),
    [("rsqrt", False, False), ("reciprocal", True, False), ("sqrt", False, True)],
)
def test_functions_of_codes_divide_only_where_they_must(
    name: str, divides: bool, takes_roots: bool
):
    counts = counts_of(compiled(CODE_OPERATIONS[name], 1))
    assert counts.vector > 0
    assert counts.store > 0
    assert (counts.division > 0, counts.root > 0) == (divides, takes_roots)
