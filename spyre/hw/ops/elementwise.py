"""The rows of the operation table, and those of elementwise operations, from which opcodes, fused
forms and cost class are read.

Beside its row, an elementwise operation has a formula in `spyre.hw.kernels.vector_math` (unless it
is one instruction), a loop in `spyre.hw.kernels.families.elementwise`, and a definition in
`spyre.hw.reference.definitions`. This module imports nothing of the package: kernels are compiled
from its rows, and an edit of any imported module would recompile them.
"""

from __future__ import annotations

from collections import namedtuple
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace


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
    """Families of operations, by the kernel that runs them."""

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


class OpDefinition(msgspec.Struct, frozen=True):
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

# --- elementwise operations -------------------------------------------------------------------


def _row(
    name: str, inputs: int, definition: str, kernel_op: str = "", *, code_form: str, **columns: Any
) -> OpDefinition:
    """A row; ``kernel_op`` is the name by default. Every row has to name its ``code_form``."""
    category = Category.BINARY if inputs > 1 else Category.UNARY
    columns = {"formats": FLOATS, "code_form": code_form, **columns}
    kernel_op = kernel_op or name
    return OpDefinition(
        name, category, Family.ELEMENTWISE, kernel_op, inputs, definition, **columns
    )


def _function(
    name: str, definition: str, kernel_op: str = "", *, code_form: str, **columns: Any
) -> OpDefinition:
    """A row of a function that takes the card several cycles per element."""
    return _row(name, 1, definition, kernel_op, code_form=code_form, transcendental=True, **columns)


_SCALE = "1/√(max(E[x²] - E[x]², 0) + eps)"
_GELU = "x·Φ(x), the erf form (our reading)"
_SOFTPLUS = "x·β > t ? x : ln(1 + e^{βx})/β"
_BETA = ("softplusBeta", "softplusThresh")

_KERNEL_OPERATIONS = (
    _row("add", 2, "a + b", code_form="add"),
    _row("sub", 2, "a - b", code_form="subtract"),
    _row("revsub", 2, "b - a", code_form=""),
    _row("mul", 2, "a · b", code_form="multiply"),
    _row("realdiv", 2, "a / b", "div", code_form="divide"),
    _row("maximum", 2, "max(a, b)", "max", code_form="maximum"),
    _row("minimum", 2, "min(a, b)", "min", code_form="minimum"),
    _row("equal", 2, "a = b as 1.0 or 0.0", "eq", code_form=""),
    _row("notequal", 2, "a ≠ b as 1.0 or 0.0", "ne", code_form=""),
    _row("greaterequal", 2, "a ≥ b as 1.0 or 0.0", "ge", code_form=""),
    _row("lesserequal", 2, "a ≤ b as 1.0 or 0.0", "le", code_form=""),
    _row("greaterthan", 2, "a > b as 1.0 or 0.0", "gt", code_form=""),
    _row("lesserthan", 2, "a < b as 1.0 or 0.0", "lt", code_form=""),
    _row("where3", 3, "c ≠ 0 ? a : b", "where", code_form="where"),
    _row("fnms", 3, "c - a·b (our reading)", code_form=""),
    _row("batchnormfwd", 3, "x · scale + shift (our reading)", "muladd", code_form=""),
    _row("layernormnorm", 5, "(x - E[x]) · scale · w + b", code_form="", element_ns=0.3),
    _row("abs", 1, "|x|", code_form="absolute"),
    _row("neg", 1, "-x", code_form="negative"),
    _function("exp", "e^x", code_form="half_exponential", element_ns=0.4),
    _function("log", "ln x", code_form="logarithm", element_ns=0.5, formats=HALF),
    _function("sqrt", "√x", code_form="square_root", element_ns=0.3),
    _function("rsqrt", "1/√x", code_form="inverse_root_of_codes", element_ns=0.4),
    _row("reciprocal", 1, "1/x", code_form="reciprocal", element_ns=0.3),
    _function("tanh", "tanh x", code_form="hyperbolic_tangent", element_ns=0.7, formats=HALF),
    _function("sigmoid", "1/(1 + e^-x)", code_form="half_sigmoid", element_ns=0.6),
    _row("floor", 1, "⌊x⌋", code_form=""),
    _row("relufwd", 1, "max(x, 0)", "relu", code_form="relu"),
    _row("relu6fwd", 1, "min(max(x, 0), 6)", "relu6", code_form=""),
    _row("leakyrelufwd", 1, "x > 0 ? x : 0.01·x (our reading)", "leakyrelu", code_form=""),
    _row("clip", 1, "min(max(x, lo), hi)", code_form="", constants=("clipMin", "clipMax")),
    _function("gelufwd", _GELU, "gelu", code_form="gelu", element_ns=1.0, formats=HALF),
    _function("silu", "x·σ(x)", code_form="half_silu", element_ns=0.7),
    _function("mish", "x·tanh(ln(1 + e^x))", code_form="", element_ns=0.7, formats=HALF),
    _function("softplus", _SOFTPLUS, code_form="", element_ns=1.2, constants=_BETA, formats=HALF),
    _row("layernormscale", 1, _SCALE, code_form="", element_ns=0.4, constants=("eps",)),
)

CARD_FORMS = {
    "exp-floor": _function("exp", "e^max(x, -17)", "floored_exp", code_form="", formats=HALF),
    "log-below-zero": _function(
        "log", "ln x; 16.15625 below zero", "log_below_zero", code_form="", formats=HALF
    ),
    "scaled-means": OpDefinition(
        "mean", Category.REDUCTION, Family.REDUCTION, "scaled_sum", 1,
        "Σ scaling_factor · x, each lane of a core in DL16", ("scaling_factor",), formats=HALF,
    ),
}  # fmt: skip
"""Rows that take the place of those of 16-bit floats while an erratum of the card
(`spyre.hw.numerics.ERRATA`) is simulated, by the erratum."""

_BY_NAME = {row.name: row for row in _KERNEL_OPERATIONS}
_SAME_OPERATION = (
    ("biasadd", "add", "x + b"),
    ("fastexp", "exp", "e^x (our reading: exact)"),
    ("fastsigmoid", "sigmoid", "1/(1 + e^-x) (our reading: exact)"),
)
"""Other name, name of the row it shares everything with, definition as the specification has it."""

ELEMENTWISE = (
    *_KERNEL_OPERATIONS,
    *(replace(_BY_NAME[of], name=name, definition=d) for name, of, d in _SAME_OPERATION),
)
"""All elementwise rows of the operation table."""

CODE_FORMS = {row.kernel_op: row for row in _KERNEL_OPERATIONS if row.code_form}
"""Row of each kernel operation that has a form on DL16 codes."""

_CARD_FUNCTIONS = [row for row in CARD_FORMS.values() if row.family is Family.ELEMENTWISE]
_OPCODE_ROWS = (*_KERNEL_OPERATIONS, *_CARD_FUNCTIONS)
OPCODES = {row.kernel_op: opcode for opcode, row in enumerate(_OPCODE_ROWS)}
"""OPCODE word of the plan table by kernel operation."""

_namedtuple: Any = namedtuple
Opcodes = _namedtuple("Opcodes", [name.upper() for name in OPCODES])
OPCODE = Opcodes(*OPCODES.values())
"""The same for kernels, for which numba makes constants of it: ``OPCODE.ADD``."""
