"""Kernels as plain Python over numpy: their own source, read and rewritten, not compiled.

The functions under ``@kernel`` and ``@inline`` are taken from the source of a module of kernels,
with the names they use. A loop over elements becomes one statement over whole arrays if its steps
do not depend on each other; other loops remain loops of Python. `.machine` replaces the intrinsics
of LLVM. numba is not imported, and there is no second text of any formula or order of sums, so the
bits are the same, except that the choice among several NaN operands depends on the instructions
that LLVM selects.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from spyre.cache import PACKAGE
from spyre.hw.interpreter import machine

_KERNELS = "spyre.hw.kernels."
_BELOW = frozenset(
    _KERNELS + name
    for name in ("jit", "intrinsics", "dl16_vectors", "dl16_functions", "microkernel", "pool")
)
"""Modules replaced by `.machine`, and the thread pool, which is not used."""
_COMPILED = frozenset({"kernel", "inline"})
_SELECT = "select_elements"
_ELEMENTWISE = "is_elementwise"

Namespace = dict[str, Any]

_reading = threading.RLock()
"""CPython 3.11 counts the depth of a syntax tree for all threads at once, and raises a SystemError
if they take turns while they parse."""


@cache
def kernels_of(module: str) -> Namespace:
    """Names of a module of kernels, such as ``spyre.hw.kernels.blocks``, as Python functions."""
    path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    found: Namespace = {
        **{name: getattr(machine, name) for name in machine.OFFERED},
        _SELECT: select_elements,
        "__name__": module,
    }
    with _reading:
        for statement in ast.parse(path.read_text(), str(path)).body:
            _take(statement, found, str(path))
    found.update(machine.IN_PLACE_OF.get(module, {}))
    return found


def select_elements(condition: Any, yes: Any, no: Any) -> Any:
    """``yes if condition else no``, of arrays element by element."""
    if isinstance(condition, np.ndarray) and condition.ndim:
        return np.where(condition, yes, no)
    return yes if condition else no


def _take(statement: ast.stmt, found: Namespace, path: str) -> None:
    """Execute one top-level statement of a module."""
    if isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        if module in _BELOW or module.partition(".")[0] in ("numba", "llvmlite", "__future__"):
            return
        if module.startswith(_KERNELS):
            names = kernels_of(module)
            found.update({each.asname or each.name: names[each.name] for each in statement.names})
        else:
            _execute(statement, found, path)
    elif isinstance(statement, ast.FunctionDef):
        _define(statement, found, path)
    elif isinstance(statement, (ast.Import, ast.Assign, ast.AnnAssign)):
        _execute(statement, found, path)


def _execute(statement: ast.stmt, found: Namespace, path: str) -> None:
    tree = ast.Module([statement], [])
    exec(compile(ast.fix_missing_locations(tree), path, "exec"), found)


def _define(function: ast.FunctionDef, found: Namespace, path: str) -> None:
    decorators = {d.id for d in function.decorator_list if isinstance(d, ast.Name)}
    if "intrinsic" in decorators:
        return  # `.machine` has its namesake
    function.decorator_list.clear()
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    if "inline" in decorators:
        _Selections(None).visit(function)
    elif decorators & _COMPILED:
        _Loops(found).visit(function)
    _execute(function, found, path)
    branches = (ast.If, ast.For, ast.While)
    is_straight = not any(isinstance(node, branches) for node in ast.walk(function))
    setattr(found[function.name], _ELEMENTWISE, is_straight and bool(decorators & _COMPILED))


# --- rewriting --------------------------------------------------------------------------------


class _Selections(ast.NodeTransformer):
    """Conditional expressions, of ``names`` if given, become calls of `select_elements`."""

    def __init__(self, names: set[str] | None) -> None:
        self._names = names

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        if self._names is not None and not _mentions(node.test, self._names):
            return node
        return ast.Call(_name(_SELECT), [node.test, node.body, node.orelse], [])


class _Loops(ast.NodeTransformer):
    """Loops whose steps do not depend on each other become statements over arrays."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self._known = known

    def visit_For(self, node: ast.For) -> Any:
        is_innermost = not any(
            isinstance(inner, ast.For) for s in node.body for inner in ast.walk(s)
        )
        self.generic_visit(node)
        bounds = _bounds(node)
        if bounds is None or not is_innermost or not isinstance(node.target, ast.Name):
            return node
        loop = _Elements(node.target.id, self._known)
        return _statements(node, bounds, loop.names) if loop.allows(node.body) else node


class _Elements:
    """Decides if a loop body may run for all elements at once. ``names``: variables that differ
    between elements."""

    def __init__(self, element: str, known: Mapping[str, Any]) -> None:
        self._element, self._known = element, known
        self.names = {element}
        self._set: set[str] = set()
        self._loads: set[tuple[str, str]] = set()
        self._stores: dict[str, ast.expr] = {}

    def allows(self, body: Sequence[ast.stmt]) -> bool:
        """True if the body of a loop may; fills ``names``."""
        assigned = {n.id for s in body for n in ast.walk(s) if _is_stored(n)}  # type: ignore[attr-defined]
        return self._are_allowed(body, assigned) and all(
            self._is_own(index)
            for array, index in self._stores.items()
            if any(name == array for name, _ in self._loads)
        )

    def _is_own(self, index: ast.expr) -> bool:
        """True if an index differs for every element, and all the array's loads use the same."""
        parts = (index.left, index.right) if _is_sum(index) else (index,)  # type: ignore[attr-defined]
        own = [isinstance(part, ast.Name) and part.id == self._element for part in parts]
        rest = [p for p, is_own in zip(parts, own, strict=True) if not is_own]
        if sum(own) != 1 or any(_mentions(part, self.names) for part in rest):
            return False
        places = {array: ast.dump(place) for array, place in self._stores.items()}
        return all(place == places.get(array, place) for array, place in self._loads)

    def _are_allowed(self, body: Sequence[ast.stmt], assigned: set[str]) -> bool:
        return all(self._is_allowed(statement, assigned) for statement in body)

    def _is_allowed(self, statement: ast.stmt, assigned: set[str]) -> bool:
        if isinstance(statement, ast.If):
            branches = (statement.body, statement.orelse)
            return not _mentions(statement.test, self.names) and all(
                self._are_allowed(branch, assigned) for branch in branches
            )
        if isinstance(statement, ast.AugAssign):
            return self._is_value(statement.value, assigned) and self._adds(statement.target)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        if not self._is_value(statement.value, assigned):
            return False
        return self._stores_into(statement.targets[0], statement.value)

    def _adds(self, target: ast.expr) -> bool:
        if not isinstance(target, ast.Subscript) or not self._stores_into(target, target):
            return False
        self._loads.add((_array(target), ast.dump(target.slice)))
        return True

    def _stores_into(self, target: ast.expr, value: ast.expr) -> bool:
        if isinstance(target, ast.Subscript):
            array = _array(target)
            is_new = array not in self._stores
            self._stores.setdefault(array, target.slice)
            same = ast.dump(self._stores[array]) == ast.dump(target.slice)
            return bool(array) and _mentions(target.slice, self.names) and (is_new or same)
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(name, ast.Name) for name in names):
            return False
        ids = {name.id for name in names}  # type: ignore[attr-defined]
        self._set |= ids
        if _mentions(value, self.names):
            self.names |= ids
        return True

    def _is_value(self, value: ast.expr, assigned: set[str]) -> bool:
        """True if an expression may be evaluated for all elements at once."""
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id in assigned - self._set:
                return False  # a value of the previous step
            if isinstance(node, ast.Subscript):
                self._loads.add((_array(node), ast.dump(node.slice)))
            if not _mentions(node, self.names):
                continue
            alone = (ast.BoolOp, ast.Slice, ast.ListComp, ast.GeneratorExp, ast.Starred)
            if isinstance(node, alone) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
                return False
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                return False
            if isinstance(node, ast.Call) and not self._is_elementwise(node.func):
                return False
        return True

    def _is_elementwise(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Attribute):
            return isinstance(function.value, ast.Name) and function.value.id == "np"
        called = self._known.get(function.id) if isinstance(function, ast.Name) else None
        if isinstance(called, type):
            return issubclass(called, np.generic)
        return bool(getattr(called, _ELEMENTWISE, False)) or called in machine.ELEMENTWISE


def _statements(
    loop: ast.For, bounds: tuple[ast.expr, ast.expr], names: set[str]
) -> list[ast.stmt]:
    """The body of ``loop`` for all elements at once, between ``bounds``."""
    element = loop.target.id  # type: ignore[attr-defined]
    low, high = f"{element}_low", f"{element}_high"
    whole = _Slices(element, low, high)
    # selections first: slices no longer contain the name of the element
    body = [whole.visit(_Selections(names).visit(statement)) for statement in loop.body]
    end = ast.Call(_name("max"), [bounds[1], _name(low)], [])
    prepared: list[ast.stmt] = [_set(low, bounds[0]), _set(high, end)]
    if any(_mentions(statement, {element}) for statement in body):
        places = ast.Attribute(_name("np"), "arange", ast.Load())
        prepared.append(_set(element, ast.Call(places, [_name(low), _name(high)], [])))
    return [ast.copy_location(statement, loop) for statement in (*prepared, *body)]


class _Slices(ast.NodeTransformer):
    """``x[i]`` becomes a slice, which is no copy."""

    def __init__(self, element: str, low: str, high: str) -> None:
        self._element, self._low, self._high = element, low, high

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Name) and node.slice.id == self._element:
            node.slice = ast.Slice(_name(self._low), _name(self._high))
        return node


def _bounds(node: ast.For) -> tuple[ast.expr, ast.expr] | None:
    """First and end of a loop over a range of step 1."""
    call = node.iter
    is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    if not is_range or call.func.id != "range" or len(call.args) > 2:  # type: ignore[attr-defined]
        return None
    *first, end = call.args  # type: ignore[attr-defined]
    return (first[0] if first else ast.Constant(0)), end


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _array(node: ast.Subscript) -> str:
    """Name of the subscripted array, "" for other expressions."""
    return node.value.id if isinstance(node.value, ast.Name) else ""


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _set(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


Kernel = Callable[[int, int, int, int, int, int], int]
"""A kernel with the signature `spyre.hw.kernels.jit.ENTRY_SIGNATURE`."""


@cache
def interpreted(entry: str) -> Kernel:
    """The kernel whose entry has this dotted name of `spyre.hw.plan_table.KERNELS`."""
    module, _, name = entry.rpartition(".")
    found: Kernel = kernels_of(module)[name]
    return found
