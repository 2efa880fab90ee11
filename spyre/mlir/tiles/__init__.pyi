from .checker import check_tiles as check_tiles
from .deliveries import (
    Members as Members,
    groups_of as groups_of,
    members as members,
    sources as sources,
)
from .forms import print_tiles as print_tiles
from .parser import parse_tiles as parse_tiles
from .program import (
    KtirArgument as KtirArgument,
    KtirProgram as KtirProgram,
    load_ktir as load_ktir,
)
from .rules import (
    OVERLAP as OVERLAP,
    integers as integers,
    overlap as overlap,
)
from .syntax import (
    BITS as BITS,
    FLOATS as FLOATS,
    INTEGERS as INTEGERS,
    Expression as Expression,
    Region as Region,
    TileFunction as TileFunction,
    TileModule as TileModule,
    TileOp as TileOp,
    Type as Type,
)
from .table import (
    TERMINATORS as TERMINATORS,
    operation_rows as operation_rows,
)
