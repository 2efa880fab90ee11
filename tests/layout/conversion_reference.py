"""The slow twin of what executes a descriptor: its nests, element by element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spyre.layout import DataConversionInfo

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Touched:
    """Per device element: host element moved to or from it (−1: none), and how often touched."""

    host: Array
    times: Array


def walk(info: DataConversionInfo, device_elements: int) -> Touched:
    """Run all loops of ``info``; ``times`` counts zero fills as well."""
    host = np.full(device_elements, -1, np.int64)
    times = np.zeros(device_elements, np.int64)
    for nest in info.nests:
        for index in np.ndindex(*nest.sizes):
            at = nest.device_offset + _dot(index, nest.device_strides)
            host[at] = nest.host_offset + _dot(index, nest.host_strides)
            times[at] += 1
    for fill in info.zero_fill:
        for index in np.ndindex(*fill.sizes):
            times[fill.device_offset + _dot(index, fill.device_strides)] += 1
    return Touched(host, times)


def _dot(index: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return sum(i * s for i, s in zip(index, strides, strict=True))
