"""The operations of KTIR: one row each, from which reader, printer, checker and docs are made.

A row's ``form`` is how the operation is written (:mod:`.forms`). The type of the value in field
``a`` is the type in field ``!a``, and ``!T`` where there is none; a list of values has its types in
``!types`` or one type for all. ``result`` names the results' types: ``bool`` booleans of the shape
of ``!T``, ``pair`` two of it, ``element`` an element of the value, ``last`` the last of ``!types``,
``constant`` the type that is written or a boolean, the name of a type that type, any other word the
types of that field.
``kinds``: types that the first operand (and so its kin) may have. ``rule``: further
conditions (`rules.rule_faults`). ``engine``: name of the simulator's operation, of those that are
elementwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One operation. ``refused``: why it is not simulated."""

    name: str
    form: str = ""
    rule: str = ""
    result: str = "result"
    kinds: str = ""
    engine: str = ""
    refused: str = ""

    @property
    def dialect(self) -> str:
        """``arith`` of ``arith.addi``."""
        return self.name.partition(".")[0]


UNARY = "%a ~ : !T"
WORDS = "%a , %b ?( : !T )?"
BINARY = "%a , %b ~ : !T"
CAST = "%a ~ : !a to !result"
DESTINATION = "ins( %ins* : !ins* ) outs( %outs* : !outs* )"
NAMED = f"{DESTINATION} ?( -> !result* )?"
SLICE = "[offsets [sizes [strides"
DELIVERY = (
    "( %future ) consumer_tiles_per_group = @consumers"
    " ?( , producer_dependency_per_consumer = @dependency )?"
)
YIELD = "?( %values* : !values* )?"

CAST_RULE = "a.is_shaped = result.is_shaped; a.shape = result.shape"
RESHAPED = "value.count = result.count; value.element = result.element"
INTO = "%into.shape = result.shape; %into.element = result.element; slice"

INTEGER, FLOAT, ANY = "integer", "float", "integer float"


def _family(
    prefix: str, names: str, form: str, result: str, kinds: str, rule: str = ""
) -> Iterator[Row]:
    """Rows that differ in their names; ``name=engine`` where the engine's name is another."""
    for name in names.split():
        own, _, engine = name.partition("=")
        yield Row(f"{prefix}.{own}", form, rule, result, kinds, engine or own)


def _refused(prefix: str, names: str, why: str) -> Iterator[Row]:
    return (Row(f"{prefix}.{name}", refused=why) for name in names.split())


_ROWS = (
    # --- memory
    Row("ktdp.get_compute_tile_id", ": !result*", "tile_id"),
    Row("ktdp.construct_memory_view",
        "%base , sizes: [sizes , strides: [strides {} : ?( index -> )? !result",
        "result.kind = memref; result.rank = #sizes; result.rank = #strides; view"),
    Row("ktdp.construct_distributed_memory_view", "( %views* : !views* ) {} : !result",
        "distributed"),
    Row("ktdp.construct_access_tile",
        "%view &indices ?( symbols( %symbols* ) )? {} : !view -> !result", "access_tile"),
    Row("ktdp.construct_indirect_access_tile",
        "intermediate_variables ^variables %view &&subscripts ?( symbols( %symbols* ) )? {}"
        " : !memrefs* -> !result", "indirect_tile"),
    Row("ktdp.load", "%tile : !tile -> !result", "tile.kind = access_tile; result.kind = tensor; "
        "tile.shape = result.shape; element"),
    Row("ktdp.store", "%value , %tile : !value , !tile", "value.kind = tensor; "
        "tile.kind = access_tile; tile.shape = value.shape; element; aliasing", ""),
    Row("ktdp.runtime_arg_extract", "$field from %argument : !argument -> !result",
        "extract_argument"),
    # --- deliveries
    Row("ktdp.inter_tile_produce",
        "producer_tiles_per_group = @producers ?( : !types* )? -> !result {body", "produce"),
    Row("ktdp.yield_partial", "%values* : !values*", "", ""),
    Row("ktdp.inter_tile_reduce", f"{DELIVERY} ?( , identity( %identity* : !identity* ) )?"
        " : !future -> !result* {body", "deliver"),
    Row("ktdp.yield_reduced", "%values* : !values*", "", ""),
    Row("ktdp.inter_tile_consume", f"{DELIVERY} : !future -> !result*", "deliver"),
    *_refused("ktdp", "inter_tile_gather inter_tile_scatter inter_tile_reduce_scatter "
              "inter_tile_all_to_all", "it is specified, but the dialect does not have it"),
    # --- scalars, and elementwise on tensors
    Row("arith.constant", "#value ?( : !result )?", "constant", "constant"),
    *_family("arith", "addi=add subi=sub muli=mul divui divsi remui remsi ceildivui ceildivsi "
             "floordivsi andi ori xori shli shrui shrsi minsi maxsi minui maxui", BINARY, "T",
             INTEGER),
    *_family("arith", "addf=add subf=sub mulf=mul divf=realdiv maximumf=maximum minimumf=minimum "
             "maxnumf=maximum minnumf=minimum", BINARY, "T", FLOAT),
    *_family("arith", "negf=neg", UNARY, "T", FLOAT),
    Row("arith.cmpi", f"$predicate , {BINARY}", "predicate", "bool", INTEGER, "compare"),
    Row("arith.cmpf", f"$predicate , {BINARY}", "predicate", "bool", FLOAT, "compare"),
    Row("arith.select", "%condition , %a , %b ~ : !types*", "select", "last", ANY, "where3"),
    *_family("arith", "index_cast index_castui sitofp uitofp", CAST, "result", INTEGER, CAST_RULE),
    *_family("arith", "extsi extui trunci", CAST, "result", INTEGER, f"{CAST_RULE}; width"),
    *_family("arith", "extf truncf", CAST, "result", FLOAT, f"{CAST_RULE}; width"),
    *_family("arith", "fptosi fptoui", CAST, "result", FLOAT, CAST_RULE),
    Row("arith.bitcast", CAST, CAST_RULE, "result", ANY),
    *_family("math", "exp exp2 log log2 log1p sqrt rsqrt tanh sin cos erf absf=abs floor ceil",
             UNARY, "T", FLOAT),
    *_family("math", "powf=pow", BINARY, "T", FLOAT),
    *_family("math", "fma", "%a , %b , %c ~ : !T", "T", FLOAT),
    # --- linalg
    Row("linalg.fill", NAMED, "#ins = 1; #outs = 1; ins.kind = outs.element", "outs"),
    Row("linalg.broadcast", f"{DESTINATION} dimensions = @dimensions ?( -> !result* )?",
        "broadcast", "outs"),
    Row("linalg.transpose", f"{DESTINATION} permutation = @permutation ?( -> !result* )?",
        "transpose", "outs"),
    Row("linalg.reduce", f"?( {{ $combiner }} )? {DESTINATION} dimensions = @dimensions"
        " ?( (body )?", "reduce", "outs"),
    *_family("linalg", "matmul batch_matmul", NAMED, "outs", "", "matmul"),
    *_family("linalg", "add sub mul div=realdiv max=maximum min=minimum powf=pow", NAMED, "outs",
             ANY, "#ins = 2; #outs = 1; equal"),
    *_family("linalg", "exp log sqrt rsqrt tanh erf abs floor ceil negf=neg reciprocal square "
             "copy=identity", NAMED, "outs", ANY, "#ins = 1; #outs = 1; equal"),
    Row("linalg.select", NAMED, "#ins = 3; #outs = 1; ins.element = i1; ins.shape = outs.shape",
        "outs", engine="where3"),
    Row("linalg.map", f"?( {{ $combiner }} )? {DESTINATION} ?( (body )?", "map", "outs"),
    Row("linalg.generic", "{} ?( ins( %ins* : !ins* ) )? outs( %outs* : !outs* )"
        " ?( attrs = @attrs )? {body ?( -> !result* )?", "generic", "outs"),
    Row("linalg.index", "#dim : !result", "result.kind = index; index"),
    # --- tensors
    Row("tensor.empty", "( %sizes* ) : !result", "static"),
    Row("tensor.splat", "%value : !result", "result.kind = tensor; %value.kind = result.element"),
    Row("tensor.extract", "%value [indices : !value", "#indices = value.rank", "element"),
    Row("tensor.insert", "%element into %value [indices : !value",
        "#indices = value.rank; %element.kind = value.element", "value"),
    Row("tensor.from_elements", "%values* : !result", "#values = result.count; elements"),
    Row("tensor.expand_shape", "%value @groups ?( output_shape [sizes )? : !value into !result",
        f"{RESHAPED}; groups"),
    Row("tensor.collapse_shape", "%value @groups : !value into !result", f"{RESHAPED}; groups"),
    Row("tensor.reshape", "%value ( %shape ) : ( !value , !shape ) -> !result",
        f"{RESHAPED}; shape.count = result.rank"),
    Row("tensor.extract_slice", f"%value {SLICE} : !value to !result", "slice"),
    Row("tensor.insert_slice", f"%value into %into {SLICE} : !value into !result", INTO),
    # --- control
    Row("scf.for", "?( $sign )? ^iv = %lower to %upper step %step"
        " ?( iter_args ^=inits -> !types* )? ?( : !T )? {body", "for", "types"),
    Row("scf.if", "%condition ?( -> !result* )? {then ?( else {else )?",
        "%condition.kind = i1; branches"),
    *(Row(name, YIELD, "", "") for name in ("linalg.yield", "scf.yield", "func.return", "return")),
    *_refused("scf", "while condition parallel forall reduce index_switch execute_region",
              "loops of KTIR are scf.for, branches scf.if"),
    *_refused("func", "call call_indirect constant", "a kernel is one function"),
    *_refused("memref", "load store alloc alloca dealloc copy subview cast reinterpret_cast view",
              "memory is accessed through ktdp views"),
    # --- intrinsics in bodies of linalg.generic
    *_family("spyreop", "exp", UNARY, "T", FLOAT, "T.rank = 0"),
    *_family("spyreop", "select=where3", "%a , %b , %c ~ : !T", "T", "half", "T.rank = 0"),
    *_family("spyreop", "sqrt rsqrt sigmoid silu gelu=gelufwd reciprocal", UNARY, "T",
             "half", "T.rank = 0"),
    *_family("spyreop", "softplus", "%a beta #beta threshold #threshold : !T", "T", "half",
             "T.rank = 0; softplus"),
    *_family("spyreop", "realdiv", BINARY, "T", "half", "T.rank = 0"),
    Row("spyreop.compare", "@predicate %a , %b : !T", "predicate; T.rank = 0", "T", FLOAT),
    Row("spyreop.exx2", UNARY, "T.rank = 0", "pair", FLOAT),
    *_family("spyreop", "layernormscale", "%a ?( squares %b )? : !T", "T", FLOAT, "T.rank = 0"),
    *_family("spyreop", "layernormnorm", "%a squares %b scale %c weight %d bias %e : !T", "T",
             FLOAT, "T.rank = 0"),
    *_family("spyreop", "addi32toi32=add muli32toi32=mul", WORDS, "i32", "",
             "%a.kind = i32; %b.kind = i32"),
    *_family("spyreop", "addi64toi64=add", WORDS, "i64", "", "%a.kind = i64; %b.kind = i64"),
    *_refused("spyreop", "idx32toaddr slice_reduction topk exx2_fused layernormscale_fused",
              "it has no meaning in a text"),
    *_refused("ktdf", "*", "texts of this dialect are made after KTIR"),
)  # fmt: skip

RETURNS = ("return", "func.return")
TERMINATORS = {*RETURNS, "scf.yield", "linalg.yield", "ktdp.yield_partial", "ktdp.yield_reduced"}
EXAMPLE_DIALECT = "test"
"""Operations of this dialect, in generic form, are read and printed as they are."""


@cache
def operation_rows() -> Mapping[str, Row]:
    """All rows by name."""
    return {row.name: row for row in _ROWS}


@cache
def dialects() -> Mapping[str, tuple[str, ...]]:
    """Names of the operations that are simulated, by dialect."""
    found: dict[str, list[str]] = {}
    for row in _ROWS:
        if not row.refused and "." in row.name:
            found.setdefault(row.dialect, []).append(row.name)
    return {dialect: tuple(sorted(names)) for dialect, names in found.items()}
