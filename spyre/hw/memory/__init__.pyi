from .device_memory import (
    KEEP_BYTES as KEEP_BYTES,
    DeviceMemory as DeviceMemory,
    DeviceTensor as DeviceTensor,
    DirtyRanges as DirtyRanges,
    MemoryRange as MemoryRange,
    require_range as require_range,
    reserve as reserve,
)
from .regions import (
    PROGRAM_REGION as PROGRAM_REGION,
    TENSOR_REGIONS as TENSOR_REGIONS,
    AllocationHistory as AllocationHistory,
    RegionAllocator as RegionAllocator,
    RegionUsage as RegionUsage,
)
