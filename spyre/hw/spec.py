"""Sizes of the simulated card; every other module takes them from here.

Sources: runtime reference §4 (segments, LX), hardware reference §2 (cores, stick).
"""

from __future__ import annotations

STICK_BYTES = 128
CORES = 32
REGIONS = 8
REGION_BITS = 34
REGION_BYTES = 1 << REGION_BITS
HBM_BYTES = REGIONS * REGION_BYTES
LX_BYTES = 2 << 20
"""Scratchpad of one core, bytes."""
LX_BASE = HBM_BYTES
"""Where LX of core 0 starts in the simulator's single address space; core c adds c·LX_BYTES."""
ADDRESS_SPACE_BYTES = HBM_BYTES + CORES * LX_BYTES
MAX_OPERANDS = 8
"""Tensors of one SDSC (labeledDs_ limit)."""
