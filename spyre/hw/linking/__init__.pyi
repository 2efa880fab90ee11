from .binding import (
    AddressOwners as AddressOwners,
    AddressWindow as AddressWindow,
    AliasStructure as AliasStructure,
    Allocation as Allocation,
    Binding as Binding,
    TileMap as TileMap,
    alias_rows as alias_rows,
    alias_structure as alias_structure,
    equal_runs as equal_runs,
    window_base as window_base,
)
from .checks import first_outside as first_outside
from .linked_program import (
    BatchGroup as BatchGroup,
    LinkedProgram as LinkedProgram,
    Variant as Variant,
    entry_addresses as entry_addresses,
    is_movable as is_movable,
    movable_rows as movable_rows,
    move as move,
    shape_text as shape_text,
    variants_of as variants_of,
)
from .linker import (
    Linker as Linker,
    arrangements_at as arrangements_at,
)
from .trace import (
    TracedExecute as TracedExecute,
    Walk as Walk,
    core_owners as core_owners,
    operand_owners as operand_owners,
    trace as trace,
)
