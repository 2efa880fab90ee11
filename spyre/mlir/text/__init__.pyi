from .lowering import (
    ModuleInspection as ModuleInspection,
    inspect_module as inspect_module,
)
from .parser import (
    parse_module as parse_module,
)
from .printer import (
    print_module as print_module,
)
from .syntax import (
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
    Statement as Statement,
)
