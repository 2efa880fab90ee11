"""Constants of an SDSC as numbers, for all files of the twin."""

from __future__ import annotations

import numpy as np

from spyre.dtypes import decode_device
from spyre.mlir.operation.operation import Operation


def constant(op: Operation, name: str) -> np.float32:
    """A constant's bit pattern as a number: binary32, else a DL16 code (SDSC reference §8)."""
    bits = op.constants[name]
    if op.constant_formats[name] == "IEEE_FP32":
        return np.float32(np.uint32(bits & 0xFFFFFFFF).view(np.float32))
    return np.float32(decode_device(np.array([bits & 0xFFFF], np.uint16), "SEN169_FP16")[0])
