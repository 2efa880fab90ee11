from .causes import (
    AddressCheck as AddressCheck,
    bundle_launches as bundle_launches,
    check_addresses as check_addresses,
)
from .operands import (
    TracedLaunch as TracedLaunch,
    Walk as Walk,
    WalkedMemory as WalkedMemory,
    argument_memories as argument_memories,
    case_launches as case_launches,
)
from .tiles import (
    TiledExecutes as TiledExecutes,
)
