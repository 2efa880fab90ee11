"""The import contract of folders: outside of a folder, its names are imported from the folder.

``__init__.pyi`` lists the names that a folder offers; `lazy_loader` imports the module of a name at
the name's first use. A folder without this file is internal to its package: modules of the package
import from its modules directly, others may not. Modules beside folders, such as
``spyre.mlir.bundle`` beside ``spyre.mlir.sdsc``, may be imported from anywhere.

``lint-imports`` calls this (pyproject.toml, ``contract_types``).
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

ROOT = Path(__file__).parents[1]


@cache
def offered(folder: str) -> frozenset[str]:
    """Return the names in the stub of a folder, or an empty set without one."""
    stub = _stub(folder)
    if not stub.is_file():
        return frozenset()
    statements = ast.parse(stub.read_text(encoding="utf-8")).body
    froms = (statement for statement in statements if isinstance(statement, ast.ImportFrom))
    return frozenset(alias.name for statement in froms for alias in statement.names)


def _stub(folder: str) -> Path:
    return ROOT.joinpath(*folder.split("."), "__init__.pyi")


def deep_imports(graph: ImportGraph) -> list[tuple[str, str]]:
    """Return (importer, imported) for each import from within another folder."""
    own = {module for module in graph.modules if module.split(".")[0] == "spyre"}
    packages = {module for module in own if graph.find_children(module)}
    with_folders = {module for module in packages if packages & graph.find_children(module)}
    broken = []
    for imported in own - packages:
        folder, _, name = imported.rpartition(".")
        # A name in the stub may be a module, or a function in a module of the same name.
        if folder in with_folders or name in offered(folder):
            continue
        importers = graph.find_modules_that_directly_import(imported)
        home = folder if _stub(folder).is_file() else folder.rpartition(".")[0]
        outside = (m for m in importers if m != home and not m.startswith(f"{home}."))
        broken += [(importer, imported) for importer in outside]
    return sorted(broken)


class FacesContract(Contract):
    """Kept if no module imports from within another folder."""

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Check every direct import of the graph, also inside functions and for types."""
        broken = deep_imports(graph)
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: Any) -> None:
        """Print a line per broken import."""
        for importer, imported in check.metadata["broken"]:
            output.print_error(f"{importer} imports {imported}: use {imported.rpartition('.')[0]}")
