from .launches import (
    launches_noted as launches_noted,
)
from .profile import (
    profile as profile,
)
from .watch import (
    counting as counting,
    trace as trace,
)
