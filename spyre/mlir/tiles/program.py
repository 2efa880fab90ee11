"""A KTIR text as a program: functions, their arguments, findings, the printed text."""

from __future__ import annotations

import os
from math import prod
from pathlib import Path

import msgspec

from spyre.errors import BundleError, Finding, LaunchError, ValidationError, has_errors
from spyre.mlir.tiles.checker import check_tiles
from spyre.mlir.tiles.forms import print_tiles
from spyre.mlir.tiles.parser import parse_tiles
from spyre.mlir.tiles.rules import grid_of
from spyre.mlir.tiles.syntax import INTEGERS, TileFunction, TileModule, TileOp, names_in

_RUNNABLE = (*INTEGERS, "f16", "bf16", "f32", "runtime_arg")


class KtirArgument(msgspec.Struct, frozen=True):
    """An argument of a function.

    ``is_pointer``: it is the address of views, of elements ``element``; else a number of that type.
    ``shape``: sizes of the only view of it, where they are known. ``is_read``, ``is_stored``: by
    loads and stores through its views.
    """

    name: str
    element: str
    is_pointer: bool
    shape: tuple[int, ...] | None = None
    is_read: bool = False
    is_stored: bool = False


class KtirProgram(msgspec.Struct, frozen=True):
    """A text of KTIR. Equal programs have equal trees; ``str(program)`` is the text of the tree."""

    module: TileModule

    @property
    def functions(self) -> dict[str, TileFunction]:
        """Its functions by name, without declarations."""
        return {function.name: function for function in self.module.functions if function.body}

    def check(self, raise_on_error: bool = False) -> tuple[Finding, ...]:
        """Return the findings on the text that do not depend on a launch.

        ``raise_on_error``: ValidationError with all of them if one is an error.
        """
        findings = check_tiles(self.module)
        if raise_on_error and has_errors(findings):
            raise ValidationError(findings)
        return findings

    def function(self, name: str | None = None) -> TileFunction:
        """The function ``name``, or the only one; LaunchError SPY340 if that names none."""
        functions = self.functions
        if name is None and len(functions) == 1:
            return next(iter(functions.values()))
        if name in functions:
            return functions[name]
        message = f"there is no function {name}" if name else "which function is to run?"
        place, expected = self.module.locate(0), f"--function with one of {', '.join(functions)}"
        raise LaunchError("SPY340", message, place, expected=expected, found=name or "none")

    def arguments(self, name: str | None = None) -> tuple[KtirArgument, ...]:
        """Return a function's arguments in order. BundleError SPY193 for tiles as arguments."""
        function = self.function(name)
        for parameter in function.parameters:
            if parameter.type.kind not in _RUNNABLE or function.results:
                raise BundleError(
                    "SPY193", f"function {function.name} cannot be run",
                    self.module.locate(parameter.position),
                    expected="arguments that are scalars, and no results",
                    found=f"%{parameter.name}: {parameter.type}",
                )  # fmt: skip
        return _arguments(function)

    def grid(self, name: str | None = None) -> tuple[int, ...]:
        """Extents of a function's grid."""
        return grid_of(self.function(name))[0]

    def __str__(self) -> str:
        return print_tiles(self.module)


def _arguments(function: TileFunction) -> tuple[KtirArgument, ...]:
    """The arguments, by the views whose addresses they are, found by walking the function once."""
    names = [p.name for p in function.parameters]
    bases: dict[str, set[str]] = {name: {name} for name in names}
    views: dict[str, list[TileOp]] = {name: [] for name in names}
    read: set[str] = set()
    stored: set[str] = set()
    for op in function.walk():
        fields, space = op.fields, op.memory_space
        if op.name.startswith(("arith.", "ktdp.construct_", "ktdp.runtime_arg")):
            used = next((fields[key] for key in ("view", "views", "base") if key in fields), None)
            every = [*op.uses()] if used is None else names_in(used)
            origins = {origin for name in every for origin in bases.get(name, ())}
            bases |= dict.fromkeys(op.results, origins)
            for subscript in fields.get("subscripts", ()):
                read |= bases.get(subscript.view or "", set())
            if op.name == "ktdp.construct_memory_view" and not (space and space.is_local):
                for origin in origins:
                    views[origin].append(op)
        elif "tile" in fields:
            target = stored if op.name == "ktdp.store" else read
            target |= bases.get(fields["tile"], set())
    found = []
    for parameter in function.parameters:
        name, type_, own = parameter.name, parameter.type, views[parameter.name]
        types = [view.fields["!result"] for view in own]
        is_known = bool(own) and not any(None in t.shape for t in types)
        is_alone = is_known and all(view.fields["base"] == name for view in own)
        found.append(KtirArgument(
            name, types[0].element if own else type_.element or type_.kind, bool(own),
            max((t.shape for t in types), key=prod) if is_alone else None,
            bool(own) and name in read, bool(own) and name in stored,
        ))  # fmt: skip
    return tuple(found)


def load_ktir(source: str | os.PathLike[str]) -> KtirProgram:
    """Read a KTIR program: a text, or the path of a file.

    MlirSyntaxError with file:line:column where it does not follow the language; `check` finds
    contradictions to its meaning.
    """
    if isinstance(source, str) and ("\n" in source or "{" in source):
        return KtirProgram(parse_tiles(source, "text.ktir"))
    path = Path(source)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BundleError("SPY341", f"{path} cannot be read: {reason}") from None
    return KtirProgram(parse_tiles(text, str(path)))
