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
"""Address of the LX of core 0 in the simulator's single address space; core c adds c·LX_BYTES."""
REGION_SKEW_BYTES = 69 * 1024
"""Extra host bytes behind every region: tensors at the same offset of several regions, which is the
rule in bundles with baked addresses, would otherwise fight for the same cache sets (25-40 %)."""
HOST_BYTES = HBM_BYTES + REGIONS * REGION_SKEW_BYTES + CORES * LX_BYTES
"""Host address space that holds everything."""
MAX_OPERANDS = 8
"""Tensors of one SDSC (labeledDs_ limit)."""


def host_offset(address_bytes: int) -> int:
    """Offset in the host reservation of a device address (HBM, or LX from LX_BASE on)."""
    return address_bytes + (address_bytes >> REGION_BITS) * REGION_SKEW_BYTES


def device_address(offset_bytes: int) -> int:
    """Inverse of :func:`host_offset`."""
    region = min(offset_bytes // (REGION_BYTES + REGION_SKEW_BYTES), REGIONS)
    return offset_bytes - region * REGION_SKEW_BYTES
