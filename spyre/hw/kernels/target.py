"""The processor that numba compiles for: the host's, or that of NUMBA_CPU_NAME and _FEATURES.

Its instructions decide widths of vectors and how numbers are packed and converted, but no result.
"""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
import numba

_WORDS = (
    "define <{0} x i{1}> @f(<{0} x i{1}> %x) {{ %y = add <{0} x i{1}> %x, %x ret <{0} x i{1}> %y }}"
)
_PROBES = {
    "avx2": (_WORDS.format(8, 32), "vpaddd\t%ymm"),
    "avx512f": (_WORDS.format(16, 32), "vpaddd\t%zmm"),
    "avx512bw": (_WORDS.format(32, 16), "vpaddw\t%zmm"),
    "f16c": ("define float @f(half %x) { %y = fpext half %x to float ret float %y }", "vcvtph2ps"),
}
"""By feature of x86: a function, and a text that its assembly contains if there is the feature."""


LEVELS = {
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    "x86-64-v3": frozenset({"avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}),
}
"""Features of the levels of the x86-64 psABI, over those of the level before."""


@cache
def x86_level() -> str | None:
    """The highest of `LEVELS` that the host has; None of none, or where another target is chosen.

    A host with the features of the fourth level has those of the third.
    """
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES is not None:
        return None
    features = llvm.get_host_cpu_features()
    there = {name for name, is_there in features.items() if is_there}
    return next((level for level, needed in LEVELS.items() if needed <= there), None)


@cache
def has_feature(name: str) -> bool:
    """Whether the processor compiled for has one of these features of x86."""
    chosen, features = numba.config.CPU_NAME, numba.config.CPU_FEATURES
    if not chosen and features is None:
        return bool(llvm.get_host_cpu_features().get(name, False))
    # names imply features that LLVM keeps to itself: what it makes of a function tells
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    if features is None:
        features = llvm.get_host_cpu_features().flatten()
    machine = target.create_target_machine(cpu=chosen or "", features=features)
    function, instruction = _PROBES[name]
    return instruction in machine.emit_assembly(llvm.parse_assembly(function))
