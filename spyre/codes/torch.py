"""Causes and fixes of SPY900-999: the PyTorch device."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

TORCH_EXPLANATIONS: dict[str, E] = {
    "SPY900": E(
        "SPYRE_FALLBACK=error forbids operations to run on the CPU behind the device's back.",
        "Move the tensors to the CPU for this operation, or use SPYRE_FALLBACK=warn.",
    ),
}
