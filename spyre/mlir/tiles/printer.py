"""A tree of KTIR back to text: the inverse of the parser.

``parse_tiles(print_tiles(m)) == m``, and printing is stable. Types, memory spaces, aliases and
locations come out as they were written; comments and line breaks do not.
"""

from __future__ import annotations

from spyre.mlir.tiles.forms import INDENT, elements_of, print_entries, print_form
from spyre.mlir.tiles.parser import GENERIC_FORM
from spyre.mlir.tiles.syntax import Name, TileFunction, TileModule, TileOp
from spyre.mlir.tiles.table import EXAMPLE_DIALECT, operation_rows


def print_tiles(module: TileModule) -> str:
    """The whole text, ending in a newline."""
    lines = [f"#{alias.name} = {alias.value}" for alias in module.aliases]
    if module.wrapped:
        name = f" @{module.name}" if module.name else ""
        attributes = f" attributes {print_entries(module.attributes)}" if module.attributes else ""
        lines.append(f"module{name}{attributes} {{")
    for function in module.functions:
        lines.extend(_function(function, INDENT if module.wrapped else ""))
    if module.wrapped:
        lines.append(_located("}", module.location))
    return "\n".join(lines) + "\n"


def _function(function: TileFunction, indent: str) -> list[str]:
    visibility = f"{function.visibility} " if function.visibility else ""
    parameters = ", ".join(
        _located(f"%{p.name}: {p.type}", p.location) for p in function.parameters
    )
    results = f" -> ({', '.join(map(str, function.results))})" if function.results else ""
    written = f" attributes {print_entries(function.attributes)}" if function.attributes else ""
    head = f"{indent}func.func {visibility}@{function.name}({parameters}){results}{written} {{"
    return [
        head,
        *_body(function.body, indent + INDENT),
        _located(f"{indent}}}", function.location),
    ]


def _body(body: tuple[TileOp, ...], indent: str) -> list[str]:
    return [indent + print_operation(op, indent) for op in body]


def print_operation(op: TileOp, indent: str = "") -> str:
    """One operation with its regions, without the indentation of its first line."""
    is_generic = op.name.startswith(f"{EXAMPLE_DIALECT}.")
    form = GENERIC_FORM if is_generic else operation_rows()[op.name].form
    name = f'"{op.name}"' if is_generic else op.name
    rest = print_form(op, elements_of(form), indent, _body)
    blank = " " if rest and not rest.startswith("(") else ""
    return _located(f"{_results(op.results)}{name}{blank}{rest}", op.location)


def _results(results: tuple[Name, ...]) -> str:
    if not results:
        return ""
    if "#" in results[0]:
        return f"%{results[0].partition('#')[0]}:{len(results)} = "
    return f"{', '.join(f'%{name}' for name in results)} = "


def _located(text: str, location: str | None) -> str:
    return text if location is None else f"{text} {location}"
