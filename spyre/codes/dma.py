"""Causes and fixes of SPY810-819: copies between host and device."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

DMA_EXPLANATIONS: dict[str, E] = {
    "SPY810": E(
        "Several device dims walk one host dim, and the steps of the coarser one are not what the "
        "finer ones hold, so that a copy would lose or repeat elements.",
        "Give the coarser dim the stride of the finer dims' extents times their stride, such as 64 "
        "for the stick count of a contiguous float16 dim.",
    ),
    "SPY811": E(
        "The host tensor that a copy should write has stride 0, so that its elements share memory.",
        "Copy into a tensor of its own memory, such as a contiguous one.",
    ),
    "SPY812": E(
        "The sizes, strides and offset of a view name elements outside of its tensor.",
        "Give them in elements of the tensor's host storage.",
    ),
}
