"""A syntax tree back to text: the inverse of the parser, in the layout torch-spyre emits.

``parse_module(print_module(m)) == m`` and printing is stable. The torch backend writes
bundle.mlir through this; map aliases written inside a function come out at file level, where
MLIR wants them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spyre.mlir.text.attributes import print_attribute, quote
from spyre.mlir.text.syntax import (
    AddIOp,
    AllocateOp,
    ApplyOp,
    Attribute,
    ConstantOp,
    ExecuteOp,
    ExtractOp,
    ForOp,
    Function,
    Module,
    ParameterType,
    Statement,
)

INDENT = "\t"


def print_module(module: Module) -> str:
    """The whole file, ending in a newline."""
    name = f" @{module.name}" if module.name else ""
    lines = [f"#{alias.name} = {alias.map}" for alias in module.aliases]
    lines.append(f"module{name}{_attributes(module.attributes)} {{")
    lines.extend(_function(module.function, INDENT))
    lines.append("}\n")
    return "\n".join(lines)


def print_type(type_: ParameterType) -> str:
    """``index`` or ``!sdscbundle.input_arg<index, …>``."""
    if type_ is None:
        return "index"
    annotations = (("granularity", type_.granularity), ("max_value", type_.max_value))
    written = [f", {key}={value}" for key, value in annotations if value is not None]
    return f"!sdscbundle.input_arg<index{''.join(written)}>"


def _function(function: Function, indent: str) -> Iterator[str]:
    visibility = f"{function.visibility} " if function.visibility else ""
    parameters = ", ".join(f"%{p.name}: {print_type(p.type)}" for p in function.parameters)
    head = f"func.func {visibility}@{function.name}({parameters})"
    yield f"{indent}{head}{_attributes(function.attributes)} {{"
    yield from _body(function.body, indent + INDENT)
    yield f"{indent}{INDENT}return"
    yield f"{indent}}}"


def _attributes(attributes: Iterable[Attribute]) -> str:
    text = ", ".join(map(print_attribute, attributes))
    return f" attributes {{{text}}}" if text else ""


def _body(body: tuple[Statement, ...], indent: str) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, ForOp):
            bounds = f"%{statement.lower} to %{statement.upper} step %{statement.step}"
            yield f"{indent}scf.for %{statement.variable} = {bounds} {{"
            yield from _body(statement.body, indent + INDENT)
            yield f"{indent}}}"
        else:
            yield indent + _statement(statement)


def _statement(op: Statement) -> str:
    match op:
        case ConstantOp():
            return f"%{op.result} = arith.constant {op.value} : index"
        case AddIOp():
            return f"%{op.result} = arith.addi %{op.left}, %{op.right} : index"
        case ApplyOp():
            return _apply(op)
        case ExtractOp():
            type_ = f"{print_type(op.type)} -> index"
            take = f"sdscbundle.input_arg_extract {op.field} from %{op.argument}"
            return f"%{op.result} = {take} : {type_}"
        case AllocateOp():
            take = f"sdscbundle.device_mem_allocate {op.size_bytes} bytes"
            return f"%{op.result} = {take} : index"
        case ExecuteOp():
            return _execute(op)
    raise TypeError(f"not a statement: {op!r}")


def _apply(op: ApplyOp) -> str:
    map_ = f"#{op.map}" if isinstance(op.map, str) else str(op.map)
    symbols = f"[{_names(op.symbols)}]" if op.symbols else ""
    return f"%{op.result} = affine.apply {map_}({_names(op.dims)}){symbols}"


def _execute(op: ExecuteOp) -> str:
    ids = ", ".join(map(str, op.symbol_ids))
    attributes = [f"sdsc_filename={quote(op.sdsc_filename)}", f'"symbol_ids"=[{ids}]']
    attributes.extend(map(print_attribute, op.attributes))
    return f"sdscbundle.sdsc_execute ({_names(op.operands)}) {{{', '.join(attributes)}}}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"%{name}" for name in names)
