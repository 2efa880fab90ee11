"""The checks of an SDSC: the rules on its form, and the order in which all rules apply.

The rules on the form need only the structs. ``inspect_sdsc`` runs them, reads the operation, and
runs the rules on its meaning; ``inspect_operation`` does the last for an operation that was built.
Fields without effect must agree with those that have one: a card's compiler may use execution
units, coordinate folds or the folds of start addresses, and a frontend that writes them wrong would
learn it on hardware only; docs/limits.md lists the fields that are not compared.
The titles of codes are in :mod:`spyre.codes`. Rules: SuperDSC reference §2-§10 and §12 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from spyre.errors import Finding, JsonLocation, SdscError, Severity, UnsupportedError, has_errors
from spyre.mlir.operation import Indirection, Operation, Padding, Tensor
from spyre.mlir.sdsc.codec import json_path
from spyre.mlir.sdsc.meaning_rules import BASIC_RULES, BUILT_RULES, MEANING_RULES
from spyre.mlir.sdsc.reader import WINDOWS_KEY, open_document, operation_of
from spyre.mlir.sdsc.reading import (
    DIM_NAMES,
    RuleContext,
    SdscDocument,
    coord_infos,
    runs_dsc,
    step_numbers,
)
from spyre.mlir.sdsc.structs import (
    AllocateNode,
    CoordInfo,
    Dims,
    FoldManager,
    Number,
    OpAttributes,
    Sdsc,
    given,
    int_or_none,
)
from spyre.mlir.sdsc.writer import write_operation
from spyre.rules import Fault, RuleSet, severities

# --- fields without effect -----------------------------------------------------------------------

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


# --- all rules -----------------------------------------------------------------------------------

MAX_CORES = 32
MAX_TENSORS = 8
TARGETS = ("senulator", "sentient", "senpcfg", "sentf", "host")
NESTED_DIM_KEYS = frozenset(
    {
        "name_",
        "paddingSizes_",
        "symbolicDimInfo_",
        "maxSymbolicVolume_",
        "coreletSplit_",
        "rowSplit_",
        "peSfpSplit_",
    }
)
_DEFAULT_STEP = (-1, 0, 0, 0)


def _unknown_keys(document: SdscDocument) -> Iterator[Fault[str]]:
    for tokens, _ in document.sdsc.unknown:
        yield Fault("SPY205", json_path(tokens), f"unknown key {tokens[-1]}")
    dsc = document.dsc
    yield from _unknown_dims(dsc.extents, f"{document.dsc_path}.N_")
    for key, stage in given(dsc.stages, {}).items():
        path = f"{document.dsc_path}.dataStageParam_.{key}"
        yield from _unknown_dims(stage.steady, f"{path}.ss_")
        yield from _unknown_dims(given(stage.epilogue, {}), f"{path}.el_")


def _unknown_dims(dims: Dims, path: str) -> Iterator[Fault[str]]:
    for key in dims:
        if key[:-1] not in DIM_NAMES and key not in NESTED_DIM_KEYS:
            yield Fault("SPY205", f"{path}.{key}", f"unknown key {key}")


def _used_cores(document: SdscDocument) -> Iterator[Fault[str]]:
    dsc, path = document.dsc, f"{document.dsc_path}.coreIdsUsed_"
    cores = [str(core) for core in dsc.core_ids]
    if not cores or len(set(cores)) != len(cores):
        yield Fault("SPY208", path, "core ids are not distinct", "distinct ids, at least one")
    for core in cores:
        if core not in _CORE_NAMES:
            yield Fault("SPY208", path, f"core {core} does not exist", "ids from 0 to 31", core)
    counts = {
        f"{document.dsc_path}.numCoresUsed_": str(dsc.num_cores),
        f"{document.path}.numCoresUsed_": str(document.sdsc.body.num_cores),
    }
    for place, count in counts.items():
        if count != str(len(cores)):
            message = "number of cores differs from the length of coreIdsUsed_"
            yield Fault("SPY208", place, message, str(len(cores)), count)


_CORE_NAMES = frozenset(str(core) for core in range(MAX_CORES))


def _core_to_dsc(document: SdscDocument) -> Iterator[Fault[str]]:
    table = document.sdsc.body.core_to_dsc
    if isinstance(table, UnsetType):
        return
    path = f"{document.path}.coreIdToDsc_"
    count = len(given(document.sdsc.body.dscs, ()))
    numbers = [str(number) for number in range(count)]
    for core in map(str, document.dsc.core_ids):
        index = table.get(core)
        if index is None:
            yield Fault("SPY209", path, f"core {core} has no DSC", f'an entry "{core}"')
        elif str(index) not in numbers:
            message = f"DSC of core {core} does not exist"
            yield Fault("SPY209", f"{path}.{core}", message, f"0 to {count - 1}", str(index))


def _schedule(document: SdscDocument) -> Iterator[Fault[str]]:
    """§9: well-formed steps that run a DSC; a core without any has the default."""
    for core, steps in given(document.sdsc.body.schedule, {}).items():
        if len(steps) == 1 and steps[0] == _DEFAULT_STEP:
            continue
        path = f"{document.path}.coreIdToDscSchedule.{core}"
        numbers = [step_numbers(step) for step in steps]
        for index, step in enumerate(numbers):
            yield from _schedule_step(document, step, f"{path}[{index}]")
        if not any(map(runs_dsc, numbers)):
            yield Fault("SPY213", path, f"core {core} never runs its DSC", "a step that does")


def _schedule_step(
    document: SdscDocument, step: tuple[int | None, ...], path: str
) -> Iterator[Fault[str]]:
    body = document.sdsc.body
    if not given(body.data_op_dscs, ()) and not given(body.data_dscs, ()):
        yield from _absent_data_op(step, path)
    if len(step) != 4 or None in step:
        expected = "[data op, DSC, barrier before, barrier after]"
        yield Fault("SPY213", path, "malformed schedule step", expected, str(list(step)))
        return
    dsc, count = step[1], len(given(body.dscs, ()))
    if step[0] == -1 and dsc == -1:
        message = "the step runs nothing"
        yield Fault("SPY213", path, message, "a data op or a DSC", str(list(step)))
    if dsc is not None and dsc >= count:
        message = "the step runs a DSC that does not exist"
        yield Fault("SPY213", path, message, f"below {count}", str(dsc))
    if any(flag not in (0, 1) for flag in step[2:]):
        message = "a barrier is neither 0 nor 1"
        yield Fault("SPY213", path, message, "0 or 1", str(list(step[2:])))


def _absent_data_op(step: tuple[int | None, ...], path: str) -> Iterator[Fault[str]]:
    """A data op of none; §9: seen in an example, data op 0 beside a DSC that does exist."""
    if len(step) != 4 or step[0] is None:
        return
    if not runs_dsc(step) and None not in step and step[:2] != (-1, -1):
        message = "the step runs a data op that does not exist"
        yield Fault("SPY213", path, message, "-1, there are none", str(step[0]))
    elif runs_dsc(step) and step[0] >= 0:
        message = "the step names a data op, and there are none"
        yield Fault("SPY260", path, message, "-1", str(step[0]))


def _equal_schedules(document: SdscDocument) -> Iterator[Fault[str]]:
    """§9: cores that use one DSC have identical steps; barriers would never meet otherwise."""
    table = given(document.sdsc.body.schedule, {})
    default = (_DEFAULT_STEP,)
    rows = [(core, table.get(core, default)) for core in map(str, document.dsc.core_ids)]
    for core, steps in rows:
        if steps == rows[0][1]:
            continue
        numbers, first = ([list(step_numbers(s)) for s in row] for row in (steps, rows[0][1]))
        if numbers != first:
            path = f"{document.path}.coreIdToDscSchedule.{core}"
            message = f"core {core} has other steps than core {rows[0][0]}"
            yield Fault("SPY259", path, message, str(first), str(numbers))


def _tensors(document: SdscDocument) -> Iterator[Fault[str]]:
    path, count = f"{document.dsc_path}.labeledDs_", len(document.dsc.tensors)
    if count > MAX_TENSORS:
        message = "more tensors than the card has segments"
        yield Fault("SPY216", path, message, "at most 8", str(count))
    for index, tensor in enumerate(document.dsc.tensors):
        if str(tensor.index) != str(index):
            message = f"{tensor.name} is not numbered by its position"
            place = f"{path}[{index}].ldsIdx_"
            yield Fault("SPY217", place, message, str(index), str(tensor.index))


def _folds(document: SdscDocument) -> Iterator[Fault[str]]:
    for index, node in enumerate(document.dsc.nodes):
        path = f"{document.dsc_path}.scheduleTree_[{index}]"
        yield from _fold_lengths(node.starts, f"{path}.startAddressCoreCorelet_")
        for dim, info in coord_infos(node).items():
            place = f"{path}.coordinates_.coordInfo.{dim}.folds"
            yield from _fold_lengths(info.folds, place)
            # len(folds) = elemArr + 3: core, corelet and row fold come before the element folds
            count = len(info.folds.properties)
            if str(info.element_folds) != str(count - 3):
                expected = f"elemArr + 3 with elemArr {info.element_folds}"
                message = f"dim {dim} has the wrong number of folds"
                yield Fault("SPY231", place, message, expected, str(count))


def _fold_lengths(manager: FoldManager, path: str) -> Iterator[Fault[str]]:
    functions, properties = len(manager.functions), len(manager.properties)
    if functions != properties:
        message = "a fold has a function and a property each"
        found = f"{functions} functions, {properties} properties"
        yield Fault("SPY245", path, message, "lists of one length", found)


def _target(document: SdscDocument) -> Iterator[Fault[str]]:
    """Check the target card and the number of corelets."""
    fold = document.sdsc.body.corelet_fold
    if not isinstance(fold, UnsetType) and str(fold.factor) not in ("1", "2"):
        path = f"{document.path}.coreletFoldProp_.factor_"
        yield Fault("SPY246", path, "unusual corelet fold", "1 or 2", str(fold.factor))
    count = given(document.dsc.num_corelets, 1)
    if str(count) != "1":
        path = f"{document.dsc_path}.numCoreletsUsed_"
        message = "corelets have no effect on results here"
        yield Fault("SPY246", path, message, "1", str(count))
    target = given(document.sdsc.body.target, TARGETS[0])
    if target not in TARGETS:
        expected = f"one of {', '.join(TARGETS)}"
        yield Fault("SPY249", f"{document.path}.target_", "unknown target", expected, target)


FORM_RULES: RuleSet[SdscDocument, str] = RuleSet(
    severities(
        "SPY205 SPY208 SPY209 SPY213 SPY216 SPY217 SPY231 SPY245 SPY246 SPY249 SPY259 SPY260",
        warnings="SPY205 SPY246 SPY249 SPY260",
    ),
    (
        _unknown_keys,
        _used_cores,
        _core_to_dsc,
        _schedule,
        _equal_schedules,
        _tensors,
        _folds,
        _target,
    ),
)
"""Rules on the form; they need no operation."""


# --- inspections ----------------------------------------------------------------------------------

LARGEST_TEXT = 10**17


class Inspection(msgspec.Struct, frozen=True):
    """Findings on one SDSC; its operation, or None after an error or a feature not simulated."""

    findings: tuple[Finding, ...]
    operation: Operation | None


def inspect_sdsc(sdsc: Sdsc, file: str) -> Inspection:
    """Checks an SDSC and reads its operation, in one pass."""
    findings: list[Finding] = []
    try:
        operation = _inspect(sdsc, file, findings)
    except SdscError as error:
        return _inspection([*findings, error.finding], None)
    except UnsupportedError as error:
        warning = error.finding.as_warning
        return _inspection([*findings, warning], None)
    return _inspection(findings, operation)


def inspect_operation(op: Operation) -> Inspection:
    """Like `inspect_sdsc` of the file that would be written of ``op``, without writing it."""
    if not _survives_writing(op):
        return inspect_sdsc(write_operation(op), op.file)
    findings: list[Finding] = []
    passed = _passes((BASIC_RULES, BUILT_RULES), RuleContext(op), findings)
    return _inspection(findings, op if passed else None)


def _survives_writing(op: Operation) -> bool:
    """True if the format can express ``op`` and the readers accept it, so that rules can run."""
    return (
        0 < len(op.tensors) <= MAX_TENSORS
        and DIM_NAMES.issuperset(op.dims)
        and min(op.extents.values(), default=0) > 0
        and not (op.symbolic_dims and (op.windows or op.masks))
        and all(0 < last < op.core_extent(dim) for dim, last in op.last_extents.items())
        and all(_tensor_survives(tensor) for tensor in op.tensors)
        and _roles_agree(op)
    )


def _tensor_survives(tensor: Tensor) -> bool:
    dims = set(tensor.dims)
    texts = (*tensor.starts, *tensor.gap_elements.values())  # numbers that are written as text
    return (
        len(dims) == len(tensor.dims)
        and min(tensor.stick_sizes, default=0) > 0
        and all(abs(number) < LARGEST_TEXT for number in texts)
        and all(dims == row.keys() for row in tensor.own_core_slices if row)
        and dims.issuperset((*tensor.gap_elements, *tensor.padding))
    )


def _roles_agree(op: Operation) -> bool:
    """True if tensors of one role have the dims and the stick that a file gives once per role."""
    layouts: dict[str, tuple[frozenset[str], tuple[str, ...], tuple[int, ...]]] = {}
    for tensor in op.tensors:
        layout = (frozenset(tensor.dims), tensor.stick_dims, tensor.stick_sizes)
        if layouts.setdefault(tensor.role, layout) != layout:
            return False
    return True


def _inspection(findings: list[Finding], operation: Operation | None) -> Inspection:
    """Return an inspection without duplicate findings; tensors that share a role repeat them."""
    return Inspection(tuple(dict.fromkeys(findings)), operation)


def _inspect(sdsc: Sdsc, file: str, findings: list[Finding]) -> Operation | None:
    document = open_document(sdsc, file)
    findings.extend(FORM_RULES.findings(document, partial(JsonLocation, file)))
    if has_errors(findings):
        return None
    operation = operation_of(document)
    context = RuleContext(operation, document)
    stages = BASIC_RULES, MEANING_RULES, FIELD_RULES
    return operation if _passes(stages, context, findings) else None


def _passes(
    stages: Iterable[RuleSet[RuleContext, str]], context: RuleContext, findings: list[Finding]
) -> bool:
    """Collects the findings of one stage after the other; False at the first with an error.

    So a rule may rely on those of the stages before.
    """
    locate = partial(JsonLocation, context.op.file)
    for rules in stages:
        findings.extend(rules.findings(context, locate))
        if has_errors(findings):
            return False
    return True
