from . import (
    cpu_operations as cpu_operations,
    patches as patches,
    unsupported_layouts as unsupported_layouts,
)
from .autocast import (
    FLOAT32_NORMS as FLOAT32_NORMS,
    FLOAT32_RESULT as FLOAT32_RESULT,
    register_casts as register_casts,
)
from .debug_log import (
    log_program as log_program,
)
from .device_module import (
    make_module as make_module,
)
from .library import (
    pass_autocast as pass_autocast,
    register_composites as register_composites,
    register_fallback as register_fallback,
    register_fallbacks as register_fallbacks,
    register_kernels as register_kernels,
    register_under as register_under,
    register_views as register_views,
)
from .unsupported_layouts import (
    refuse_layout as refuse_layout,
)
