from .launches import (
    launches_noted as launches_noted,
)
from .profile import (
    profile as profile,
)
from .watch import (
    counting as counting,
    sanitizer_findings as sanitizer_findings,
    trace as trace,
)
