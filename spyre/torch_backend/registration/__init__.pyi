from . import patches as patches
from .autocast import (
    FLOAT32_NORMS as FLOAT32_NORMS,
    FLOAT32_RESULT as FLOAT32_RESULT,
    register_casts as register_casts,
)
from .device_module import make_module as make_module
from .library import (
    log_program as log_program,
    pass_autocast as pass_autocast,
    refuse_layout as refuse_layout,
    register_composites as register_composites,
    register_exceptions as register_exceptions,
    register_fallback as register_fallback,
    register_kernels as register_kernels,
    register_views as register_views,
)
