"""The operations of KTIR: one row each, from which reader, printer, checker and docs are made.

A row's ``form`` is how the operation is written (:mod:`.forms`). The type of the value in field
``a`` is the type in field ``!a``, and ``!T`` where there is none; a list of values has its types in
``!types`` or one type for all. ``result`` names the results' types: ``bool`` booleans of the shape
of ``!T``, ``pair`` two of it, ``element`` an element of the value, ``last`` the last of ``!types``,
``constant`` the type that is written or a boolean, the name of a type that type, any other word the
types of that field.
``kinds``: types that the first operand (and so its kin) may have. ``rule``: further
conditions (`rules.rule_faults`). ``engine``: name of the simulator's operation, of those that are
elementwise; in the table behind ``=``, where it is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import groupby

import msgspec
from msgspec.structs import replace


class OperationRow(msgspec.Struct, frozen=True):
    """One operation. ``refused``: why it is not simulated."""

    name: str
    form: str = ""
    rule: str = ""
    result: str = "result"
    kinds: str = ""
    engine: str = ""
    refused: str = ""


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

INTEGER, FLOAT, ANY = "integer", "float", "integer float"
_TABLE: tuple[tuple[str, ...], ...] = (
    # --- memory
    ("ktdp.get_compute_tile_id", ": !result*", "tile_id"),
    ("ktdp.construct_memory_view", "%base , sizes: [sizes , strides: [strides {} :"
     " ?( index -> )? !result",
     "result.kind = memref; result.rank = #sizes; result.rank = #strides; view"),
    ("ktdp.construct_distributed_memory_view", "( %views* : !views* ) {} : !result", "distributed"),
    ("ktdp.construct_access_tile", "%view &indices ?( symbols( %symbols* ) )? {}"
     " : !view -> !result", "access_tile"),
    ("ktdp.construct_indirect_access_tile", "intermediate_variables ^variables %view &&subscripts"
     " ?( symbols( %symbols* ) )? {} : !memrefs* -> !result", "indirect_tile"),
    ("ktdp.load", "%tile : !tile -> !result",
     "tile.kind = access_tile; result.kind = tensor; tile.shape = result.shape; element"),
    ("ktdp.store", "%value , %tile : !value , !tile",
     "value.kind = tensor; tile.kind = access_tile; tile.shape = value.shape; element; aliasing",
     ""),
    ("ktdp.runtime_arg_extract", "$field from %argument : !argument -> !result",
     "extract_argument"),
    # --- deliveries
    ("ktdp.inter_tile_produce", "producer_tiles_per_group = @producers ?( : !types* )?"
     " -> !result {body", "produce"),
    ("ktdp.inter_tile_reduce", f"{DELIVERY} ?( , identity( %identity* : !identity* ) )?"
     " : !future -> !result* {body", "deliver"),
    ("ktdp.inter_tile_consume", f"{DELIVERY} : !future -> !result*", "deliver"),
    ("ktdp.yield_partial yield_reduced", "%values* : !values*", "", ""),
    # --- scalars, and elementwise on tensors
    ("arith.constant", "#value ?( : !result )?", "constant", "constant"),
    ("arith.addi=add subi=sub muli=mul divui divsi remui remsi ceildivui ceildivsi floordivsi andi"
     " ori xori shli shrui shrsi minsi maxsi minui maxui", BINARY, "", "T", INTEGER),
    ("arith.addf=add subf=sub mulf=mul divf=realdiv maximumf=maximum minimumf=minimum"
     " maxnumf=maximum minnumf=minimum", BINARY, "", "T", FLOAT),
    ("arith.negf=neg", UNARY, "", "T", FLOAT),
    ("arith.cmpi=compare", f"$predicate , {BINARY}", "predicate", "bool", INTEGER),
    ("arith.cmpf=compare", f"$predicate , {BINARY}", "predicate", "bool", FLOAT),
    ("arith.select=where3", "%condition , %a , %b ~ : !types*", "select", "last", ANY),
    ("arith.index_cast index_castui sitofp uitofp", CAST, CAST_RULE, "result", INTEGER),
    ("arith.extsi extui trunci", CAST, f"{CAST_RULE}; width", "result", INTEGER),
    ("arith.extf truncf", CAST, f"{CAST_RULE}; width", "result", FLOAT),
    ("arith.fptosi fptoui", CAST, CAST_RULE, "result", FLOAT),
    ("arith.bitcast", CAST, CAST_RULE, "result", ANY),
    ("math.exp exp2 log log2 log1p sqrt rsqrt tanh sin cos erf absf=abs floor ceil", UNARY, "", "T",
     FLOAT),
    ("math.powf=pow", BINARY, "", "T", FLOAT),
    ("math.fma", "%a , %b , %c ~ : !T", "", "T", FLOAT),
    # --- linalg
    ("linalg.fill", NAMED, "#ins = 1; #outs = 1; ins.kind = outs.element", "outs"),
    ("linalg.broadcast", f"{DESTINATION} dimensions = @dimensions ?( -> !result* )?", "broadcast",
     "outs"),
    ("linalg.transpose", f"{DESTINATION} permutation = @permutation ?( -> !result* )?",
     "transpose", "outs"),
    ("linalg.reduce", f"?( {{ $combiner }} )? {DESTINATION} dimensions = @dimensions ?( (body )?",
     "reduce", "outs"),
    ("linalg.matmul batch_matmul", NAMED, "matmul", "outs"),
    ("linalg.add sub mul div=realdiv max=maximum min=minimum powf=pow", NAMED,
     "#ins = 2; #outs = 1; equal", "outs", ANY),
    ("linalg.exp log sqrt rsqrt tanh erf abs floor ceil negf=neg reciprocal square copy=identity",
     NAMED, "#ins = 1; #outs = 1; equal", "outs", ANY),
    ("linalg.select=where3", NAMED,
     "#ins = 3; #outs = 1; ins.element = i1; ins.shape = outs.shape", "outs"),
    ("linalg.map", f"?( {{ $combiner }} )? {DESTINATION} ?( (body )?", "map", "outs"),
    ("linalg.generic", "{} ?( ins( %ins* : !ins* ) )? outs( %outs* : !outs* )"
     " ?( attrs = @attrs )? {body ?( -> !result* )?", "generic", "outs"),
    ("linalg.index", "#dim : !result", "result.kind = index; index"),
    # --- tensors
    ("tensor.empty", "( %sizes* ) : !result", "static"),
    ("tensor.splat", "%value : !result", "result.kind = tensor; %value.kind = result.element"),
    ("tensor.extract", "%value [indices : !value", "#indices = value.rank", "element"),
    ("tensor.insert", "%element into %value [indices : !value",
     "#indices = value.rank; %element.kind = value.element", "value"),
    ("tensor.from_elements", "%values* : !result", "#values = result.count; elements"),
    ("tensor.expand_shape", "%value @groups ?( output_shape [sizes )? : !value into !result",
     f"{RESHAPED}; groups"),
    ("tensor.collapse_shape", "%value @groups : !value into !result", f"{RESHAPED}; groups"),
    ("tensor.reshape", "%value ( %shape ) : ( !value , !shape ) -> !result",
     f"{RESHAPED}; shape.count = result.rank"),
    ("tensor.extract_slice", f"%value {SLICE} : !value to !result", "slice"),
    ("tensor.insert_slice", f"%value into %into {SLICE} : !value into !result",
     "%into.shape = result.shape; %into.element = result.element; slice"),
    # --- control
    ("scf.for", "?( $sign )? ^iv = %lower to %upper step %step"
     " ?( iter_args ^=inits -> !types* )? ?( : !T )? {body", "for", "types"),
    ("scf.if", "%condition ?( -> !result* )? {then ?( else {else )?",
     "%condition.kind = i1; branches"),
    ("scf.yield", YIELD, "", ""),
    ("linalg.yield", YIELD, "", ""),
    ("func.return", YIELD, "", ""),
    ("return", YIELD, "", ""),
    # --- intrinsics in bodies of linalg.generic
    ("spyreop.exp", UNARY, "T.rank = 0", "T", FLOAT),
    ("spyreop.select=where3", "%a , %b , %c ~ : !T", "T.rank = 0", "T", "half"),
    ("spyreop.sqrt rsqrt sigmoid silu gelu=gelufwd reciprocal", UNARY, "T.rank = 0", "T", "half"),
    ("spyreop.softplus", "%a beta #beta threshold #threshold : !T", "T.rank = 0; softplus", "T",
     "half"),
    ("spyreop.realdiv", BINARY, "T.rank = 0", "T", "half"),
    ("spyreop.compare", "@predicate %a , %b : !T", "predicate; T.rank = 0", "T", FLOAT),
    ("spyreop.exx2", UNARY, "T.rank = 0", "pair", FLOAT),
    ("spyreop.layernormscale", "%a ?( squares %b )? : !T", "T.rank = 0", "T", FLOAT),
    ("spyreop.layernormnorm", "%a squares %b scale %c weight %d bias %e : !T", "T.rank = 0", "T",
     FLOAT),
    ("spyreop.addi32toi32=add muli32toi32=mul", WORDS, "%a.kind = i32; %b.kind = i32", "i32"),
    ("spyreop.addi64toi64=add", WORDS, "%a.kind = i64; %b.kind = i64", "i64"),
)  # fmt: skip
_REFUSED = {
    "ktdp.inter_tile_gather inter_tile_scatter inter_tile_reduce_scatter inter_tile_all_to_all":
    "it is specified, but the dialect does not have it",
    "scf.while condition parallel forall reduce index_switch execute_region":
    "loops of KTIR are scf.for, branches scf.if",
    "func.call call_indirect constant": "a kernel is one function",
    "memref.load store alloc alloca dealloc copy subview cast reinterpret_cast view":
    "memory is accessed through ktdp views",
    "spyreop.idx32toaddr slice_reduction topk exx2_fused layernormscale_fused":
    "it has no meaning in a text",
    "ktdf.*": "texts of this dialect are made after KTIR",
}  # fmt: skip


def _rows(names: str, *cells: str) -> Iterator[OperationRow]:
    """Rows that differ in their names; ``name=engine`` where the engine has another."""
    dialect, dot, rest = names.rpartition(".")
    for name in rest.split():
        own, _, engine = name.partition("=")
        row = OperationRow(f"{dialect}{dot}{own}", *cells)
        yield replace(row, engine=engine or own) if engine or row.kinds else row


RETURNS = ("return", "func.return")
TERMINATORS = {*RETURNS, "scf.yield", "linalg.yield", "ktdp.yield_partial", "ktdp.yield_reduced"}
EXAMPLE_DIALECT = "test"
"""Operations of this dialect, in generic form, are read and printed as they are."""


@cache
def operation_rows() -> Mapping[str, OperationRow]:
    """All rows by name."""
    rows = [row for cells in _TABLE for row in _rows(*cells)]
    rows += [replace(row, refused=why) for names, why in _REFUSED.items() for row in _rows(names)]
    return {row.name: row for row in rows}


@cache
def dialects() -> Mapping[str, tuple[str, ...]]:
    """Names of the operations that are simulated, by dialect."""
    names = sorted(row.name for row in operation_rows().values() if not row.refused)
    groups = groupby(names, lambda name: name.partition(".")[0])
    return {dialect: tuple(own) for dialect, own in groups if dialect not in RETURNS}
