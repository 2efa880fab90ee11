from .background import (
    background_compiler as background_compiler,
    compiled_or_interpreted as compiled_or_interpreted,
    copy_seconds as copy_seconds,
    interpreted_seconds as interpreted_seconds,
)
from .run import (
    drive as drive,
    transfer as transfer,
)
from .source import (
    interpreted as interpreted,
    kernels_of as kernels_of,
)
