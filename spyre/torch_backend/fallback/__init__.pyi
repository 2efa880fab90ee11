from .call import (
    overlaps_itself as overlaps_itself,
)
from .cpu_fallback import (
    check_devices as check_devices,
    cpu_fallback as cpu_fallback,
    fallback_seconds as fallback_seconds,
    fallbacks as fallbacks,
    on_cpu as on_cpu,
)
