"""Numbers shared by planners and kernels: kinds and opcodes, without importing numba.

An opcode is the position of a kernel operation's name in its list.
"""

from __future__ import annotations

ELEMENTWISE_KIND = 0
REDUCTION_KIND = 1
COPY_KIND = 2
CONVERT_KIND = 3
RESTICKIFY_KIND = 4
MATMUL_KIND = 5
TOPK_KIND = 6
CHUNK_REDUCTION_KIND = 7
CHUNK_MATMUL_KIND = 8
CONTRACT_KIND = 9
RECODE_KIND = 10
WINDOWING_KIND = 11
CHAIN_KIND = 12
"""Several elementwise dispatches strip by strip; no table has this kind."""

KERNEL_MODULES = (
    "elementwise",
    "reduction",
    "copying",
    "converting",
    "restickify",
    "matmul",
    "topk",
    "chunk_reduction",
    "chunk_matmul",
    "contract",
    "recode",
    "windowing",
    "chain",
)
"""Module of each kind, in order; every one has an entry named ``run``."""

UNARY = (
    "copy", "abs", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid", "floor",
    "relu", "gelu", "silu", "clip", "softplus", "relu6", "mish", "leakyrelu",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "max", "min", "eq", "ne", "ge", "le", "gt", "lt", "revsub",
    "layernormscale",
)  # fmt: skip
MANY = ("where", "layernormnorm", "fnms", "muladd")

FUSED_UNARY = ("neg", "abs", "relu")
FUSED_BINARY = ("add", "sub", "mul", "div", "max", "min")
FUSED_MANY = ("where",)
"""Operations the elementwise kernel may run without staging."""
FUSE = 1
"""Elementwise FLAGS bit: DL16, unmasked, neighbouring sticks: no staging needed."""

REDUCTIONS = ("sum", "max", "min", "absmax", "prod", "exx2")
REDUCE_LANES = 1
"""Reduction FLAGS bit: the stick dim is reduced too."""
RUN_REDUCED = 2
"""Reduction FLAGS bit: stage runs of sticks along the innermost reduced axis."""
ZERO_MEAN = 4
"""Reduction FLAGS bit: exx2 stores 0 for the mean."""
CLIP = 8
"""Reduction FLAGS bit: the scaled result is bounded; CONSTANT words 1 and 2 are the bounds."""

MAX_KEPT_STICKS = 64
"""Kept sticks a reduction accumulates at once, at most."""

CHUNK = 64
"""Elements added up before their total joins the running one, in the number mode dl16-chunk."""
CHUNKED_REDUCTIONS = ("sum", "exx2")
"""Reductions that accumulate in chunks."""
MAX_CHUNK_STICKS = 32
"""Kept sticks a chunked reduction accumulates at once, at most: it needs more buffers."""

GATHER = 1
"""Copy FLAGS bit: the index moves the input."""
SCATTER = 2
"""Copy FLAGS bit: the index moves the output."""
INDEX_PER_LANE = 4
"""Copy FLAGS bit: every lane has its own index; CONSTANT word 0 is the index stick pitch."""

CONVERSIONS = ("widen", "narrow")
WORD_STAGGERED = 1
"""Conversion FLAGS bit: the 32-bit side is in DL16_TO_FP32 order."""
HALF_STAGGERED = 2
"""Conversion FLAGS bit: the 16-bit side is in FP32_TO_DL16 order."""

TOPK = ("value", "index")
TOPK_INDEX = TOPK.index("index")

RECODES = ("quantize8", "quantize4", "to_fp8", "value", "add", "mul", "truncate", "from_int")
"""Operations of the recode kernel; from "add" on they work on int32 words."""
WINDOWINGS = ("max", "sum", "map", "channel")
"""Operations of the windowing kernel: pooling, pooling with a map of factors, depthwise."""

DISPATCH_WORDS = 12
"""Words of a dispatch: table, static execute, instance, CHAIN_LENGTH, then 8 base addresses."""
CHAIN_LENGTH = 3
"""Word of a dispatch: how many, from it on, may run strip by strip; 1: it runs alone."""
DISPATCH_BASES = 4
"""First word of the base addresses."""

MAX_CHAIN = 8
"""Dispatches of a chain, at most."""
STRIP_STICKS = 512
"""Sticks of a strip: 64 KiB per operand, so that a few operands fit a core's own cache."""
CHAIN_WORDS = 2 + 3 * MAX_CHAIN
"""Words that tell the chain kernel its members."""
