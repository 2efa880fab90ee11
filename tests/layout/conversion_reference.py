"""Slow reference of the execution of a descriptor: its nests, element by element."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from spyre.layout import DataConversionInfo

Array = npt.NDArray[np.int64]


class Touched(msgspec.Struct, frozen=True):
    """Per device element: host element moved to or from it (−1: none), and how often touched."""

    host: Array
    times: Array


def walk(info: DataConversionInfo, device_elements: int) -> Touched:
    """Run all loops of ``info``; ``times`` counts zero fills as well."""
    host = np.full(device_elements, -1, np.int64)
    times = np.zeros(device_elements, np.int64)
    for nest in info.nests:
        for index in np.ndindex(*(axis.extent for axis in nest.axes)):
            host_element, at = nest.at(index)
            host[at] = host_element
            times[at] += 1
    for fill in info.zero_fill:
        for index in np.ndindex(*(axis.extent for axis in fill.axes)):
            (at,) = fill.at(index)
            times[at] += 1
    return Touched(host, times)
