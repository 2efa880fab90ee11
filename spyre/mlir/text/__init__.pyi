from .attributes import (
    check_unique as check_unique,
    print_key as print_key,
    quote as quote,
    unquote as unquote,
)
from .expressions import (
    DraftExpr as DraftExpr,
    check_nesting as check_nesting,
    declared as declared,
    draft_binary as draft_binary,
    draft_negation as draft_negation,
    resolve as resolve,
)
from .lowering import (
    ModuleInspection as ModuleInspection,
    inspect_module as inspect_module,
)
from .parser import parse_module as parse_module
from .printer import print_module as print_module
from .syntax import (
    NO_POSITION as NO_POSITION,
    AddIOp as AddIOp,
    ApplyOp as ApplyOp,
    ArgumentField as ArgumentField,
    ConstantOp as ConstantOp,
    ExecuteOp as ExecuteOp,
    ExtractOp as ExtractOp,
    ForOp as ForOp,
    Function as Function,
    FunctionParameter as FunctionParameter,
    InputArgType as InputArgType,
    MapAlias as MapAlias,
    Module as Module,
    Rejection as Rejection,
    SourceText as SourceText,
    Statement as Statement,
    SyntaxNode as SyntaxNode,
)
