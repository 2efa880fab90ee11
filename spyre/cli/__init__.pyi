from .entry import (
    guarded as guarded,
)
from .text_report import (
    ProgressBar as ProgressBar,
)
