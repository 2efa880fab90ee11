from .entry import (
    guarded as guarded,
    run_process as run_process,
)
from .options import (
    CommandParser as CommandParser,
    did_you_mean as did_you_mean,
)
from .standalone import compile_in_this_process as compile_in_this_process
from .text_report import ProgressBar as ProgressBar
