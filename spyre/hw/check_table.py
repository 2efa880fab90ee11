"""Words of the sanitizer's tables: the builder writes them, the checking driver reads them.

A *row* is one operand of one execute statement in one role; its *boxes* are the ranges that the
cores touch, one box per distinct range; a *nest* is the shape of a box in whole sticks: runs of
evenly spaced sticks, repeated over axes. Addresses are stick numbers of the host reservation.
"""

from __future__ import annotations

# rows
ROLE = 0
FIRST_BOX = 1
BOXES = 2
BASES = 3
"""Index of the base stick of instance 0 among all base sticks, which are -1 for instances without
this row."""
PATTERNS = 4
"""Index of the pattern number of instance 0, or -1: all instances have pattern 0."""
OFFSETS = 5
"""Index of the offset of box 0 in pattern 0 among all offsets."""
IS_LX = 6
"""0: in HBM; 1: a tensor in LX; 2: elements in LX, which are a part of a tensor: of no range."""
CHECKS_CLASHES = 7
"""1: sticks that another core wrote in the same execution are a finding."""
ROW_WORDS = 8

# roles, in the order of the rows of one execution
READ = 0
WRITE = 1
REREAD = 2
"""An input that overlaps an output of the same execute, checked again after the writes."""

# boxes
TAG = 0
"""Core + 1 of the first of the cores that count as one."""
NEST = 1
BEFORE = 2
"""LX: sticks from the first one of the range the box belongs to."""
LENGTH = 3
"""LX: distance from the first to the last stick of that range: a box may be a cell of a tensor."""
BOX_WORDS = 4

# nests
RANK = 0
RUN = 1
LAST = 2
"""Distance from the first to the last stick of the nest."""
STRIDE = 3
"""Distance of the sticks of a run: 1 where they are neighbours."""
STEPS = 4
MAX_RANK = 8
PITCHES = STEPS + MAX_RANK
NEST_WORDS = PITCHES + MAX_RANK

# results, two slots per row
MAIN = 0
OVERWRITTEN = 1
"""LX read through a range that partially overlaps the one it was written through."""
SLOTS = 2
COUNT = 0
EXECUTION = 1
BOX = 2
STICK = 3
WORD = 4
"""Shadow word of the first offending stick before this execution changed it."""
EXECUTIONS = 5
LATEST = 6
RESULT_WORDS = 8

# shadow words: record << CORE_BITS | core + 1, 0 for unwritten sticks
CORE_BITS = 6
UNKNOWN_CORE = 63
MAX_RECORD = (1 << 32 - CORE_BITS) - 1

# LX range words: first and last stick of the range a stick was written through, and a mark
RANGE_BITS = 14
RANGE_MARK = 1 << 2 * RANGE_BITS
