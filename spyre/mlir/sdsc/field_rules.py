"""Rules on fields that have no effect here: they must agree with the fields that have one.

A card's compiler may use execution units, coordinate folds or the folds of start addresses; a
frontend that writes them wrong would learn it on hardware only. docs/limits.md lists the fields
that are not compared. Rules: SuperDSC reference §2, §3, §5, §8, §10 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, UnsetType

from spyre.errors import Severity
from spyre.mlir.operation import Indirection, Operation, Padding, Tensor
from spyre.mlir.sdsc.reader import WINDOWS_KEY
from spyre.mlir.sdsc.reading import RuleContext, coord_infos
from spyre.mlir.sdsc.structs import AllocateNode, CoordInfo, FoldManager, Number, given, int_or_none
from spyre.rules import Fault, RuleSet

_TABLES = (WINDOWS_KEY, "coreletSplit_", "rowSplit_", "peSfpSplit_")
_FIDELITIES = ("regular", "fast")


def _differs(path: str, field: str, expected: object, found: object) -> Fault[str]:
    message = f"{field} has no effect here, but contradicts the operation"
    return Fault("SPY263", f"{path}.{field}", message, str(expected), str(found))


def _compute_op(context: RuleContext) -> Iterator[Fault[str]]:
    op, entry = context.op, context.document.dsc.compute_ops[0]
    path, unit = f"{context.dsc_path}.computeOp_[0]", _unit(op)
    if entry.unit not in (unit, UNSET) and not op.windows:  # of windowed ones both units do some
        yield _differs(path, "exUnit", unit, entry.unit)
    if entry.location not in ("Inner", UNSET):
        yield _differs(path, "location", "Inner", entry.location)
    if isinstance(entry.attributes, UnsetType):
        return
    formats = [tensor.data_format for tensor in (*op.inputs, *op.outputs)]
    if entry.attributes.data_format not in formats:
        expected, found = " or ".join(dict.fromkeys(formats)), entry.attributes.data_format
        yield _differs(f"{path}.attributes_", "dataFormat_", expected, found)
    if entry.attributes.fidelity not in (*_FIDELITIES, UNSET):
        expected, found = " or ".join(_FIDELITIES), str(entry.attributes.fidelity)
        yield _differs(f"{path}.attributes_", "fidelity_", expected, found)


def _unit(op: Operation) -> str:
    """The matrix unit contracts a dim of two inputs."""
    missing = (dim for dim in op.dims if not op.outputs[0].holds(dim))
    return "pt" if any(sum(t.holds(dim) for t in op.inputs) > 1 for dim in missing) else "sfp"


def _tables(context: RuleContext) -> Iterator[Fault[str]]:
    """No mask constant without a mask; in N_ and the stages the operation's windows, no splits."""
    op, dsc = context.op, context.document.dsc
    if not op.masks and int_or_none(given(dsc.mask_constant_id, -1)) != -1:
        yield _differs(context.dsc_path, "maskingConstId_", -1, dsc.mask_constant_id)
    places = [("N_", dsc.extents)]
    for key, stage in given(dsc.stages, {}).items():
        path = f"dataStageParam_.{key}"
        places += [(f"{path}.ss_", stage.steady), (f"{path}.el_", given(stage.epilogue, {}))]
    for place, extents in places:
        for key in _TABLES:
            dims = op.windows if key == WINDOWS_KEY else ()
            table = extents.get(key)
            if table is None or not (table or dims):
                continue
            found = (
                {d.removesuffix("_") for d in table} if isinstance(table, dict) else {str(table)}
            )
            if found != set(dims):
                path = f"{context.dsc_path}.{place}"
                yield _differs(path, key, ", ".join(dims) or "no dim", ", ".join(sorted(found)))


def _nodes(context: RuleContext) -> Iterator[Fault[str]]:
    op, nodes, agreeing = context.op, context.document.nodes, None
    for tensor in op.tensors:
        node, path = nodes[tensor.index]
        folds = node.starts.functions, node.starts.properties, node.coordinates
        facts = folds, node.max_dim_sizes, tensor.scale, tensor.padding, tensor.indirection
        if facts == agreeing:  # most tensors of an operation are alike
            continue
        faults = list(_node_faults(op, tensor, node, path))
        yield from faults
        if not faults and not op.windows:
            agreeing = facts


def _node_faults(
    op: Operation, tensor: Tensor, node: AllocateNode, path: str
) -> Iterator[Fault[str]]:
    if fault := _start_fault(len(op.cores), node.starts, path):
        yield fault
    sizes = list(tensor.max_dim_sizes.values())
    if tensor.indirection is Indirection.NONE and sizes.count(-1) < len(sizes):
        yield _differs(path, "maxDimSizes_", "-1, without an index tensor", sizes)
    if tensor.indirection is Indirection.INDEX or tensor.own_core_slices:
        return
    for dim, info in coord_infos(node).items():
        if dim in tensor.scale and (fault := _coordinate_fault(op, tensor, dim, info, path)):
            yield fault


def _start_fault(cores: int, starts: FoldManager, path: str) -> Fault[str] | None:
    """The first fold has a step per core, if the addresses are a table; the others have one."""
    constant = [function.const is not UNSET for function in starts.functions]
    factors = [int_or_none(fold.factor) for fold in starts.properties]
    first = factors[0] == cores or (factors[0] == 1 and constant[0])
    if first and set(factors[1:]) <= {1} and all(constant[1:]):
        return None
    kinds = ["Const" if is_constant else "Map or Affine" for is_constant in constant]
    found = f"{', '.join(kinds)} of {', '.join(map(str, factors))}"
    expected = f"Map, Const, Const of {cores}, 1, 1"
    return _differs(path, "startAddressCoreCorelet_", expected, found)


def _coordinate_fault(
    op: Operation, tensor: Tensor, dim: str, info: CoordInfo, path: str
) -> Fault[str] | None:
    """§5.5: a coordinate is the sum of alpha · step + beta over cores, corelets, rows, elements."""
    kind = tensor.padding.get(dim, Padding.NONE).value
    kinds = [given(info.spatial, 3), given(info.temporal, 0), given(info.padding, kind)]
    pairs = zip(info.folds.functions, info.folds.properties, strict=True)
    found = [
        (getattr(f.affine, "alpha", 0), getattr(f.affine, "beta", None), p.factor) for f, p in pairs
    ]
    window, slices = op.window_of(tensor, dim), op.slices.get(dim, 1) if tensor.holds(dim) else 1
    share = op.tensor_extent(tensor, dim) * (window.stride if window else 1)
    wanted, inner = [], 0 if tensor.scale[dim] == -2 else 1
    for _, _, count in reversed(found[3:]):
        wanted.append((inner, 0, count))
        inner = max(inner, 1) * (int_or_none(count) or 1)
    wanted = [(share, 0, slices), (0, 0, 1), (0, 0, 1), *reversed(wanted)]
    if found != wanted:  # in numbers; a fold of one step adds its beta only
        found, wanted = ([_step(*fold) for fold in folds] for folds in (found, wanted))
        if found[0] == (0, 0, 1):
            wanted[0] = found[0]
    if kinds == [3, 0, kind] and found == wanted:
        return None
    expected, text = (", ".join(map(str, [*x])) for x in ([3, 0, kind, *wanted], [*kinds, *found]))
    return _differs(path, f"coordinates_.coordInfo.{dim}", expected, text)


def _step(alpha: Number, beta: Number, count: Number) -> tuple[int | None, int | None, int | None]:
    steps = int_or_none(count)
    return 0 if steps == 1 else int_or_none(alpha), int_or_none(beta), steps


FIELD_RULES: RuleSet[RuleContext, str] = RuleSet(
    {"SPY263": Severity.WARNING}, (_compute_op, _tables, _nodes)
)
"""They compare a file with itself; what the writer writes agrees."""
