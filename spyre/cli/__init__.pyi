from .entry import (
    guarded as guarded,
    run_process as run_process,
)
from .text_report import (
    ProgressBar as ProgressBar,
)
