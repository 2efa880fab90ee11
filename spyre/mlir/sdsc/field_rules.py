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
from spyre.mlir.sdsc.structs import CoordInfo, FoldManager, given, int_or_none
from spyre.rules import Fault, RuleSet

Field = tuple[tuple[str, ...], tuple[object, ...], object]
"""Path, the values that agree with the operation, and the one of the file (UNSET if absent)."""
_TABLES = frozenset({WINDOWS_KEY, "coreletSplit_", "rowSplit_", "peSfpSplit_"})
_FIDELITIES = ("regular", "fast")


def _contradictions(context: RuleContext) -> Iterator[Fault[str]]:
    for path, allowed, found in _fields(context):
        if found not in allowed and found is not UNSET:
            message = f"{path[-1]} has no effect here, but contradicts the operation"
            expected = " or ".join(map(str, dict.fromkeys(allowed)))
            yield Fault("SPY263", ".".join(path), message, expected, str(found))


def _fields(context: RuleContext) -> Iterator[Field]:
    op, dsc, root = context.op, context.document.dsc, context.dsc_path
    entry, at = dsc.compute_ops[0], f"{root}.computeOp_[0]"
    yield (at, "exUnit"), _units(op), entry.unit
    yield (at, "location"), ("Inner",), entry.location
    if not isinstance(entry.attributes, UnsetType):
        formats = tuple(tensor.data_format for tensor in (*op.inputs, *op.outputs))
        yield (at, "attributes_", "dataFormat_"), formats, entry.attributes.data_format
        yield (at, "attributes_", "fidelity_"), _FIDELITIES, entry.attributes.fidelity
    if not op.masks:
        yield (root, "maskingConstId_"), (-1,), int_or_none(given(dsc.mask_constant_id, -1))
    places = {"N_": dsc.extents}
    for key, stage in given(dsc.stages, {}).items():
        places[f"dataStageParam_.{key}.ss_"] = stage.steady
        places[f"dataStageParam_.{key}.el_"] = given(stage.epilogue, {})
    for place, extents in places.items():
        for key in extents.keys() & _TABLES:
            dims = sorted(op.windows) if key == WINDOWS_KEY else []
            table = extents[key]
            found = sorted(d.removesuffix("_") for d in table) if isinstance(table, dict) else table
            yield (root, place, key), (str(dims),), str(found)
    for tensor in op.tensors:
        yield from _node_fields(context, tensor)


def _units(op: Operation) -> tuple[str, ...]:
    """The matrix unit contracts a dim of two inputs; of windowed operations both units do some."""
    if op.windows:
        return "pt", "sfp"
    contracted = (dim for dim in op.dims if not op.outputs[0].holds(dim))
    return ("pt" if any(sum(t.holds(d) for t in op.inputs) > 1 for d in contracted) else "sfp",)


def _node_fields(context: RuleContext, tensor: Tensor) -> Iterator[Field]:
    op, (node, path) = context.op, context.document.nodes[tensor.index]
    yield from _start_fields(len(op.cores), node.starts, f"{path}.startAddressCoreCorelet_")
    if tensor.indirection is Indirection.NONE:
        sizes = tuple(tensor.max_dim_sizes.values())
        yield (path, "maxDimSizes_"), ((-1,) * len(sizes),), sizes
    if tensor.indirection is not Indirection.INDEX and not tensor.own_core_slices:
        for dim, info in coord_infos(node).items():
            if dim in tensor.scale:
                place = f"{path}.coordinates_.coordInfo.{dim}"
                yield from _coordinate_fields(op, tensor, dim, info, place)


def _start_fields(cores: int, starts: FoldManager, path: str) -> Iterator[Field]:
    """The first fold has a step per core, if the addresses are a table; the others have one."""
    pairs = zip(starts.functions, starts.properties, strict=True)
    for number, (function, fold) in enumerate(pairs):
        is_constant = function.const is not UNSET
        counts = (1,) if number else (cores, 1) if is_constant else (cores,)
        yield (f"{path}.dim_prop_attr[{number}]", "factor_"), counts, int_or_none(fold.factor)
        if number:
            kind = "Const" if is_constant else "Map or Affine"
            yield (path, f"dim_prop_func[{number}]"), ("Const",), kind


def _coordinate_fields(
    op: Operation, tensor: Tensor, dim: str, info: CoordInfo, path: str
) -> Iterator[Field]:
    """§5.5: a coordinate is the sum of alpha · step + beta over cores, corelets, rows, elements."""
    yield (path, "spatial"), (3,), info.spatial
    yield (path, "temporal"), (0,), info.temporal
    yield (path, "padding"), (tensor.padding.get(dim, Padding.NONE).value,), info.padding
    window, factors = (
        op.window_of(tensor, dim),
        [int_or_none(p.factor) for p in info.folds.properties],
    )
    share = op.tensor_extent(tensor, dim) * (window.stride if window else 1)
    slices = op.slices.get(dim, 1) if tensor.holds(dim) else 1
    for number, count in enumerate(((1, slices), (1,), (1,))):
        yield (f"{path}.folds.dim_prop_attr[{number}]", "factor_"), count, factors[number]
    inner = 1
    for number in reversed(range(len(factors))):
        place, affine = f"{path}.folds.dim_prop_func[{number}]", info.folds.functions[number].affine
        if isinstance(affine, UnsetType):
            yield (path, "dim_prop_func"), ("Affine",), "Map or Const"
            continue
        yield (place, "beta_"), (0,), int_or_none(affine.beta)
        if factors[number] != 1:
            replicated = number == len(factors) - 1 and tensor.scale[dim] == -2
            alphas = (share,) if number == 0 else (inner, 0) if replicated else (inner,)
            yield (place, "alpha_"), alphas, int_or_none(affine.alpha)
        inner *= factors[number] or 1


FIELD_RULES: RuleSet[RuleContext, str] = RuleSet({"SPY263": Severity.WARNING}, (_contradictions,))
"""They compare a file with itself; what the writer writes agrees."""
