"""Rules on fields that have no effect here: they must agree with the fields that have one.

A card's compiler may use execution units, coordinate folds or the folds of start addresses; a
frontend that writes them wrong would learn it on hardware only. docs/limits.md lists the fields
that are not compared. Rules: SuperDSC reference §2, §3, §5, §8, §10 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from spyre.errors import Severity
from spyre.mlir.operation import Indirection, Operation, Padding, Tensor
from spyre.mlir.sdsc.reader import WINDOWS_KEY
from spyre.mlir.sdsc.reading import RuleContext, coord_infos
from spyre.mlir.sdsc.structs import (
    AllocateNode,
    CoordInfo,
    Number,
    OpAttributes,
    given,
    int_or_none,
)
from spyre.rules import Fault, RuleSet

_Step = tuple[Number, Number, Number]  # alpha, beta and number of steps of a fold
_TABLES = (WINDOWS_KEY, "coreletSplit_", "rowSplit_", "peSfpSplit_")


def _differs(path: str, field: str, expected: object, found: object) -> Fault[str]:
    message = f"{field} has no effect here, but contradicts the operation"
    return Fault("SPY263", f"{path}.{field}", message, str(expected), str(found))


def _compute_op(context: RuleContext) -> Iterator[Fault[str]]:
    op, entry = context.op, context.document.dsc.compute_ops[0]
    formats = tuple(tensor.data_format for tensor in (*op.inputs, *op.outputs))
    attributes = given(entry.attributes, OpAttributes(formats[0]))
    for field, allowed, found in (
        ("exUnit", _units(op), entry.unit),
        ("location", ("Inner",), entry.location),
        ("attributes_.dataFormat_", formats, attributes.data_format),
        ("attributes_.fidelity_", ("regular", "fast"), attributes.fidelity),
    ):
        if found is not UNSET and found not in allowed:
            expected = " or ".join(dict.fromkeys(allowed))
            yield _differs(f"{context.dsc_path}.computeOp_[0]", field, expected, found)


def _units(op: Operation) -> tuple[str, ...]:
    """The matrix unit contracts a dim of two inputs; of windowed operations both units do some."""
    missing = (dim for dim in op.dims if not op.outputs[0].holds(dim))
    contracts = any(sum(t.holds(dim) for t in op.inputs) > 1 for dim in missing)
    return ("pt", "sfp") if op.windows else ("pt",) if contracts else ("sfp",)


def _tables(context: RuleContext) -> Iterator[Fault[str]]:
    """No mask constant without a mask; in N_ and the stages the operation's windows, no splits."""
    op, dsc, root = context.op, context.document.dsc, context.dsc_path
    if not op.masks and str(given(dsc.mask_constant_id, -1)) != "-1":
        yield _differs(root, "maskingConstId_", -1, dsc.mask_constant_id)
    places = {"N_": dsc.extents}
    for key, stage in given(dsc.stages, {}).items():
        places[f"dataStageParam_.{key}.ss_"] = stage.steady
        places[f"dataStageParam_.{key}.el_"] = given(stage.epilogue, {})
    for place, extents in places.items():
        for key in _TABLES:
            table, dims = extents.get(key), op.windows if key == WINDOWS_KEY else ()
            if table is not None and (table or dims):
                names = table if isinstance(table, dict) else (str(table),)
                found = sorted(name.removesuffix("_") for name in names)
                if found != sorted(dims):
                    yield _differs(f"{root}.{place}", key, sorted(dims), found)


def _nodes(context: RuleContext) -> Iterator[Fault[str]]:
    op, nodes = context.op, context.document.nodes
    agreeing: list[tuple[object, ...]] = []
    for tensor in op.tensors:
        node, path = nodes[tensor.index]
        folds = node.starts.functions, node.starts.properties, node.coordinates
        facts = folds, node.max_dim_sizes, tensor.scale, tensor.padding, tensor.indirection
        if facts in agreeing:  # most tensors of an operation are alike
            continue
        faults = list(_node_faults(op, tensor, node, path))
        yield from faults
        if not (faults or op.windows):
            agreeing.append(facts)


def _node_faults(
    op: Operation, tensor: Tensor, node: AllocateNode, path: str
) -> Iterator[Fault[str]]:
    constant = [function.const is not UNSET for function in node.starts.functions]
    factors = [int_or_none(fold.factor) for fold in node.starts.properties]
    first = factors[0] == len(op.cores) or (factors[0] == 1 and constant[0])
    if not (first and set(factors[1:]) <= {1} and all(constant[1:])):
        expected = f"a table of {len(op.cores)} steps, then constants of 1"
        found = f"steps {factors}, constant {constant}"
        yield _differs(path, "startAddressCoreCorelet_", expected, found)
    sizes = list(tensor.max_dim_sizes.values())
    if tensor.indirection is Indirection.NONE and sizes.count(-1) < len(sizes):
        yield _differs(path, "maxDimSizes_", "-1, without an index tensor", sizes)
    if tensor.indirection is not Indirection.INDEX and not tensor.own_core_slices:
        for dim, info in coord_infos(node).items():
            if dim in tensor.scale:
                yield from _coordinates(op, tensor, dim, info, path)


def _coordinates(
    op: Operation, tensor: Tensor, dim: str, info: CoordInfo, path: str
) -> Iterator[Fault[str]]:
    """§5.5: a coordinate is the sum of alpha · step + beta over cores, corelets, rows, elements."""
    kind = tensor.padding.get(dim, Padding.NONE).value
    kinds = [str(given(info.spatial, 3)), str(given(info.temporal, 0)), given(info.padding, kind)]
    pairs = zip(info.folds.functions, info.folds.properties, strict=True)
    found: list[_Step] = [
        (getattr(function.affine, "alpha", 0), getattr(function.affine, "beta", ""), fold.factor)
        for function, fold in pairs
    ]
    window, slices = op.window_of(tensor, dim), op.slices.get(dim, 1) if tensor.holds(dim) else 1
    share = op.tensor_extent(tensor, dim) * (window.stride if window else 1)
    wanted: list[_Step] = []
    inner = 0 if tensor.scale[dim] == -2 else 1
    for _, _, count in reversed(found[3:]):
        wanted.append((inner, 0, count))
        inner = max(inner, 1) * (int_or_none(count) or 1)
    wanted = [(share, 0, slices), (0, 0, 1), (0, 0, 1), *reversed(wanted)]
    if found != wanted:  # in numbers; a fold of one step adds its beta only
        found, wanted = ([_step(*fold) for fold in folds] for folds in (found, wanted))
        wanted[0] = found[0] if found[0] == (0, 0, 1) else wanted[0]
    if kinds != ["3", "0", kind] or found != wanted:
        expected, text = (", ".join(map(str, x)) for x in ([3, 0, kind, *wanted], [*kinds, *found]))
        yield _differs(path, f"coordinates_.coordInfo.{dim}", expected, text)


def _step(alpha: Number, beta: Number, count: Number) -> _Step:
    numbers = (int_or_none(n) for n in (alpha, beta, count))
    first, second, steps = ("none" if number is None else number for number in numbers)
    return 0 if steps == 1 else first, second, steps


FIELD_RULES: RuleSet[RuleContext, str] = RuleSet(
    {"SPY263": Severity.WARNING}, (_compute_op, _tables, _nodes)
)
"""Rules for files that were read; files of our writer follow them."""
