from .call import (
    overlaps_itself as overlaps_itself,
)
from .cpu_fallback import (
    announce as announce,
    check_devices as check_devices,
    cpu_fallback as cpu_fallback,
)
