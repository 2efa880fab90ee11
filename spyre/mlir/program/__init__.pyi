from .affine import (
    EXPRESSIONS as EXPRESSIONS,
    INTEGERS as INTEGERS,
    AffineBinary as AffineBinary,
    AffineConstant as AffineConstant,
    AffineDim as AffineDim,
    AffineExpr as AffineExpr,
    AffineMap as AffineMap,
    AffineSet as AffineSet,
    AffineSymbol as AffineSymbol,
    Constraint as Constraint,
    Operator as Operator,
    fold as fold,
    slope_along as slope_along,
)
from .program import (
    Body as Body,
    DeviceAllocation as DeviceAllocation,
    Execute as Execute,
    LinkableProgram as LinkableProgram,
    Loop as Loop,
    LoopProgram as LoopProgram,
    Parameter as Parameter,
    check_sizes as check_sizes,
    executes as executes,
    loops as loops,
)
from .schedule import Schedule as Schedule
from .values import (
    Atom as Atom,
    Derived as Derived,
    IndexValue as IndexValue,
    InputAtom as InputAtom,
    Terms as Terms,
    add as add,
    fold_shared as fold_shared,
    of_atom as of_atom,
    relocate as relocate,
)
