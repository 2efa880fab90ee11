"""Cause and fix of every diagnostic code, and codes as records; only docs and tests load this."""

from __future__ import annotations

from spyre.codes.coarse_tiling import COARSE_TILING_EXPLANATIONS
from spyre.codes.compare import COMPARE_EXPLANATIONS
from spyre.codes.cost import COST_EXPLANATIONS
from spyre.codes.device import DEVICE_EXPLANATIONS
from spyre.codes.dma import DMA_EXPLANATIONS
from spyre.codes.launch import LAUNCH_EXPLANATIONS
from spyre.codes.memory import MEMORY_EXPLANATIONS
from spyre.codes.mlir import MLIR_EXPLANATIONS
from spyre.codes.profile import PROFILE_EXPLANATIONS
from spyre.codes.record import DiagnosticCode, Explanation
from spyre.codes.sanitize import SANITIZE_EXPLANATIONS
from spyre.codes.sdsc import SDSC_EXPLANATIONS
from spyre.codes.spyrecode import SPYRECODE_EXPLANATIONS
from spyre.codes.streams import STREAM_EXPLANATIONS
from spyre.codes.sweep import SWEEP_EXPLANATIONS
from spyre.codes.tiling import TILING_EXPLANATIONS
from spyre.codes.titles import CODES
from spyre.codes.torch import TORCH_EXPLANATIONS
from spyre.codes.unsupported import UNSUPPORTED_EXPLANATIONS

EXPLANATIONS: dict[str, Explanation] = {
    **MLIR_EXPLANATIONS,
    **SDSC_EXPLANATIONS,
    **LAUNCH_EXPLANATIONS,
    **DEVICE_EXPLANATIONS,
    **UNSUPPORTED_EXPLANATIONS,
    **COMPARE_EXPLANATIONS,
    **SANITIZE_EXPLANATIONS,
    **STREAM_EXPLANATIONS,
    **TILING_EXPLANATIONS,
    **SPYRECODE_EXPLANATIONS,
    **DMA_EXPLANATIONS,
    **MEMORY_EXPLANATIONS,
    **TORCH_EXPLANATIONS,
    **COARSE_TILING_EXPLANATIONS,
    **COST_EXPLANATIONS,
    **PROFILE_EXPLANATIONS,
    **SWEEP_EXPLANATIONS,
}


def _record(code: str, title: str) -> DiagnosticCode:
    known = EXPLANATIONS.get(code)
    if known is None:
        return DiagnosticCode(code, title)
    return DiagnosticCode(code, title, known.cause, known.fix)


RECORDS: dict[str, DiagnosticCode] = {c: _record(c, title) for c, title in CODES.items()}
"""Title, cause and fix by code."""
