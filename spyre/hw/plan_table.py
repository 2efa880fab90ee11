"""The plan table: 128 int64 words that tell a kernel one execute (or one part of one).

Every address is in bytes. Words, kinds and opcodes are named here once; planners write them,
kernels read them. Operands are the tensors of the SDSC in table order, the output last; a masked
operation has one more pseudo-operand whose "address" is the coordinate (elements) along the masked
dim. Opcodes are positions in the lists below, those of elementwise operations in
`spyre.hw.ops.OPCODES`. The arguments of a kernel's C entry and the control block of the thread pool
follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.dtypes import FORMATS
from spyre.hw.spec import HOST_BYTES

WORDS = 128

EXTRA = -1
"""KIND word of a row that continues the table before it; such rows hold that table's vectors."""

# header, common to every kind
KIND = 0
OPCODE = 1
INPUTS = 2
UNITS = 3
RANK = 4
INNER = 5
BLOCKS = 6
COST_NS = 7
LANES = 8
OPERANDS = 9
MASK = 10
MASK_START = 11
MASK_END = 12
MASK_BITS = 13
FLAGS = 14
VALUE = 15

# axes, outermost first
EXTENT = 16
MAX_RANK = 7
CONSTANT = 24
MAX_CONSTANTS = 8

# operands
OPERAND = 32
OPERAND_WORDS = 12
BASE = 0
TENSOR = 1
LANE = 2
FORMAT = 3
PITCH = 4
INNER_PITCH = 11

# LANE values: -1 whole sticks, n >= 0 lane n of each stick broadcast to all lanes
WHOLE_STICK = -1

# FORMAT values: the ``plan_code`` of number formats, and of 16-bit floats also
HALF = 1
"""IEEE binary16, where SEN169_FP16 is stored in the number mode ieee."""
DL16_TRUNC = 4
DL16_EVEN = 5
"""DL16 whose stores round towards zero, or ties to even; DL16 itself rounds ties away."""
DL16, FP32 = FORMATS["SEN169_FP16"].plan_code, FORMATS["IEEE_FP32"].plan_code
INT32, INT8 = FORMATS["IEEE_INT32"].plan_code, FORMATS["SENINT8"].plan_code
FP8_143, FP8_152 = FORMATS["SEN143_FP8"].plan_code, FORMATS["SEN152_FP8"].plan_code
INT4 = FORMATS["SENINT4"].plan_code
FIRST_PACKED = 16
"""First code of the elements of 8 and 4 bits, which are decoded by a table of all codes."""
ROUNDING_ADD = (0x2000, 0, 0, 0, 0, 0x1FFF)
ROUNDING_ODD = (0, 0, 0, 0, 0, 1)
"""Rounding rule of each 16-bit FORMAT value; see `spyre.hw.kernels.intrinsics.encode_dl16_as`."""
LARGEST_CODE = 0x7FFF
"""Largest magnitude code of DL16: NINF. Where copies saturate, it is 0x7FFE."""

# MASK values: whether the masked dim is the stick dim
NO_MASK = 0
MASK_LANES = 1
MASK_STICKS = 2

# reduction: EXTENT words 0..3 are kept axes, 4..6 reduced ones
KEPT_RANK = 4
REDUCED_RANK = 3

# scratch handed to a kernel, per host thread
SCRATCH_COUNTERS = 64
SCRATCH_FLOATS = 12288
SCRATCH_LINE = 64
"""Bytes of a cache line: scratch begins with one, since a vector across two is read as two."""
SCRATCH_BYTES = 8 * SCRATCH_COUNTERS + 4 * SCRATCH_FLOATS + SCRATCH_LINE

BLOCK_STICKS = 16
"""Sticks a kernel stages at once."""

ELEMENTWISE_KIND = 0
REDUCTION_KIND = 1
COPY_KIND = 2
CONVERT_KIND = 3
RESTICKIFY_KIND = 4
MATMUL_KIND = 5
TOPK_KIND = 6
CHUNK_REDUCTION_KIND = 7
CHUNK_MATMUL_KIND = 8
PACKED_MATMUL_KIND = 9
REQUANTIZE_KIND = 10
WINDOWING_KIND = 11
CHAIN_KIND = 12
"""Several elementwise dispatches strip by strip; no table has this kind."""
MOVE_KIND = 13

KERNELS = {
    "elementwise": "spyre.hw.kernels.families.elementwise.run",
    "reduction": "spyre.hw.kernels.families.reduction.run",
    "copying": "spyre.hw.kernels.families.movement.run_copy",
    "converting": "spyre.hw.kernels.families.movement.run_convert",
    "restickify": "spyre.hw.kernels.families.movement.run_restickify",
    "matmul": "spyre.hw.kernels.families.matmul.run",
    "topk": "spyre.hw.kernels.families.reduction.run_topk",
    "chunk_reduction": "spyre.hw.kernels.families.reduction.run_chunked",
    "chunk_matmul": "spyre.hw.kernels.families.matmul.run_chunked",
    "packed_matmul": "spyre.hw.kernels.families.packed_matmul.run",
    "requantize": "spyre.hw.kernels.families.requantize.run",
    "windowing": "spyre.hw.kernels.families.windowing.run",
    "fusion": "spyre.hw.kernels.fusion.run",
    "moving": "spyre.hw.kernels.families.moving.run",
}
"""Name and entry of the kernel of each kind, in order of the kinds."""
KERNEL_NAMES = tuple(KERNELS)

FUSE = 1
"""Elementwise FLAGS: an operation with a code form, on unmasked DL16: no staging."""

REDUCTIONS = ("sum", "max", "min", "absmax", "prod", "exx2", "scaled_sum")
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
"""Reductions that accumulate in chunks in the number mode dl16-chunk."""
MAX_CHUNK_STICKS = 32
"""Kept sticks a chunked reduction accumulates at once, at most: it needs more buffers."""

GATHER = 1
"""Copy FLAGS bit: the index moves the input."""
SCATTER = 2
"""Copy FLAGS bit: the index moves the output."""
INDEX_PER_LANE = 4
"""Copy FLAGS bit: every lane has its own index; CONSTANT word 0 is the index stick pitch."""

MOVE_BLOCK = 1024
"""Elements of one unit of a move, along the innermost axis."""
MOST_INDICES = 3
"""Index tensors of a move. CONSTANT words: of each the bytes per index and the first index out of
range, then how many blocks of elements a scatter, which is one unit, has.
"""

CONVERSIONS = ("widen", "narrow")
COPY, SPREAD_CODE, SPREAD_WORD = range(3)
"""Loops over sticks: copied whole, or one 16-bit or 32-bit element to all lanes."""
WORD_STAGGERED = 1
"""Conversion FLAGS bit: the 32-bit side is in DL16_TO_FP32 order."""
HALF_STAGGERED = 2
"""Conversion FLAGS bit: the 16-bit side is in FP32_TO_DL16 order."""

TOPK = ("value", "index")
TOPK_INDEX = TOPK.index("index")

REQUANTIZATIONS = (
    "quantize8",
    "quantize4",
    "to_fp8",
    "value",
    "add",
    "mul",
    "truncate",
    "from_int",
)
"""Operations of the requantize kernel; from "add" on they work on int32 words."""
WINDOWINGS = ("max", "sum", "map", "channel")
"""Operations of the windowing kernel: pooling, pooling with a map of factors, depthwise."""

DISPATCH_WORDS = 12
"""Words of a dispatch: table, static execute, instance, CHAIN_LENGTH, then 8 base addresses."""
CHAIN_LENGTH = 3
"""Word of a dispatch: how many, from it on, may run strip by strip; 1: it runs alone; 0: alone and
on one thread, since a unit reads sticks that another unit writes."""
DISPATCH_BASES = 4
"""First word of the base addresses."""

MAX_CHAIN = 16
"""Dispatches of a chain, at most."""
STRIP_STICKS = 512
"""Sticks of a strip: 64 KiB per operand, so that a few operands fit a core's own cache."""
CHAIN_WORDS = 2 + 3 * MAX_CHAIN
"""Words that tell the chain kernel its members."""

# --- matmul -----------------------------------------------------------------------------------

# An axis is an extent and the byte pitches of the operands that move along it. N and K axes count
# sticks (64 elements of the generated and the reduction dim).
MATMUL_BATCH = 68
"""4 axes of (extent, A, B, C)."""
MATMUL_BATCH_AXES = 4
MATMUL_ROWS = 84
"""3 axes of (extent, A, C): the preserved dims."""
MATMUL_COLUMNS = 93
"""3 axes of (extent, B, C): sticks of the generated dim."""
MATMUL_REDUCED = 102
"""3 axes of (extent, A, B): sticks of the reduction dim."""
MATMUL_AXES = 3
B_ROW_PITCH = 111
"""Bytes between consecutive k in B."""
ROW_COUNT = 112
COLUMN_COUNT = 113
REDUCED_COUNT = 114
ROW_BLOCK = 115
"""Rows of one unit."""
ROW_BLOCKS = 116
COLUMN_BLOCKS = 117
CORE_DEPTH = 118
"""K sticks of one core's work slice, for chunked accumulation."""
COLUMN_BLOCK = 4
"""Sticks of C one unit computes at most (256 columns)."""

# --- tables with vectors ----------------------------------------------------------------------

# Operand words BASE, TENSOR and FORMAT are where other tables have them, but BASE counts bits.
COUNTS = 16
"""First count word: how many elements the vectors of each group have."""

# packed matmul: groups batch (A, B, C), rows (A, C), columns (B, C), depth (A, B); their counts are
# followed by the rows of a block, and the numbers of blocks of rows and columns
PACKED_COLUMN_BLOCK = 256
"""Columns of one unit."""
EXACT_INTEGERS = 1
"""Packed matmul FLAGS bit: float32 sums of one K block are exact integers and added in float64."""

# requantize: groups outer, middle, inner, each with a vector per operand, the output last
MIDDLE_BLOCK = 8
"""Middle steps of one unit; whole bytes of 4-bit elements are within one."""
END = 4
"""Operand word: bits from the operand's base on that it may touch, where FLAGS has BOUNDED."""
BOUNDED = 1
"""FLAGS bit: elements beyond END are read as 0 and not written."""
REFUSE_OVERFLOW = 2
"""FLAGS bit: an integer result that does not fit is a fault. CONSTANT word 0 of a masked operation
is the position of its first element along the masked dim.
"""

# windowing: groups kept sticks (a vector per operand), places in the window (per input)
KEPT_BLOCK = 16
"""Kept sticks of one unit."""

# --- the C entry of a kernel ------------------------------------------------------------------

TABLE_WORDS = 1 << 40
"""Extent of the view of a table, whose vectors may follow its row."""
VIEWS = {
    "table": f"carray(pointer_i64(table), {TABLE_WORDS})",
    "bases": "carray(pointer_i64(bases), 8)",
    "constants": f"carray(pointer_f32(table + {8 * CONSTANT}), {2 * MAX_CONSTANTS})",
    "half": f"carray(pointer_u16(memory), {HOST_BYTES // 2})",
    "word": f"carray(pointer_f32(memory), {HOST_BYTES // 4})",
    "integers": f"carray(pointer_i32(memory), {HOST_BYTES // 4})",
    "octet": f"carray(pointer_u8(memory), {HOST_BYTES})",
    "counters": f"carray(pointer_i64(scratch), {SCRATCH_COUNTERS})",
    "scratch": f"carray(pointer_f32(scratch + {8 * SCRATCH_COUNTERS}), {SCRATCH_FLOATS})",
    "memory": "memory",
    "scratch_address": "scratch",
    "host": "bases",
    "device": "memory",
}
"""Views of a C entry's arguments by the names of a kernel's parameters: words of the table and of
the base addresses, float32 constants; the reservation as uint16, float32, int32 and bytes; loop
counters and float32 buffers of the thread; and plain addresses. Copies have the host tensor in
place of base addresses."""


NO_MEMORY = -2
"""Fault word of a kernel for which the host has no memory."""


def entry_source(name: str, parameters: Sequence[str], reports_faults: bool) -> str:
    """Source of the C entry ``name`` of the function ``kernel`` with these parameters.

    Every kernel is called through one C signature: four host addresses, and the first and the last
    unit, which are also the last two ``parameters``. The entry calls ``kernel`` with arrays over
    the addresses, and returns its fault word if it ``reports_faults``, else 0. The interpreter runs
    the same text with another ``carray``.
    """
    views = ", ".join(VIEWS[parameter] for parameter in parameters[:-2])
    call = f"kernel({views}, first, last)"
    body = f"    return {call}\n" if reports_faults else f"    {call}\n    return 0\n"
    return f"def {name}(table, bases, memory, scratch, first, last):\n{body}"


# --- control block of the thread pool, shared by the caller and the workers (int64 each) ------

MAX_THREADS = 256

POOL_NEXT = 0
"""Next chunk to claim, with the job's number above JOB_BITS; CLOSED between jobs."""
POOL_CHUNKS = 8
"""End of the chunks of the job, with its number above JOB_BITS."""
POOL_DONE = 16
POOL_GENERATION = 24
POOL_BUSY = 32
"""1 while a caller has the workers."""
POOL_STATUS = 40
POOL_UNITS = 48
POOL_THREADS = 49
POOL_ARGUMENTS = 50
"""function, table, bases, memory."""
POOL_SLEEPING = 64
"""One word per thread: 1 while it waits on its semaphore."""
POOL_SEMAPHORES = POOL_SLEEPING + MAX_THREADS
SEMAPHORE_WORDS = 8
"""Room for one sem_t (32 bytes on Linux), a cache line each."""
POOL_WORDS = POOL_SEMAPHORES + MAX_THREADS * SEMAPHORE_WORDS

CLOSED = 1 << 60
JOB_BITS = 24
CHUNK_MASK = (1 << JOB_BITS) - 1
SPIN_ROUNDS = 2000
"""Pauses before the caller yields its CPU while a worker finishes its last chunk."""
LINGER_ROUNDS = 2000
"""Pauses (some 50 µs) a worker waits for the next job before it sleeps: programs are many jobs."""
CHUNKS_PER_THREAD = 8
CHUNK_NS = 100_000
"""Larger jobs have chunks of this time on one thread: the last ones should end together."""
