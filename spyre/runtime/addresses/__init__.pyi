from .causes import (
    AddressCheck as AddressCheck,
    bundle_findings as bundle_findings,
    check_addresses as check_addresses,
)
from .operands import (
    Memory as Memory,
    TracedLaunch as TracedLaunch,
    argument_memories as argument_memories,
    case_launches as case_launches,
)
