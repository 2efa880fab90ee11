from .entry import (
    guarded as guarded,
    run_process as run_process,
)
from .options import (
    CommandParser as CommandParser,
    did_you_mean as did_you_mean,
)
from .text_report import (
    ProgressBar as ProgressBar,
)
