"""Lowering and schedules: golden prints, a slow twin for the arrays, and refused launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from spyre.errors import BundleError, LaunchError, ValidationError
from spyre.mlir.program.affine import INTEGERS, AffineDim, AffineMap, AffineSymbol, fold
from spyre.mlir.program.program import LoopProgram
from spyre.mlir.text.lowering import lower
from spyre.mlir.text.parser import parse_module
from spyre.mlir.text.syntax import (
    AddIOp,
    ApplyOp,
    ArgumentField,
    ConstantOp,
    ExecuteOp,
    ExtractOp,
    ForOp,
    Function,
    FunctionParameter,
    InputArgType,
    Module,
    Statement,
)
from tests.examples import examples

GOLDEN = Path(__file__).parent / "golden"
ADDRESS = "!sdscbundle.input_arg<index>"
TILED = f"""
#map_0 = affine_map<(d0, d1)[s0] -> (s0 + 65536*d0 + 2097152*d1)>
module {{
  func.func @sdsc_bundle(%a: {ADDRESS}, %b: {ADDRESS}, %c: {ADDRESS}, %z: {ADDRESS}) {{
    %a_base = sdscbundle.input_arg_extract value from %a : {ADDRESS} -> index
    %b_base = sdscbundle.input_arg_extract value from %b : {ADDRESS} -> index
    %c_base = sdscbundle.input_arg_extract value from %c : {ADDRESS} -> index
    %z_base = sdscbundle.input_arg_extract value from %z : {ADDRESS} -> index
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %loop_bound_0 = arith.constant 2 : index
    %loop_bound_1 = arith.constant 4 : index
    scf.for %i_0 = %c0 to %loop_bound_0 step %c1 {{
      scf.for %i_1 = %c0 to %loop_bound_1 step %c1 {{
        %addr_0 = affine.apply #map_0(%i_0, %i_1)[%a_base]
        %addr_1 = affine.apply #map_0(%i_0, %i_1)[%b_base]
        sdscbundle.sdsc_execute (%addr_0, %addr_1) {{sdsc_filename="sdsc_0.json",
            "symbol_ids"=[-1, -2]}} // add
        %addr_2 = affine.apply #map_0(%i_0, %i_1)[%c_base]
        %addr_3 = affine.apply #map_0(%i_0, %i_1)[%z_base]
        sdscbundle.sdsc_execute (%addr_2, %addr_3) {{sdsc_filename="sdsc_1.json",
            "symbol_ids"=[-3, -4]}} // mul
      }}
    }}
    return
  }}
}}
"""
GENERAL = """
#half = affine_map<(d0)[s0] -> ((d0 ceildiv 2) * 128 + s0 - d0 mod 3)>
func.func @f(%rows: !sdscbundle.input_arg<index, granularity=64, max_value=512>, %k: index) {
  %c0 = arith.constant 0 : index
  %base = sdscbundle.device_mem_allocate 4096 bytes : index
  %n = sdscbundle.input_arg_extract value from %rows : !sdscbundle.input_arg<index> -> index
  %g = sdscbundle.input_arg_extract granularity from %rows : !sdscbundle.input_arg<index> -> index
  %m = sdscbundle.input_arg_extract max_value from %rows : !sdscbundle.input_arg<index> -> index
  sdscbundle.sdsc_execute (%m, %n) {sdsc_filename="a.json", symbol_ids=[-1, -2]}
  scf.for %i = %c0 to %n step %g {
    scf.for %j = %i to %n step %g {
      %x = affine.apply #half(%j)[%base]
      %y = affine.apply affine_map<(d0)[s0] -> (d0 * s0 + d0 floordiv s0)>(%i)[%k]
      sdscbundle.sdsc_execute (%x, %y) {sdsc_filename="b.json", symbol_ids=[-3, -4]}
    }
  }
  sdscbundle.sdsc_execute () {sdsc_filename="c.json"}
  return
}
"""


def program_of(text: str) -> LoopProgram:
    return lower(parse_module(text))


def loop_text(lower_: int, upper: int, step: int, body: str = "", parameters: str = "") -> str:
    execute = 'sdscbundle.sdsc_execute () {sdsc_filename="s.json"}'
    constants = "\n".join(
        f"%{name} = arith.constant {value} : index"
        for name, value in (("lower", lower_), ("upper", upper), ("step", step))
    )
    loop = f"scf.for %i = %lower to %upper step %step {{\n{body or execute}\n}}"
    return f"func.func @f({parameters}) {{\n{constants}\n{loop}\nreturn\n}}"


# --- golden prints and known numbers


@pytest.mark.parametrize(("name", "text"), [("tiled", TILED), ("general", GENERAL)])
def test_programs_print(name: str, text: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.program.txt", str(program_of(text)))


def test_the_tiled_example_has_device_strides() -> None:
    bases = {"a": 0, "b": 1 << 34, "c": 2 << 34, "z": 3 << 34}
    schedule = program_of(TILED).schedule(bases)
    assert schedule.order.tolist() == [0, 1] * 8
    assert schedule.order.dtype == np.int32
    assert schedule.instance.tolist() == [k // 2 for k in range(16)]
    tiles = [(i, j) for i in range(2) for j in range(4)]
    for execute, names in enumerate(("ab", "cz")):
        expected = [[bases[n] + 65536 * i + 2097152 * j for n in names] for i, j in tiles]
        assert schedule.symbols[execute].tolist() == expected
        assert schedule.symbols[execute].dtype == np.int64
        assert schedule.loop_indices[execute].tolist() == [list(tile) for tile in tiles]


def test_runtime_bounds_allocations_and_divisions() -> None:
    schedule = program_of(GENERAL).schedule({"rows": 192, "k": 5}, [1 << 20])
    pairs = [(i, j) for i in range(0, 192, 64) for j in range(i, 192, 64)]
    assert schedule.order.tolist() == [0, *[1] * len(pairs), 2]
    assert schedule.symbols[0].tolist() == [[512, 192]]
    assert schedule.symbols[1].tolist() == [
        [-(-j // 2) * 128 + (1 << 20) - j % 3, i * 5 + i // 5] for i, j in pairs
    ]
    assert schedule.symbols[2].shape == (1, 0)
    assert schedule.loop_indices[1].tolist() == [list(pair) for pair in pairs]
    assert len(schedule) == len(pairs) + 2


def test_equal_expressions_are_equal_values() -> None:
    text = """func.func @f(%p: index, %q: index) {
      %c = arith.constant 4 : index
      %x = arith.addi %p, %q : index
      %y = arith.addi %q, %c : index
      %z = arith.addi %y, %p : index
      %w = affine.apply affine_map<(a, b) -> (b - a + 2 * (a + 2))>(%p, %q)
      sdscbundle.sdsc_execute (%x, %z, %w) {sdsc_filename="s.json", symbol_ids=[-1, -2, -3]}
      return
    }"""
    plain, moved, mapped = program_of(text).executes[0].symbols
    assert moved == mapped
    assert str(plain) == "p + q"
    assert str(mapped) == "p + q + 4"


# --- loops


@pytest.mark.parametrize(
    ("lower_", "upper", "step", "trips"),
    [
        (0, 8, 2, [0, 2, 4, 6]),
        (0, 7, 3, [0, 3, 6]),
        (5, 5, 1, []),
        (9, 2, 1, []),
        (-4, 3, 4, [-4, 0]),
    ],
)
def test_trip_counts(lower_: int, upper: int, step: int, trips: list[int]) -> None:
    schedule = program_of(loop_text(lower_, upper, step)).schedule({})
    assert schedule.loop_indices[0].tolist() == [[trip] for trip in trips]
    assert schedule.loop_indices[0].shape == (len(trips), 1)


def test_an_empty_loop_is_not_run() -> None:
    text = loop_text(0, 2**62, 1, body="%x = arith.addi %i, %i : index")
    assert len(program_of(text).schedule({})) == 0


def test_bounds_at_the_edges_of_int64() -> None:
    low, high = -(2**63), 2**63 - 1
    schedule = program_of(loop_text(low, high, high)).schedule({})
    assert schedule.loop_indices[0].ravel().tolist() == [low, -1, high - 1]


def test_overflow_is_exact_not_wrapped() -> None:
    body = """%x = affine.apply affine_map<(d0)[s0] -> (d0 * 4 - s0)>(%i)[%big]
      %y = affine.apply affine_map<(d0)[s0] -> (d0 + s0)>(%x)[%big]
      sdscbundle.sdsc_execute (%y) {sdsc_filename="s.json", symbol_ids=[-1]}"""
    text = loop_text(2**61, 2**61 + 2, 1, body, "%big: index")
    with pytest.raises(LaunchError) as caught:
        program_of(text).schedule({"big": 5})
    assert (caught.value.code, caught.value.finding.found) == ("SPY157", str(2**63))
    fits = text.replace("d0 * 4 - s0", "d0 * 3 - s0")
    assert program_of(fits).schedule({"big": 5}).symbols[0].tolist() == [
        [3 * 2**61],
        [3 * 2**61 + 3],
    ]


# --- the slow twin


def interpret(
    module: Module, arguments: dict[str, int]
) -> Iterator[tuple[int, list[int], list[int]]]:
    """One statement after the other: (static execute, symbol values, loop variables)."""
    numbers = {id(op): index for index, op in enumerate(module.executes())}
    maps = {alias.name: alias.map for alias in module.aliases}

    def run(
        body: tuple[Statement, ...], values: dict[str, int], indices: list[int]
    ) -> Iterator[tuple[int, list[int], list[int]]]:
        for op in body:
            match op:
                case ConstantOp(result, value):
                    values[result] = value
                case AddIOp(result, left, right):
                    values[result] = values[left] + values[right]
                case ExtractOp(result, _, argument):
                    values[result] = arguments[argument]
                case ApplyOp(result, map_, dims, symbols):
                    found = maps[map_] if isinstance(map_, str) else map_
                    values[result] = fold(
                        found.result,
                        [values[d] for d in dims],
                        [values[s] for s in symbols],
                        INTEGERS,
                    )
                case ForOp(variable, lower_, upper, step, inner):
                    for i in range(values[lower_], values[upper], values[step]):
                        yield from run(inner, {**values, variable: i}, [*indices, i])
                case ExecuteOp(operands):
                    yield numbers[id(op)], [values[o] for o in operands], list(indices)

    index_values = {p.name: arguments[p.name] for p in module.function.parameters if p.type is None}
    yield from run(module.function.body, index_values, [])


MAPS = [
    AffineMap(1, 1, (AffineSymbol(0) + 128 * AffineDim(0),)),
    AffineMap(1, 1, (AffineDim(0) * AffineSymbol(0) - AffineDim(0),)),
    AffineMap(1, 1, ((AffineDim(0) + AffineSymbol(0)) // 3 * 64,)),
    AffineMap(1, 1, (AffineDim(0).ceildiv(2) + AffineSymbol(0) % 5,)),
]


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """Random nests with bounds from anything in scope; steps are positive constants."""
    count = iter(range(10_000))
    steps = tuple(ConstantOp(f"step{k}", k) for k in (1, 2, 3))

    def body(scope: list[str], depth: int) -> tuple[Statement, ...]:
        scope = list(scope)
        statements: list[Statement] = []
        kinds = ["constant", "addi", "apply", "execute", "execute", "loop", "loop"]
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=5)):
            pick = st.sampled_from(scope)
            name = f"v{next(count)}"
            if kind == "constant":
                statements.append(ConstantOp(name, draw(st.integers(-4, 6))))
            elif kind == "addi":
                statements.append(AddIOp(name, draw(pick), draw(pick)))
            elif kind == "apply":
                map_ = draw(st.sampled_from(MAPS))
                statements.append(ApplyOp(name, map_, (draw(pick),), (draw(pick),)))
            elif kind == "execute":
                operands = tuple(draw(st.lists(pick, max_size=3)))
                ids = tuple(-1 - k for k in range(len(operands)))
                statements.append(ExecuteOp(operands, f"{name}.json", ids))
                continue
            elif depth < 3:
                step = f"step{draw(st.integers(1, 3))}"
                inner = body([*scope, name], depth + 1)
                bounds = (
                    draw(st.sampled_from(SMALL)),
                    draw(st.sampled_from([*SMALL, *scope[-2:]])),
                )
                statements.append(ForOp(name, *bounds, step, inner))
                continue
            else:
                continue
            scope.append(name)
        return tuple(statements)

    SMALL = ["zero", "three", "n"]
    first = (
        *steps,
        ConstantOp("zero", 0),
        ConstantOp("three", 3),
        ExtractOp("base", ArgumentField.VALUE, "p"),
    )
    parameters = (FunctionParameter("p", InputArgType()), FunctionParameter("n", None))
    names = ["zero", "three", "n", "base"]
    return Module(Function("f", parameters, (*first, *body(names, 0))))


@given(modules(), st.integers(-3, 7))
@examples(120)
def test_schedules_equal_the_interpreter(module: Module, n: int) -> None:
    arguments = {"p": 40, "n": n}
    limit = 3_000
    expected = list(islice(interpret(module, arguments), limit + 1))
    try:
        schedule = lower(module).schedule(arguments, max_executes=limit)
    except LaunchError as error:
        refused = error.code
    else:
        refused = ""
    if refused or len(expected) > limit:
        assert refused == "SPY175"
        return
    found = [
        (
            int(static),
            schedule.symbols[static][row].tolist(),
            schedule.loop_indices[static][row].tolist(),
        )
        for static, row in zip(schedule.order, schedule.instance, strict=True)
    ]
    assert found == expected


# --- refused launches


@pytest.mark.parametrize(
    ("arguments", "addresses", "code", "words"),
    [
        ({"rows": 64}, [0], "SPY170", "parameter 'k' has no value"),
        ({"rows": 64, "k": 1, "z": 1}, [0], "SPY171", "no parameter 'z'"),
        ({"rows": 64, "k": 1.0}, [0], "SPY172", "found: 1.0"),
        ({"rows": 64, "k": None}, [0], "SPY172", "found: None"),
        ({"rows": 65, "k": 1}, [0], "SPY173", "granularity=64 max_value=512"),
        ({"rows": 576, "k": 1}, [0], "SPY173", "found: 576"),
        ({"rows": 0, "k": 1}, [0], "SPY173", "found: 0"),
        ({"rows": -64, "k": 1}, [0], "SPY173", "found: -64"),
        ({"rows": 64, "k": 1}, [], "SPY174", "found: 0"),
        ({"rows": 64, "k": 2**63}, [0], "SPY157", "parameter 'k'"),
        ({"rows": 64, "k": 1}, [2**64], "SPY157", "an allocation address"),
        ({"rows": 64, "k": 0}, [0], "SPY125", "division by a non-positive"),
        ({"rows": 64, "k": -2}, [0], "SPY125", "found: -2"),
    ],
)
def test_arguments_that_do_not_fit(
    arguments: dict[str, int], addresses: list[int], code: str, words: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        program_of(GENERAL).schedule(arguments, addresses)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_numpy_integers_are_integers() -> None:
    arguments = {"rows": np.int64(64), "k": np.uint8(3)}
    assert len(program_of(GENERAL).schedule(arguments, [np.int32(0)])) == 3


@pytest.mark.parametrize("step", ["%n", "%m"])
def test_a_step_is_positive_when_it_is_used(step: str) -> None:
    text = f"""func.func @f(%n: index, %u: index) {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      scf.for %o = %c0 to %u step %c1 {{
        %m = affine.apply affine_map<(d0) -> (2 - d0)>(%o)
        scf.for %i = %c0 to %u step {step} {{
          sdscbundle.sdsc_execute () {{sdsc_filename="s.json"}}
        }}
      }}
      return
    }}"""
    program = program_of(text)
    assert len(program.schedule({"n": 0, "u": 0})) == 0
    with pytest.raises(LaunchError) as caught:
        program.schedule({"n": 0, "u": 4})
    assert caught.value.code == "SPY150"
    assert str(caught.value.location) == "bundle.mlir:6:9"


@pytest.mark.parametrize("upper", [4_000_001, 2**40, 2**63 - 1])
def test_too_many_executes_are_refused_before_memory_is_taken(upper: int) -> None:
    with pytest.raises(LaunchError) as caught:
        program_of(loop_text(0, upper, 1)).schedule({})
    assert (caught.value.code, caught.value.finding.found) == ("SPY175", str(upper))


def test_nested_trip_counts_are_multiplied_exactly() -> None:
    inner = """scf.for %j = %lower to %upper step %step {
      sdscbundle.sdsc_execute () {sdsc_filename="s.json"}
    }"""
    with pytest.raises(LaunchError) as caught:
        program_of(loop_text(0, 3000, 1, inner)).schedule({})
    assert caught.value.finding.found == "9000000"
    assert len(program_of(loop_text(0, 200, 1, inner)).schedule({}, max_executes=40_000)) == 40_000


def test_memory_of_the_addresses_is_bounded() -> None:
    operands = ", ".join(["%i"] * 200)
    ids = ", ".join(str(-k - 1) for k in range(200))
    execute = f'sdscbundle.sdsc_execute ({operands}) {{sdsc_filename="s.json", symbol_ids=[{ids}]}}'
    with pytest.raises(LaunchError) as caught:
        program_of(loop_text(0, 3_000_000, 1, execute)).schedule({})
    assert caught.value.code == "SPY176"


# --- refused modules


def test_a_module_with_wrong_names_is_not_lowered() -> None:
    module = Module(Function("f", (), (AddIOp("x", "y", "z"),)))
    with pytest.raises(ValidationError) as caught:
        lower(module)
    assert [finding.code for finding in caught.value.findings] == ["SPY130", "SPY130"]


def test_expressions_that_explode_are_refused() -> None:
    triple = AffineMap(1, 0, (AffineDim(0) // 2 + AffineDim(0) // 3,))
    body: list[Statement] = [ApplyOp("v0", triple, ("n",))]
    body += [ApplyOp(f"v{k}", triple, (f"v{k - 1}",)) for k in range(1, 60)]
    with pytest.raises(BundleError) as caught:
        lower(Module(Function("f", (FunctionParameter("n", None),), tuple(body))))
    assert caught.value.code == "SPY158"


def test_coefficients_stay_in_int64() -> None:
    body = [
        AddIOp("v0", "n", "n"),
        *(AddIOp(f"v{k}", f"v{k - 1}", f"v{k - 1}") for k in range(1, 70)),
    ]
    with pytest.raises(BundleError) as caught:
        lower(Module(Function("f", (FunctionParameter("n", None),), tuple(body))))
    assert caught.value.code == "SPY157"
