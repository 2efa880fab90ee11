from .operand_tiles import (
    Breakpoint as Breakpoint,
    OperandTile as OperandTile,
)
from .reference_tiles import (
    ReferenceValue as ReferenceValue,
    is_constant as is_constant,
    match_outputs as match_outputs,
)
from .search import (
    Deviation as Deviation,
    ExecuteVerdict as ExecuteVerdict,
    FirstDivergence as FirstDivergence,
)
