"""Requirements of a checkout of torch-spyre, read from its files without importing them: the torch
version, the commit, and the names of ``torch_spyre._C`` that its Python uses.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spyre.frontend.activation import EXTENSION, PACKAGE

TORCH = "2.13"
FIRST, LAST = ("2026-07-29", "754839c"), ("2026-08-19", "9e0a3d8")
SUPPORTED = f"commits of {FIRST[0]} ({FIRST[1]}) to {LAST[0]} ({LAST[1]}), torch {TORCH}"
_IMPORT_IN_TEXT = re.compile(r"from torch_spyre\._C import ([\w ,]+)")


Use = tuple[str, str, ast.Call | None]
"""A name of the extension, file and line, and its call, if it is one."""


def torch_pin(checkout: Path) -> str:
    """The requirement on torch in pyproject.toml, such as ``~=2.13.0``; empty without one."""
    path = checkout / "pyproject.toml"
    project = tomllib.loads(path.read_text()).get("project", {}) if path.is_file() else {}
    pins = [r.replace(" ", "")[5:] for r in project.get("dependencies", ()) if r[:5] == "torch"]
    return next((pin for pin in pins if not pin[:1].isalpha()), "")


def commit(checkout: Path) -> tuple[str, str] | None:
    """Return date and short hash of a checkout's commit; None where git does not know them."""
    if not (checkout / ".git").exists() or shutil.which("git") is None:
        return None
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%cs %h"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    date, _, number = done.stdout.strip().partition(" ")
    return (date, number) if number else None


def missing(package: Path) -> list[str]:
    """A sentence per name that a package's Python uses and the extension has not, or not so."""
    exports = _exports()
    found: dict[str, str] = {}
    for name, place, call in uses(package):
        if name not in exports:
            found.setdefault(name, f"{EXTENSION} has no {name}: {place}")
        elif call is not None and not _binds(exports[name], call):
            text = ast.unparse(call)
            found.setdefault(text, f"{EXTENSION} does not take {text}: {place}")
    return list(found.values())


def _exports() -> dict[str, Any]:
    """All members of the extension; no device is registered for it."""
    loads = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        from spyre.frontend.extension import EXPORTS
    finally:
        os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = loads
    return EXPORTS | {"_logging": None}


def _binds(function: Any, call: ast.Call) -> bool:
    named = {str(keyword.arg): None for keyword in call.keywords}
    if any(isinstance(a, ast.Starred) for a in call.args) or "None" in named:
        return True
    try:
        inspect.signature(function).bind(*call.args, **named)
    except TypeError:
        return False
    return True


def uses(package: Path) -> Iterator[Use]:
    """Names of the extension in the Python files of a folder, in generated code too."""
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        if "_C" in text:
            place = path.relative_to(package.parent)
            nodes = sorted(ast.walk(ast.parse(text)), key=lambda node: getattr(node, "lineno", 0))
            yield from _uses_in(nodes, str(place))


def _uses_in(nodes: list[ast.AST], file: str) -> Iterator[Use]:
    modules, names = _imported(nodes)
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        line = f"{file}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and _is_extension(node):
            yield from ((each.name, line, None) for each in node.names)
        elif isinstance(node, ast.Name) and node.id in names and id(node) in calls:
            yield names[node.id], line, calls[id(node)]
        elif isinstance(node, ast.Attribute) and _is_module(node.value, modules):
            yield node.attr, line, calls.get(id(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for listed in _IMPORT_IN_TEXT.findall(node.value):
                yield from ((part.split()[0], line, None) for part in listed.split(","))


def _imported(nodes: list[ast.AST]) -> tuple[set[str], dict[str, str]]:
    """Local names of the extension itself, and those of its members."""
    modules: set[str] = {EXTENSION}
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {each.asname or "" for each in node.names if each.name == EXTENSION}
        elif isinstance(node, ast.ImportFrom):
            imported = {each.asname or each.name: each.name for each in node.names}
            if _is_extension(node):
                names |= imported
            elif node.module == PACKAGE or node.level:
                modules |= {local for local, name in imported.items() if name == "_C"}
    return modules, names


def _is_extension(node: ast.ImportFrom) -> bool:
    return node.module == EXTENSION or (node.level > 0 and node.module == "_C")


def _is_module(value: ast.expr, modules: set[str]) -> bool:
    """Whether an expression is the extension: ``_C`` by import, or in an attribute."""
    if isinstance(value, ast.Name):
        return value.id in modules
    is_member = isinstance(value, ast.Attribute) and value.attr == "_C"
    return is_member and ast.unparse(value) != "torch._C"
