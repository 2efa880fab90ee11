"""Reading and writing bundle.mlir: the real files, every tolerance, every complaint."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spyre.errors import MlirSyntaxError, SourceLocation, SpyreError
from spyre.mlir.program.affine import AffineConstant, AffineDim, AffineMap, AffineSymbol
from spyre.mlir.text.lowering import inspect_module, lower
from spyre.mlir.text.parser import parse_module
from spyre.mlir.text.printer import print_module
from spyre.mlir.text.syntax import (
    AddIOp,
    AllocateOp,
    ApplyOp,
    ArgumentField,
    Attribute,
    ConstantOp,
    ExecuteOp,
    ExtractOp,
    ForOp,
    Function,
    FunctionParameter,
    InputArgType,
    MapAlias,
    Module,
)
from tests.conftest import accepted_files

BAD = Path(__file__).parent / "bad_mlir"
MUTATED = ("ct_mm_nested_M_K", "ct_softmax_256x64_1core", "cat_d0", "clone", "cmp_where")


def in_function(*lines: str) -> str:
    return "module {\nfunc.func @f() {\n" + "\n".join(lines) + "\nreturn\n}\n}\n"


def body_of(*lines: str) -> tuple[object, ...]:
    return parse_module(in_function(*lines)).function.body


# --- every construct


def test_every_construct_becomes_its_node() -> None:
    module = parse_module("""
        #map_0 = affine_map<(d0)[s0] -> (s0 + 128*d0)>
        module @m {
          func.func private @kernel(%a: !sdscbundle.input_arg<index>, %n: index,
              %d: !sdscbundle.input_arg<index, granularity=64, max_value=512>) {
            %0 = sdscbundle.input_arg_extract value from %a : !sdscbundle.input_arg<index> -> index
            %c = arith.constant -0x10 : index
            %s = arith.addi %0, %c : index
            %p = sdscbundle.device_mem_allocate 4096 bytes : index
            scf.for %i = %c to %n step %c {
              %x = affine.apply #map_0(%i)[%s]
              sdscbundle.sdsc_execute (%x, %p) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2]}
            }
            return
          }
        }
    """)
    inner = (
        ApplyOp("x", "map_0", ("i",), ("s",)),
        ExecuteOp(("x", "p"), "sdsc_0.json", (-1, -2)),
    )
    assert module == Module(
        Function(
            "kernel",
            (
                FunctionParameter("a", InputArgType()),
                FunctionParameter("n", None),
                FunctionParameter("d", InputArgType(granularity=64, max_value=512)),
            ),
            (
                ExtractOp("0", ArgumentField.VALUE, "a", InputArgType()),
                ConstantOp("c", -16),
                AddIOp("s", "0", "c"),
                AllocateOp("p", 4096),
                ForOp("i", "c", "n", "c", inner),
            ),
            visibility="private",
        ),
        (MapAlias("map_0", AffineMap(1, 1, (AffineSymbol(0) + 128 * AffineDim(0),))),),
        name="m",
    )


# --- tolerances (bundle format reference §2.1)


@pytest.mark.parametrize(
    "text",
    [
        "func.func @f() {\nreturn\n}",
        "module{func.func @f(){return}}",
        "builtin.module {\nfunc.func @f() {\nfunc.return\n}\n}",
        "module @name attributes {a.b = 1 : i64} { func.func @f() attributes {x} { return } }",
        "module { func.func public @f() -> () { return } }",
        "// before\nmodule { // after\nfunc.func @f( // here\n) {\r\n\treturn\r\n} }// end",
        '#loc = loc("a.py":1:2)\nmodule { func.func @f() { return loc(#loc) } loc(#l) } loc(#l)',
        '#l = loc(callsite("f" at fused["x":1:2, "y)":3:4]))\nmodule { func.func @f() { return } }',
    ],
)
def test_shapes_of_a_file(text: str) -> None:
    function = parse_module(text).function
    assert (function.name, function.body) == ("f", ())


@pytest.mark.parametrize(
    "attributes",
    [
        'sdsc_filename="s.json", symbol_ids=[-1, -2]',
        '"sdsc_filename" = "s.json" , "symbol_ids" = [ -1,-2 ]',
        'symbol_ids=[-0x1, // first\n -2], sdsc_filename="\\73.json"',
        'sdsc_filename=\n"s.json",\n"symbol_ids"=[-1,\n-2\n]',
    ],
)
def test_spellings_of_an_execute(attributes: str) -> None:
    expected = (ExecuteOp(("a", "b.c-d$"), "s.json", (-1, -2)),)
    for operands in ("%a, %b.c-d$", "%a // one\n , %b.c-d$", "%a,%b.c-d$"):
        for signature in ("", " : (index, index) -> ()"):
            text = f"sdscbundle.sdsc_execute ({operands}) {{{attributes}}}{signature}"
            assert body_of(text) == expected


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("%x // c\n = // c\n arith.constant // c\n 1 // c\n : // c\n index", ConstantOp("x", 1)),
        ('%x = arith.constant 0xA : index loc("f":1:2)', ConstantOp("x", 10)),
        ("%x = arith.addi %a, // c\n %b : index", AddIOp("x", "a", "b")),
        ("%7 = affine.apply #m()[%a]", ApplyOp("7", "m", (), ("a",))),
        ("%7 = affine.apply #m", ApplyOp("7", "m")),
        (
            "%x = affine.apply affine_map<() -> (3)>()",
            ApplyOp("x", AffineMap(0, 0, (AffineConstant(3),))),
        ),
    ],
)
def test_spellings_of_a_definition(text: str, node: object) -> None:
    assert body_of(text) == (node,)


def test_a_loop_may_write_its_type() -> None:
    assert body_of("scf.for %i = %a to %b step %c : index {\n}") == (ForOp("i", "a", "b", "c", ()),)


def test_names_bind_to_dims_and_symbols_by_position() -> None:
    text = "#m = affine_map<(row, col)[base] -> (base - -col * 2 + 4 * (row floordiv 8))>"
    (alias,) = parse_module(text + in_function()).aliases
    assert str(alias.map) == "affine_map<(d0, d1)[s0] -> (s0 - d1*-1*2 + 4*(d0 floordiv 8))>"


def test_aliases_in_the_function_move_to_the_module() -> None:
    text = in_function("scf.for %i = %a to %a step %a {\n#m = affine_map<(d0) -> (d0)>\n}")
    module = parse_module(text)
    assert [(alias.name, alias.in_function) for alias in module.aliases] == [("m", True)]
    assert print_module(module).startswith("#m = affine_map<(d0) -> (d0)>\nmodule {")


def test_unknown_attributes_are_kept_as_text() -> None:
    attributes = (
        'sdsc_filename="s.json", n = 0x10 : i32, f = 1.5, l = [1, [true, "a\\22"], {k = @s, u}], '
        '"odd key", ids = [ -1,2 ], m = affine_map<(x) -> (x)>, big = 7 : index'
    )
    (execute,) = parse_module(
        in_function(f"sdscbundle.sdsc_execute () {{{attributes}}}")
    ).executes()
    assert execute.attributes == (
        Attribute("n", "16 : i32"),
        Attribute("f", "1.5"),
        Attribute("l", '[1, [true, "a\\""], {k = @s, u}]'),
        Attribute("odd key"),
        Attribute("ids", "[-1, 2]"),
        Attribute("m", "affine_map<(d0) -> (d0)>"),
        Attribute("big", "7 : index"),
    )


# --- places


def test_places_are_those_of_the_first_character() -> None:
    module = parse_module(in_function("\t%c = arith.constant 1 : index"), "dir/bundle.mlir")
    (constant,) = module.function.body
    location = module.locate(constant.position)
    assert location == SourceLocation("dir/bundle.mlir", 3, 2, "\t%c = arith.constant 1 : index")
    assert Module(Function("f", (), ())).locate(constant.position) is None


# --- writing


def test_nodes_made_in_code_print_in_the_emitter_layout(
    golden: Callable[[Path, str], None],
) -> None:
    d0, d1, s0 = AffineDim(0), AffineDim(1), AffineSymbol(0)
    inner = (
        ApplyOp("addr_0", "map_0", ("i_0", "i_1"), ("arg_0",)),
        ExecuteOp(("addr_0",), 'sdsc "0"\n.json', (-1,), (Attribute("note", "3"),)),
        ExecuteOp((), "sdsc_1.json"),
    )
    loop = ForOp("i_1", "c0", "c4", "c1", inner)
    body = (
        ExtractOp("arg_0", ArgumentField.VALUE, "arg_0_base_addr"),
        ConstantOp("c0", 0),
        ConstantOp("c1", 1),
        ConstantOp("c4", 4),
        AllocateOp("pool", 1 << 20),
        AddIOp("pool_128", "pool", "c4"),
        ForOp("i_0", "c0", "c4", "c1", (loop,)),
    )
    parameters = (
        FunctionParameter("arg_0_base_addr", InputArgType()),
        FunctionParameter("rows", InputArgType(64, 512)),
        FunctionParameter("k", None),
    )
    module = Module(
        Function("sdsc_bundle", parameters, body),
        (MapAlias("map_0", AffineMap(2, 1, (s0 + d0 * 65536 + d1 * 2097152,))),),
    )
    text = print_module(module)
    golden(Path(__file__).parent / "golden" / "printed.mlir", text)
    assert parse_module(text) == module


@pytest.mark.shared
def test_real_bundles_read_check_write_and_lower(shared_dir: Path) -> None:
    paths = accepted_files(shared_dir, "**/bundle.mlir")
    assert len(paths) >= 240
    for path in paths:
        module = parse_module(path.read_text(), str(path))
        assert inspect_module(module).findings == (), path
        text = print_module(module)
        assert parse_module(text) == module, path
        assert print_module(parse_module(text)) == text, path
        program = lower(module)
        assert len(program.executes) == len(list(module.executes()))
        assert all(e.location is not None for e in program.executes)


@pytest.mark.shared
def test_symbolic_bundles_print_as_they_were_written(shared_dir: Path) -> None:
    symbolic = [
        text
        for path in sorted(shared_dir.glob("bundles/**/bundle.mlir"))
        if "symbol_ids" in (text := path.read_text())
    ]
    assert len(symbolic) > 100
    assert all(print_module(parse_module(text)) == text for text in symbolic)


# --- complaints


@pytest.mark.parametrize("path", sorted(BAD.glob("*.mlir")), ids=lambda path: path.stem)
def test_bad_files_are_told_what_is_wrong(path: Path, golden: Callable[[Path, str], None]) -> None:
    try:
        inspection = inspect_module(parse_module(path.read_text(encoding="utf-8"), path.name))
        text = "\n".join(map(str, inspection.findings))
    except MlirSyntaxError as error:
        text = str(error)
    assert text, "this file should not be clean"
    golden(path.with_suffix(".txt"), text + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "(" * 50_000,
        "module {" * 5_000,
        in_function("sdscbundle.sdsc_execute () {a = " + "[" * 3_000 + "]" * 3_000 + "}"),
        "#m = affine_map<(d0) -> (" + " + ".join(["d0"] * 5_000) + ")>" + in_function(),
        "#m = affine_map<(d0) -> (" + "-" * 5_000 + "d0)>" + in_function(),
        "#m = affine_map<(d0) -> (" + "(" * 5_000 + "d0" + ")" * 5_000 + ")>" + in_function(),
    ],
)
def test_hostile_nesting_is_refused_with_a_place(text: str) -> None:
    with pytest.raises(MlirSyntaxError) as caught:
        parse_module(text)
    assert caught.value.code == "SPY116"
    assert isinstance(caught.value.location, SourceLocation)


def test_nesting_up_to_the_limit_goes_all_the_way() -> None:
    n = 90
    lines = ["%c0 = arith.constant 0 : index", "%c1 = arith.constant 1 : index"]
    lines += [f"scf.for %i{k} = %c0 to %c1 step %c1 {{" for k in range(n)]
    lines += ['sdscbundle.sdsc_execute () {sdsc_filename="s.json"}', *["}"] * n]
    module = parse_module(in_function(*lines))
    assert inspect_module(module).findings == ()
    assert parse_module(print_module(module)) == module
    schedule = lower(module).schedule({})
    assert schedule.loop_indices[0].shape == (1, n)


def test_a_number_of_any_length_is_an_error() -> None:
    for digits in ("9" * 19, "9" * 10_000):
        with pytest.raises(MlirSyntaxError) as caught:
            parse_module(in_function(f"%c = arith.constant {digits} : index"))
        assert caught.value.code == "SPY115"
        text = f'sdscbundle.sdsc_execute () {{sdsc_filename="s", symbol_ids=[-{digits}]}}'
        with pytest.raises(MlirSyntaxError) as caught:
            parse_module(in_function(text))
        assert caught.value.code == "SPY115"


# --- mutants


def mutants(text: str, rng: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        start = rng.randrange(len(text))
        end = min(len(text), start + rng.choice((1, 2, 5, 30, 300)))
        kind = rng.randrange(6)
        if kind == 0:
            yield text[:start]
        elif kind == 1:
            yield text[:start] + chr(ord(text[start]) ^ (1 << rng.randrange(7))) + text[start + 1 :]
        elif kind == 2:
            yield text[:start] + text[end:]
        elif kind == 3:
            yield text[:end] + text[start:]
        elif kind == 4:
            there = rng.randrange(len(text))
            yield text[:there] + text[start:end] + text[there:]
        else:
            junk = rng.choice(
                ('"', "{", "}", "(", "%", "#", "99999999999999999999", "\0", "é", "-")
            )
            yield text[:start] + junk + text[start:]


def run_everything(text: str) -> SpyreError | None:
    """The error a launch of ``text`` ends in, if any; other exceptions pass through."""
    try:
        module = parse_module(text)
        inspect_module(module)
        program = lower(module)
        values = {p.name: p.max_value or (k + 1) << 34 for k, p in enumerate(program.parameters)}
        addresses = [1 << 20] * len(program.allocations)
        program.schedule(values, addresses, max_executes=10_000)
    except SpyreError as error:
        return error
    return None


@pytest.mark.shared
@pytest.mark.parametrize("name", MUTATED)
def test_mutants_of_real_files_end_in_our_errors(shared_dir: Path, name: str) -> None:
    path = shared_dir / "bundles" / name
    text = next(iter(sorted(path.rglob("bundle.mlir")))).read_text()
    assert run_everything(text) is None
    refused = 0
    for mutant in mutants(text, random.Random(name), 200):
        error = run_everything(mutant)
        assert error is None or error.location is not None
        refused += error is not None
    assert 50 < refused < 200


# --- size


def big_bundle(n_executes: int, n_operands: int) -> str:
    lines = [
        "%base = sdscbundle.input_arg_extract value from %p : !sdscbundle.input_arg<index> -> index"
    ]
    for k in range(n_executes):
        lines.append(f"%offset_{k} = arith.constant {128 * k} : index")
        lines.append(f"%address_{k} = arith.addi %base, %offset_{k} : index")
    for k in range(n_executes):
        names = [f"%address_{(k + j) % n_executes}" for j in range(n_operands)]
        ids = [str(-k * n_operands - j - 1) for j in range(n_operands)]
        lines.append(
            f"sdscbundle.sdsc_execute ({', '.join(names)}) "
            f'{{sdsc_filename="sdsc_{k}.json", "symbol_ids"=[{", ".join(ids)}]}}'
        )
    return in_function(*lines).replace("@f()", "@f(%p: !sdscbundle.input_arg<index>)")


def test_five_thousand_executes() -> None:
    assert len(lower(parse_module(big_bundle(5_000, 3))).executes) == 5_000
