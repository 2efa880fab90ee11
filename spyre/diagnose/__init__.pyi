from .address_checks import (
    AddressCheck as AddressCheck,
    address_findings as address_findings,
    check_addresses as check_addresses,
    possible_causes as possible_causes,
)
