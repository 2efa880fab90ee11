"""The operations of KTIR: one row each, from which reader, printer, checker and docs are made.

A row's ``form`` is how the operation is written (:mod:`.forms`). The type of the value in field
``a`` is the type in field ``!a``, and ``!T`` where there is none; a list of values has its types in
``!types`` or one type for all. ``result`` names the results' types: ``bool`` booleans of the
shape of ``!T``, ``element`` an element of the value, ``last`` the last of ``!types``, ``constant``
the type that is written or a boolean, the name of a type that type, any other word the types of
that field.
``kinds``: types that the first operand (and so its kin) may have. ``rule``: further
conditions (`rules.rule_faults`). ``engine``: name of the simulator's operation, of those that are
elementwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One operation. ``refused``: why it is not simulated."""

    name: str
    form: str = ""
    result: str = ""
    kinds: str = ""
    rule: str = ""
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

CAST_RULE = "a.is_shaped = result.is_shaped; a.shape = result.shape"
RESHAPED = "value.count = result.count; value.element = result.element"

INTEGER, FLOAT, ANY = "integer", "float", "integer float"
NOT_IN_DIALECT = "it is specified, but the dialect does not have it"


def _family(
    prefix: str, names: str, form: str, result: str, kinds: str, rule: str = ""
) -> Iterator[OperationRow]:
    """Rows that differ in their names; ``name=engine`` where the engine's name is another."""
    for name in names.split():
        own, _, engine = name.partition("=")
        yield OperationRow(f"{prefix}.{own}", form, result, kinds, rule, engine or own)


def _refused(prefix: str, names: str, why: str) -> Iterator[OperationRow]:
    return (OperationRow(f"{prefix}.{name}", refused=why) for name in names.split())


_ROWS = (
    # --- memory
    OperationRow("ktdp.get_compute_tile_id", ": !result*", "result", rule="tile_id"),
    OperationRow(
        "ktdp.construct_memory_view",
        "%base , sizes: [sizes , strides: [strides {} : ?( index -> )? !result",
        "result", rule="result.kind = memref; result.rank = #sizes; result.rank = #strides; view",
    ),
    OperationRow(
        "ktdp.construct_distributed_memory_view",
        "( %views* : !views* ) {} : !result", "result", rule="distributed",
    ),
    OperationRow(
        "ktdp.construct_access_tile",
        "%view &indices ?( symbols( %symbols* ) )? {} : !view -> !result",
        "result", rule="access_tile",
    ),
    OperationRow(
        "ktdp.construct_indirect_access_tile",
        "intermediate_variables ^variables %view &&subscripts ?( symbols( %symbols* ) )? {}"
        " : !memrefs* -> !result",
        "result", rule="indirect_tile",
    ),
    OperationRow("ktdp.load", "%tile : !tile -> !result", "result",
                 rule="tile.kind = access_tile; result.kind = tensor; tile.shape = result.shape; "
                 "element"),
    OperationRow("ktdp.store", "%value , %tile : !value , !tile",
                 rule="value.kind = tensor; tile.kind = access_tile; tile.shape = value.shape; "
                 "element; aliasing"),
    OperationRow(
        "ktdp.runtime_arg_extract", "$field from %argument : !argument -> !result",
        "result", rule="extract_argument",
    ),
    # --- deliveries
    OperationRow(
        "ktdp.inter_tile_produce",
        "producer_tiles_per_group = @producers ?( : !types* )? -> !result {body",
        "result", rule="produce",
    ),
    OperationRow("ktdp.yield_partial", "%values* : !values*"),
    OperationRow(
        "ktdp.inter_tile_reduce",
        f"{DELIVERY} ?( , identity( %identity* : !identity* ) )? : !future -> !result* {{body",
        "result", rule="deliver",
    ),
    OperationRow("ktdp.yield_reduced", "%values* : !values*"),
    OperationRow(
        "ktdp.inter_tile_consume", f"{DELIVERY} : !future -> !result*",
        "result", rule="deliver",
    ),
    *_refused("ktdp", "inter_tile_gather inter_tile_scatter inter_tile_reduce_scatter "
              "inter_tile_all_to_all", NOT_IN_DIALECT),
    # --- scalars, and elementwise on tensors
    OperationRow("arith.constant", "#value ?( : !result )?", "constant", rule="constant"),
    *_family("arith", "addi=add subi=sub muli=mul", BINARY, "T", INTEGER),
    *_family("arith", "divui divsi remui remsi ceildivui ceildivsi floordivsi andi ori xori shli "
             "shrui shrsi minsi maxsi minui maxui", BINARY, "T", INTEGER),
    *_family("arith", "addf=add subf=sub mulf=mul divf=realdiv maximumf=maximum minimumf=minimum "
             "maxnumf=maximum minnumf=minimum", BINARY, "T", FLOAT),
    *_family("arith", "negf=neg", UNARY, "T", FLOAT),
    OperationRow("arith.cmpi", f"$predicate , {BINARY}", "bool", INTEGER, "predicate", "compare"),
    OperationRow("arith.cmpf", f"$predicate , {BINARY}", "bool", FLOAT, "predicate", "compare"),
    OperationRow("arith.select", "%condition , %a , %b ~ : !types*", "last", ANY, "select",
                 "where3"),
    *_family("arith", "index_cast index_castui", CAST, "result", INTEGER, CAST_RULE),
    *_family("arith", "extsi extui trunci", CAST, "result", INTEGER, f"{CAST_RULE}; width"),
    *_family("arith", "sitofp uitofp", CAST, "result", INTEGER, CAST_RULE),
    *_family("arith", "extf truncf", CAST, "result", FLOAT, f"{CAST_RULE}; width"),
    *_family("arith", "fptosi fptoui", CAST, "result", FLOAT, CAST_RULE),
    OperationRow("arith.bitcast", CAST, "result", ANY, CAST_RULE),
    *_family("math", "exp exp2 log log2 log1p sqrt rsqrt tanh sin cos erf absf=abs floor ceil",
             UNARY, "T", FLOAT),
    *_family("math", "powf=pow", BINARY, "T", FLOAT),
    OperationRow("math.fma", "%a , %b , %c ~ : !T", "T", FLOAT, engine="fma"),
    # --- linalg
    OperationRow("linalg.fill", NAMED, "outs",
                 rule="#ins = 1; #outs = 1; ins.kind = outs.element"),
    OperationRow("linalg.broadcast", f"{DESTINATION} dimensions = @dimensions ?( -> !result* )?",
                 "outs", rule="broadcast"),
    OperationRow("linalg.transpose", f"{DESTINATION} permutation = @permutation ?( -> !result* )?",
                 "outs", rule="transpose"),
    OperationRow("linalg.reduce",
                 f"?( {{ $combiner }} )? {DESTINATION} dimensions = @dimensions ?( (body )?",
                 "outs", rule="reduce"),
    OperationRow("linalg.matmul", NAMED, "outs", rule="matmul"),
    OperationRow("linalg.batch_matmul", NAMED, "outs", rule="matmul"),
    *_family("linalg", "add sub mul div=realdiv max=maximum min=minimum powf=pow", NAMED, "outs",
             ANY, "#ins = 2; #outs = 1; equal"),
    *_family("linalg", "exp log sqrt rsqrt tanh erf abs floor ceil negf=neg reciprocal "
             "copy=identity", NAMED, "outs", ANY, "#ins = 1; #outs = 1; equal"),
    OperationRow("linalg.generic",
                 f"{{}} {DESTINATION} ?( attrs = @attrs )? {{body ?( -> !result* )?",
                 "outs", rule="generic"),
    OperationRow("linalg.index", "#dim : !result", "result", rule="result.kind = index; index"),
    OperationRow("linalg.yield", "?( %values* : !values* )?"),
    # --- tensors
    OperationRow("tensor.empty", "( %sizes* ) : !result", "result", rule="static"),
    OperationRow("tensor.splat", "%value : !result", "result",
                 rule="result.kind = tensor; %value.kind = result.element"),
    OperationRow("tensor.extract", "%value [indices : !value", "element",
                 rule="#indices = value.rank"),
    OperationRow("tensor.insert", "%element into %value [indices : !value", "value",
                 rule="#indices = value.rank; %element.kind = value.element"),
    OperationRow("tensor.from_elements", "%values* : !result", "result",
                 rule="#values = result.count"),
    OperationRow("tensor.expand_shape",
                 "%value @groups ?( output_shape [sizes )? : !value into !result",
                 "result", rule=RESHAPED),
    OperationRow("tensor.collapse_shape", "%value @groups : !value into !result",
                 "result", rule=RESHAPED),
    OperationRow("tensor.reshape", "%value ( %shape ) : ( !value , !shape ) -> !result",
                 "result", rule=RESHAPED),
    OperationRow("tensor.extract_slice", f"%value {SLICE} : !value to !result",
                 "result", rule="slice"),
    OperationRow("tensor.insert_slice", f"%value into %into {SLICE} : !value into !result",
                 "result",
                 rule="%into.shape = result.shape; %into.element = result.element; slice"),
    # --- control
    OperationRow("scf.for",
                 "^iv = %lower to %upper step %step ?( iter_args ^=inits -> !types* )?"
                 " ?( : !T )? {body",
                 "types", rule="for"),
    OperationRow("scf.if", "%condition ?( -> !result* )? {then ?( else {else )?", "result",
                 rule="%condition.kind = i1; branches"),
    OperationRow("scf.yield", "?( %values* : !values* )?"),
    OperationRow("func.return", "?( %values* : !values* )?"),
    OperationRow("return", "?( %values* : !values* )?"),
    *_refused("scf", "while condition parallel forall reduce index_switch execute_region",
              "loops of KTIR are scf.for, branches scf.if"),
    *_refused("func", "call call_indirect constant", "a kernel is one function"),
    *_refused("memref", "load store alloc alloca dealloc copy subview cast reinterpret_cast view",
              "memory is accessed through ktdp views"),
    # --- intrinsics in bodies of linalg.generic
    *_family("spyreop", "exp", UNARY, "T", FLOAT, "T.rank = 0"),
    OperationRow("spyreop.select", "%a , %b , %c ~ : !T", "T", "half", "T.rank = 0", "where3"),
    *_family("spyreop", "sqrt rsqrt sigmoid silu gelu=gelufwd reciprocal", UNARY, "T",
             "half", "T.rank = 0"),
    OperationRow("spyreop.softplus", "%a beta #beta threshold #threshold : !T", "T",
                 "half", "T.rank = 0", "softplus"),
    *_family("spyreop", "realdiv", BINARY, "T", "half", "T.rank = 0"),
    OperationRow("spyreop.layernormscale", "%a ?( squares %b )? : !T", "T", "half", "T.rank = 0"),
    *_family("spyreop", "addi32toi32=add muli32toi32=mul", WORDS, "i32", "",
             "%a.kind = i32; %b.kind = i32"),
    *_family("spyreop", "addi64toi64=add", WORDS, "i64", "", "%a.kind = i64; %b.kind = i64"),
    *_refused("spyreop", "idx32toaddr slice_reduction", "it has no meaning in a text"),
    *_refused("ktdf", "*", "texts of this dialect are made after KTIR"),
)  # fmt: skip

RETURNS = ("return", "func.return")
TERMINATORS = {*RETURNS, "scf.yield", "linalg.yield", "ktdp.yield_partial", "ktdp.yield_reduced"}
EXAMPLE_DIALECT = "test"
"""Operations of this dialect, in generic form, are read and printed as they are."""


@cache
def operation_rows() -> Mapping[str, OperationRow]:
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
