from .causes import (
    AddressCheck as AddressCheck,
    check_addresses as check_addresses,
)
from .operands import (
    TracedLaunch as TracedLaunch,
    Walk as Walk,
    WalkedMemory as WalkedMemory,
)
from .tiles import (
    TiledExecutes as TiledExecutes,
)
