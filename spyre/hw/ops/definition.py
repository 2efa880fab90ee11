"""One row of the operation table, and the groups its rows are sorted by.

This module and `elementwise` import nothing of the package: kernels are compiled from their rows,
and an edit of any imported module would recompile them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Category(StrEnum):
    """The specification's grouping of operation names (operations reference §3), in its order."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    BINARY = "binary and ternary"
    UNARY = "unary"
    INTEGER = "integer"
    REDUCTION = "reduction"
    SCAN = "scan"
    POOLING = "pooling"
    QUANTIZE = "quantize"
    CONVERT = "convert"
    DATA = "data"


class Family(StrEnum):
    """Which kernel runs an operation."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"
    CONVERT = "convert"
    RESTICKIFY = "restickify"
    MATMUL = "matmul"
    TOPK = "topk"
    PACKED_MATMUL = "packed_matmul"
    REQUANTIZE = "requantize"
    WINDOWING = "windowing"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, slots=True)
class OpDefinition:
    """One operation.

    ``kernel_op``: name of its opcode in the kernel. ``constants``: names the SDSC must hold, in
    the order the kernel takes them; ``optional_constants`` it may hold. ``element_ns``: rough host
    cost per output element, used only to decide between one thread and several. ``formats``: data
    formats of operands and result, ``result_formats`` where the result may have others; empty:
    the planner of the family decides. ``nonstick``: the name may carry that suffix.
    ``windowed``: windows slide over the first input. ``transcendental``: takes several cycles per
    element on the card (which functions do is not published).

    ``code_form``, of elementwise operations: its form on vectors of DL16 codes in registers, a
    function of `spyre.hw.kernels.dl16_vectors` or a formula of `spyre.hw.kernels.vector_math`; ""
    where operands are always decoded to buffers first.
    """

    name: str
    category: Category
    family: Family
    kernel_op: str
    inputs: int
    definition: str
    constants: tuple[str, ...] = ()
    element_ns: float = 0.2
    unit: str = "sfp"
    optional_constants: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    result_formats: tuple[str, ...] = ()
    nonstick: bool = False
    windowed: bool = False
    transcendental: bool = False
    code_form: str = ""


HALF = ("SEN169_FP16",)
"""Formats of operations the precision column lists for DL16 only (operations reference §3)."""
WORD = ("IEEE_FP32",)
FLOATS = (*HALF, *WORD)
"""Formats of operations in DL16 or float32; operands and result have the same."""
