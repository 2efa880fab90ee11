"""A KTIR text as a program: functions, their arguments, findings, the printed text."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

from spyre.errors import BundleError, Finding, LaunchError
from spyre.mlir.tiles.checker import check_tiles
from spyre.mlir.tiles.forms import print_tiles
from spyre.mlir.tiles.parser import parse_tiles
from spyre.mlir.tiles.rules import grid_of
from spyre.mlir.tiles.syntax import INTEGERS, TileFunction, TileModule, TileOp

_RUNNABLE = (*INTEGERS, "f16", "bf16", "f32", "runtime_arg")


@dataclass(frozen=True, slots=True)
class KtirArgument:
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


@dataclass(frozen=True)
class KtirProgram:
    """A text of KTIR. Equal programs have equal trees; ``str(program)`` is the text of the tree."""

    module: TileModule

    @property
    def functions(self) -> dict[str, TileFunction]:
        """Its functions by name."""
        return {function.name: function for function in self.module.functions}

    def check(self) -> tuple[Finding, ...]:
        """Return the findings on the text that do not depend on a launch."""
        return check_tiles(self.module)

    def function(self, name: str | None = None) -> TileFunction:
        """The function ``name``, or the only one; LaunchError SPY340 if that names none."""
        functions = self.functions
        if name is None and len(functions) == 1:
            return next(iter(functions.values()))
        if name is None or name not in functions:
            message = (
                "which function is to run?" if name is None else f"there is no function {name}"
            )
            raise LaunchError(
                "SPY340", message, self.module.locate(0),
                expected=f"--function with one of {', '.join(functions)}", found=name or "none",
            )  # fmt: skip
        return functions[name]

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
        uses = _Uses(function)
        return tuple(
            uses.argument(p.name, p.type.element or p.type.kind) for p in function.parameters
        )

    def grid(self, name: str | None = None) -> tuple[int, ...]:
        """Extents of a function's grid."""
        return grid_of(self.function(name))[0]

    def __str__(self) -> str:
        return print_tiles(self.module)


class _Uses:
    """Which arguments are addresses of which views, found by walking the function once."""

    def __init__(self, function: TileFunction) -> None:
        self.bases: dict[str, set[str]] = {p.name: {p.name} for p in function.parameters}
        self.views: dict[str, list[TileOp]] = {}
        self.read: set[str] = set()
        self.stored: set[str] = set()
        for op in function.walk():
            self._visit(op)

    def _visit(self, op: TileOp) -> None:
        origins: set[str] = set()
        operands = op.fields.get("views", ()) or (
            [op.fields["base"]] if "base" in op.fields else [*op.uses()]
        )
        if op.name.startswith(("arith.", "ktdp.construct_", "ktdp.runtime_arg")):
            used = operands if "view" not in op.fields else [op.fields["view"]]
            origins = {o for name in used for o in self.bases.get(name, ())}
            for subscript in op.fields.get("subscripts", ()):
                self.read.update(self.bases.get(subscript.view or "", ()))
        for name in op.results:
            self.bases[name] = origins
        is_local = op.memory_space is not None and op.memory_space.is_local
        if op.name == "ktdp.construct_memory_view" and not is_local:
            for origin in origins:
                self.views.setdefault(origin, []).append(op)
        target = self.bases.get(op.fields.get("tile", ""), ())
        (self.stored if op.name == "ktdp.store" else self.read).update(target)

    def argument(self, name: str, element: str) -> KtirArgument:
        views = self.views.get(name, [])
        if not views:
            return KtirArgument(name, element, False)
        types = [view.fields["!result"] for view in views]
        sizes = [t.shape for t in types if None not in t.shape]
        largest = max(sizes, key=prod) if len(sizes) == len(types) else None
        is_alone = all(view.fields["base"] == name for view in views)
        return KtirArgument(
            name, types[0].element, True, largest if is_alone else None,
            name in self.read, name in self.stored,
        )  # fmt: skip


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
