"""What is valid in an SDSC but not simulated: one table, used before an operation is read.

Each feature says where it is in the file (a JSON path) or that the file does not use it. The
reader turns a hit into :class:`UnsupportedError`, the checker into a warning. Which features
exist: SuperDSC reference §2, §3, §5, §9, §11 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spyre.errors import JsonLocation, UnsupportedError
from spyre.mlir.sdsc import json_path
from spyre.mlir.sdsc_structs import Dims, ScheduleStep, Sdsc, given, int_or_none

DEFAULT_STEPS = (((-1, 0, 0, 0),), ((0, 0, 0, 0),))
"""Schedules that mean "run DSC 0": no data op, or (seen in one example) data op 0 of none."""

DIM_NAMES = frozenset(
    "in out mb ij rc kij x y sij zij i j r c ki kj si sj zi zj".split()  # noqa: SIM905
)
"""The primary dims of the format (§1)."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that is not simulated; ``find`` gives the JSON paths where a file uses it."""

    code: str
    message: str
    find: Callable[[Sdsc, str], Iterator[str]]


def body_path(sdsc: Sdsc) -> str:
    """JSON path of the SuperDsc object."""
    return json_path((sdsc.name,))


def dsc_path(sdsc: Sdsc) -> str:
    """JSON path of the first DSC."""
    return json_path((sdsc.name, "dscs_", 0, sdsc.dsc_name))


def dim_entries(extents: Dims) -> dict[str, int | str]:
    """The dims of a DataStructDims object in file order, names without the trailing ``_``."""
    return {
        key[:-1]: value
        for key, value in extents.items()
        if key[:-1] in DIM_NAMES and key[-1] == "_" and not isinstance(value, dict)
    }


def _several_dscs(sdsc: Sdsc, path: str) -> Iterator[str]:
    if len(given(sdsc.body.dscs, ())) > 1:
        yield f"{path}.dscs_"


def _several_ops(sdsc: Sdsc, path: str) -> Iterator[str]:
    if len(sdsc.dsc.compute_ops) > 1:
        yield f"{dsc_path(sdsc)}.computeOp_"


def _data_ops(sdsc: Sdsc, path: str) -> Iterator[str]:
    if given(sdsc.body.data_op_dscs, ()):
        yield f"{path}.dataOpdscs_"
    if given(sdsc.body.data_dscs, ()):
        yield f"{path}.datadscs_"


def _time_folds(sdsc: Sdsc, path: str) -> Iterator[str]:
    for index, fold in enumerate(given(sdsc.body.time_folds, ())):
        if str(fold.factor) != "1":
            yield f"{path}.sdscFoldProps_[{index}].factor_"


def _schedules(sdsc: Sdsc, path: str) -> Iterator[str]:
    for core, steps in given(sdsc.body.schedule, {}).items():
        if steps not in DEFAULT_STEPS and tuple(map(step_numbers, steps)) not in DEFAULT_STEPS:
            yield f"{path}.coreIdToDscSchedule.{core}"


def step_numbers(step: ScheduleStep) -> tuple[int | None, ...]:
    """A step's members in order, whichever of the two forms the file uses."""
    return tuple(int_or_none(m) for m in (step.values() if isinstance(step, dict) else step))


def _symbolic_dims(sdsc: Sdsc, path: str) -> Iterator[str]:
    dsc = sdsc.dsc
    for dim, symbols in given(dsc.dim_symbols, {}).items():
        if symbols:
            yield f"{dsc_path(sdsc)}.dimToSymbolMapping_.{dim}"
    if dsc.extents.get("symbolicDimInfo_"):
        yield f"{dsc_path(sdsc)}.N_.symbolicDimInfo_"


def _padding(sdsc: Sdsc, path: str) -> Iterator[str]:
    for index, node in enumerate(sdsc.dsc.nodes):
        for dim, kind in given(node.padding, {}).items():
            if kind != "nopad":
                yield f"{dsc_path(sdsc)}.scheduleTree_[{index}].padding_.{dim}"


def _epilogue(sdsc: Sdsc, path: str) -> Iterator[str]:
    for key, stage in given(sdsc.dsc.stages, {}).items():
        epilogue = given(stage.epilogue, stage.steady)
        if epilogue != stage.steady and dim_entries(epilogue) != dim_entries(stage.steady):
            yield f"{dsc_path(sdsc)}.dataStageParam_.{key}.el_"


def _share_info(sdsc: Sdsc, path: str) -> Iterator[str]:
    if given(sdsc.body.share_info, ()):
        yield f"{path}.ldsShareInfo_"


def _address_indices(sdsc: Sdsc, path: str) -> Iterator[str]:
    for index, node in enumerate(sdsc.dsc.nodes):
        if given(node.index_type, "index") != "index":
            yield f"{dsc_path(sdsc)}.scheduleTree_[{index}].indexTensorType_"


def _windows(sdsc: Sdsc, path: str) -> Iterator[str]:
    if sdsc.dsc.extents.get("paddingSizes_"):
        yield f"{dsc_path(sdsc)}.N_.paddingSizes_"


FEATURES: tuple[Feature, ...] = (
    Feature("SPY503", "data-op DSCs are not simulated", _data_ops),
    Feature("SPY501", "several DSCs in one SDSC are not simulated", _several_dscs),
    Feature("SPY502", "several compute ops in one DSC are not simulated", _several_ops),
    Feature("SPY504", "time folds other than 1 are not simulated", _time_folds),
    Feature("SPY505", "schedules other than [[-1, 0, 0, 0]] are not simulated", _schedules),
    Feature("SPY506", "symbolic dims are not simulated", _symbolic_dims),
    Feature("SPY507", "padding other than nopad is not simulated", _padding),
    Feature("SPY508", "a last step el_ that differs from ss_ is not simulated", _epilogue),
    Feature("SPY509", "shared tensors (ldsShareInfo_) are not simulated", _share_info),
    Feature(
        "SPY513", "index tensors of another type than index are not simulated", _address_indices
    ),
    Feature("SPY514", "windowed extents (paddingSizes_) are not simulated", _windows),
)


def unsupported_features(sdsc: Sdsc, file: str) -> Iterator[UnsupportedError]:
    """Every use of a feature that is not simulated, as the error it would be."""
    path = body_path(sdsc)
    for feature in FEATURES:
        if feature.code != "SPY503" and not given(sdsc.body.dscs, ()):
            return
        for place in feature.find(sdsc, path):
            yield UnsupportedError(feature.code, feature.message, JsonLocation(file, place))
