from .binding import (
    WINDOW_BITS as WINDOW_BITS,
    AddressProvenance as AddressProvenance,
    AddressWindow as AddressWindow,
    Allocation as Allocation,
    Binding as Binding,
    TileMap as TileMap,
    window_base as window_base,
)
from .linked_program import (
    BatchGroup as BatchGroup,
    BatchPiece as BatchPiece,
    LinkedBatch as LinkedBatch,
    LinkedProgram as LinkedProgram,
    Variant as Variant,
    entry_addresses as entry_addresses,
    is_movable as is_movable,
    movable_rows as movable_rows,
    move as move,
    variants_of as variants_of,
)
from .linker import (
    Linker as Linker,
    arrangements_at as arrangements_at,
    check_bound as check_bound,
)
from .provenance import (
    AliasStructure as AliasStructure,
    alias_rows as alias_rows,
    alias_structure as alias_structure,
    equal_runs as equal_runs,
)
from .view import (
    shape_text as shape_text,
)
