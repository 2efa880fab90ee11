from .profile import (
    profile as profile,
)
from .watch import (
    counting as counting,
    launches_noted as launches_noted,
    sanitizer_findings as sanitizer_findings,
    trace as trace,
)
