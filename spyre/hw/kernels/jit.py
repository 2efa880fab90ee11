"""How kernels are compiled: numba options, the entry signature, the functions that Python calls.

Without fast math: LLVM may then neither reassociate nor fuse nor take estimates, so that every
processor computes the same bits; products and sums are fused only by `.intrinsics.multiply_add`.

The result is an object file with one symbol, which needs the C library and CPython but nothing of
numba: processes that load it (:mod:`.machine_code`) do not import numba.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import carray, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.registry import CPUDispatcher, cpu_target
from numba.np.arrayobj import make_array, populate_array

from spyre.hw import plan_table as tb
from spyre.hw.kernels import intrinsics
from spyre.hw.kernels.machine_code import ADD_ALL, CHECKED_DRIVER, COMBINE, PLACES

F = TypeVar("F", bound=Callable[..., Any])

ENTRY_SIGNATURE = types.int64(*([types.int64] * 6))
"""entry(table, bases, memory, scratch: pointers; first, last: units) -> 0 or fault word."""

_WORDS, _ROWS = types.int64[::1], types.int64[:, ::1]
_ARGUMENTS = {
    "driver.drive": (_ROWS, _ROWS, _WORDS, *[types.int64] * 6, _WORDS),
    "driver.place_dispatches": (_ROWS, types.int32[:, ::1], _WORDS, _ROWS, _ROWS),
    "fusion.find_chains": (_ROWS, _ROWS),
    "pool.run_job": (types.int64,) * 8,
    "pool.serve": (types.int64,) * 3,
    "transfer.run_transfer": (types.int64,) * 6,
    COMBINE: (types.int64,) * 7,
    ADD_ALL: (types.int64, _WORDS, *[types.int64] * 2),
}
"""Types of the arguments of functions that Python calls. Arrays are contiguous."""
_ARGUMENTS[CHECKED_DRIVER] = (
    *_ARGUMENTS["driver.drive"], *[_WORDS] * 2, *[_ROWS] * 3, *[_WORDS] * 3,
    types.int64[:, :, ::1], *[types.uint32[::1]] * 2, types.int64,
)  # fmt: skip


class LinkedLibrary(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function as kernels call it: linked into each of them, without machine code.

    Its environment, which serves Python objects, is unused.
    """

    @property
    def codegen(self) -> LinkedLibrary:
        """The object that numba sets environments on."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Ignore it: kernels use no Python objects."""

    def _optimize_final_module(self) -> None:
        """Do nothing: each `ObjectLibrary` is optimised as a whole, once."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True


class LinkedCompiler(Compiler):  # type: ignore[misc]
    """numba's, into a `LinkedLibrary`."""

    library = LinkedLibrary

    def compile_extra(self, function: Any) -> Any:
        self.state.library = self.library(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)


_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
_LINKED = {"pipeline_class": LinkedCompiler, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class KernelFunction(CPUDispatcher):  # type: ignore[misc]
    """A function (of arrays and integers only) that numba compiles into the kernels calling it.

    Called from Python, as tests do, it is compiled in every process.
    """

    @cached_property
    def _linked(self) -> Any:
        """The function as other kernels call it."""
        return numba.njit(**_OPTIONS, **_LINKED)(self.py_func)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # for the types of the arguments, not for their constant values: LLVM propagates these once
        # the function is inlined
        return self._linked.get_call_template(tuple(map(types.unliteral, args)), kws)

    def get_overload(self, signature: Any) -> Any:
        return self._linked.get_overload(signature)


def kernel(function: F) -> F:
    """Compile a kernel body when it is first called, see `KernelFunction`."""
    return KernelFunction(function, targetoptions={"nopython": True, **_OPTIONS})


def inline(function: F) -> F:
    """Compile a small function that is inlined into the kernels calling it."""
    result: F = numba.njit(inline="always", error_model="numpy")(function)
    return result


def entry(kernel: Callable[..., Any], reports_faults: bool = False) -> Callable[..., int]:
    """The C entry of a function under `kernel`, before it is compiled; see `tb.entry_source`."""
    function = kernel.py_func  # type: ignore[attr-defined]
    name, code = f"run_{function.__name__}", function.__code__
    source = tb.entry_source(name, code.co_varnames[: code.co_argcount], reports_faults)
    pointers = {key: value for key, value in vars(intrinsics).items() if key.startswith("pointer_")}
    names = {**pointers, "carray": carray, "kernel": kernel, "__name__": function.__module__}
    exec(compile(source, code.co_filename, "exec"), names)
    made: Callable[..., int] = names[name]
    return made


# --- object files -----------------------------------------------------------------------------

_MEMORY = """
declare ptr @malloc(i64)
declare void @free(ptr)
define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %ignored) noinline {
  %head = add i64 64, 48
  %whole = add i64 %size, %head
  %block = call ptr @malloc(i64 %whole)
  %none = icmp eq ptr %block, null
  br i1 %none, label %end, label %fill
fill:
  store i64 1, ptr %block
  %start = ptrtoint ptr %block to i64
  %past = add i64 %start, %head
  %at = and i64 %past, -64
  %data = inttoptr i64 %at to ptr
  %place = getelementptr i8, ptr %block, i64 24
  store ptr %data, ptr %place
  br label %end
end:
  ret ptr %block
}
define void @NRT_MemInfo_call_dtor(ptr %block) noinline {
  call void @free(ptr %block)
  ret void
}
"""
"""The memory of arrays that kernels make, in place of numba's runtime: a reference count, at byte
24 the address of the elements, and from byte 48 on the elements. They begin with a line of the
cache, which numba does not ask for: a vector that begins within a line is read as two."""
_EXTERNAL = frozenset(
    {
        "malloc", "free", "memset", "memcpy", "memmove", "sqrtf", "sem_wait", "sem_post",
        "sched_yield", "PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_NoMemory",
        "PyErr_BadArgument", "PyLong_AsLongLong", "PyLong_FromLongLong",
    }
)  # fmt: skip
"""Functions of the process that object files call."""


class ObjectLibrary(LinkedLibrary):
    """The code of a function that becomes an object file, with all that it calls.

    ``symbol``: the one name that stays visible. ``module``: the optimised LLVM module.
    """

    symbol = ""
    code = module = b""

    def _finalize_final_module(self) -> None:
        super()._finalize_final_module()
        module = self._final_module
        passes, builder = self._codegen._module_pass_manager()
        passes.run(module, builder)
        for each in (*module.functions, *module.global_variables):
            if not each.is_declaration and each.name != self.symbol:
                each.linkage = "internal"
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(module, builder)
        used = {f.name for f in module.functions if f.is_declaration}
        unknown = {name for name in used - _EXTERNAL if not name.startswith("llvm.")}
        if unknown or self._dynamic_globals:
            found = ", ".join(sorted(unknown.union(self._dynamic_globals)))
            raise NotImplementedError(f"{self.symbol} cannot be an object file: it needs {found}")
        self.code, self.module = self._codegen._tm.emit_object(module), module.as_bitcode()


class ObjectCompiler(LinkedCompiler):
    """numba's, into an `ObjectLibrary`."""

    library = ObjectLibrary


class _ObjectFunction(_FunctionCompiler):  # type: ignore[misc]
    """numba's compiler of a function, up to its LLVM code."""

    def _customize_flags(self, flags: Any) -> Any:
        flags.no_cpython_wrapper = flags.no_cfunc_wrapper = flags.no_compile = True
        flags.enable_pyobject = False
        return flags


def compile_object(place: str) -> tuple[bytes, bytes]:
    """Compile the function ``place`` (module and name); returns the same as `object_of`."""
    module, _, name = place.rpartition(".")
    function = getattr(import_module(module), name)
    short = next(short for short, each in PLACES.items() if each == place)
    return object_of(getattr(function, "py_func", function), _ARGUMENTS.get(short), place)


def object_of(function: Any, arguments: Any, symbol: str) -> tuple[bytes, bytes]:
    """Compile a function; returns an object file and the optimised LLVM module it is made of.

    ``arguments``: types of those that Python passes, None for a kernel's entry. NotImplementedError
    if it needs something of numba's runtime.
    """
    with global_compiler_lock:
        options = {"nopython": True, **(_OPTIONS if arguments else {})}
        compiler = _ObjectFunction(function, cpu_target, options, {}, ObjectCompiler)
        if arguments is None:
            made = compiler.compile(ENTRY_SIGNATURE.args, ENTRY_SIGNATURE.return_type)
            wrapper = _c_function(made, symbol)
        else:
            made = compiler.compile(arguments, None)
            wrapper = _python_function(made, symbol)
        library = made.library
        library.symbol = symbol
        library.add_ir_module(wrapper)
        library.add_llvm_module(llvm.parse_assembly(_MEMORY))
        library.finalize()
    return library.code, library.module


_BYTE, _WORD = ir.IntType(8).as_pointer(), ir.IntType(64)


def _call(made: Any, b: Any, values: Sequence[Any]) -> Any:
    """Call the function that numba made; its status and its result."""
    names, convention = made.fndesc, made.target_context.call_conv
    kind = convention.get_function_type(names.restype, names.argtypes)
    function = ir.Function(b.module, kind, names.llvm_func_name)
    return convention.call_function(b, function, names.restype, names.argtypes, values)


def _c_function(made: Any, symbol: str) -> Any:
    """LLVM module of a C function that returns NO_MEMORY where memory is too small."""
    module = made.target_context.create_module(symbol)
    kind = ir.FunctionType(_WORD, [_WORD] * len(ENTRY_SIGNATURE.args))
    function = ir.Function(module, kind, symbol)
    b = ir.IRBuilder(function.append_basic_block())
    status, result = _call(made, b, function.args)
    b.ret(b.select(status.is_error, _WORD(tb.NO_MEMORY), result))
    return module


def _python_function(made: Any, symbol: str) -> Any:
    """LLVM module of a function under CPython's METH_FASTCALL, which works without the GIL.

    MemoryError where memory is too small, TypeError for another number of arguments.
    """
    context, kinds, result_kind = made.target_context, made.fndesc.argtypes, made.fndesc.restype
    module = context.create_module(symbol)
    fastcall = ir.FunctionType(_BYTE, [_BYTE, _BYTE.as_pointer(), _WORD])
    function = ir.Function(module, fastcall, symbol)
    b = ir.IRBuilder(function.append_basic_block())

    def call(name: str, result: Any, *given: Any) -> Any:
        kind = ir.FunctionType(result, [each.type for each in given])
        return b.call(ir.Function(module, kind, name), given)

    _, items, count = function.args
    with b.if_then(b.icmp_signed("!=", count, _WORD(len(kinds))), likely=False):
        call("PyErr_BadArgument", ir.IntType(32))
        b.ret(_BYTE(None))
    as_word = ir.Function(module, ir.FunctionType(_WORD, [_BYTE]), "PyLong_AsLongLong")
    values = []
    for k, kind in enumerate(kinds):
        given = b.load(b.gep(items, [_WORD(k)]))
        is_array = isinstance(kind, types.Array)
        values += [_array_value(context, b, kind, given) if is_array else b.call(as_word, [given])]
    thread = call("PyEval_SaveThread", _BYTE)
    status, result = _call(made, b, values)
    call("PyEval_RestoreThread", ir.VoidType(), thread)
    with b.if_then(status.is_error, likely=False):
        b.ret(call("PyErr_NoMemory", _BYTE))
    if result_kind == types.none:
        result = _WORD(0)
    number = result if result.type == _WORD else b.zext(result, _WORD)
    b.ret(call("PyLong_FromLongLong", _BYTE, number))
    return module


_DATA = object.__basicsize__
_SHAPE, _STRIDES = _DATA + 16, _DATA + 24
"""Bytes from the start of a numpy array to its fields, which numpy's ABI fixes."""


def _array_value(context: Any, b: Any, kind: Any, array: Any) -> Any:
    """numba's form of a numpy array, without a reference to it."""

    def field(offset: int, of: Any) -> Any:
        return b.load(b.bitcast(b.gep(array, [_WORD(offset)]), of.as_pointer()))

    def words(offset: int) -> list[Any]:
        first = field(offset, _WORD.as_pointer())
        return [b.load(b.gep(first, [_WORD(k)])) for k in range(kind.ndim)]

    made, bytes_each = make_array(kind)(context, b), kind.dtype.bitwidth // 8
    data = field(_DATA, context.get_data_type(kind.dtype).as_pointer())
    populate_array(made, data, words(_SHAPE), words(_STRIDES), bytes_each, meminfo=None)
    return made._getvalue()
