from .address_checks import (
    AddressCheck as AddressCheck,
    check_addresses as check_addresses,
    possible_causes as possible_causes,
)
