"""What is valid in an SDSC but not simulated: one table, used before an operation is read.

Each feature says where it is in the file (a JSON path) or that the file does not use it. The
reader turns a hit into :class:`UnsupportedError`, the checker into a warning. Which features
exist: SuperDSC reference §2, §3, §5, §9, §11 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import UNSET

from spyre.errors import JsonLocation, UnsupportedError
from spyre.mlir.sdsc import json_path
from spyre.mlir.sdsc_structs import Dims, ScheduleStep, Sdsc, given, int_or_none

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


def _repeated_dscs(sdsc: Sdsc, path: str) -> Iterator[str]:
    """Schedules that run the DSC more than once."""
    for core, steps in given(sdsc.body.schedule, {}).items():
        if len(steps) > 1 and sum(runs_dsc(step_numbers(step)) for step in steps) > 1:
            yield f"{path}.coreIdToDscSchedule.{core}"


def runs_dsc(step: tuple[int | None, ...]) -> bool:
    """True if a step (§9) runs a DSC after its data op."""
    return len(step) > 1 and step[1] is not None and step[1] >= 0


def step_numbers(step: ScheduleStep) -> tuple[int | None, ...]:
    """A step's members as [data op, DSC, barrier before, barrier after].

    An object's members go by their names (``datadsc``, ``dldsc``, ``before``, ``after``, with what
    emitters add to them), in file order where a name says nothing.
    """
    if not isinstance(step, dict):
        return tuple(int_or_none(member) for member in step)
    names = ("datadsc", "dldsc", "before", "after")
    keys = {name: key for name in names for key in step if name in key.lower()}
    ordered = [keys[name] for name in names] if len(keys) == len(step) == 4 else list(step)
    return tuple(int_or_none(step[key]) for key in ordered)


def _stick_replication(sdsc: Sdsc, path: str) -> Iterator[str]:
    """``stickRepl_`` of a role or of the DSC, unless it says 1: its meaning is unpublished."""
    for role, layout in sdsc.dsc.roles.items():
        if not _says_once(layout.stick_replication):
            yield f"{dsc_path(sdsc)}.primaryDsInfo_.{role}.stickRepl_"
    if not _says_once(sdsc.dsc.stick_replication):
        yield f"{dsc_path(sdsc)}.stickRepl_"


def _says_once(value: object) -> bool:
    """True for nothing, 0, 1, and lists or objects of these."""
    if isinstance(value, dict):
        return all(map(_says_once, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_says_once, value))
    return value is UNSET or value is None or str(value) in ("0", "1", "False", "True")


def _share_info(sdsc: Sdsc, path: str) -> Iterator[str]:
    if given(sdsc.body.share_info, ()):
        yield f"{path}.ldsShareInfo_"


def _address_indices(sdsc: Sdsc, path: str) -> Iterator[str]:
    for index, node in enumerate(sdsc.dsc.nodes):
        if given(node.index_type, "index") != "index":
            yield f"{dsc_path(sdsc)}.scheduleTree_[{index}].indexTensorType_"


FEATURES: tuple[Feature, ...] = (
    Feature("SPY503", "data-op DSCs are not simulated", _data_ops),
    Feature("SPY501", "several DSCs in one SDSC are not simulated", _several_dscs),
    Feature("SPY502", "several compute ops in one DSC are not simulated", _several_ops),
    Feature("SPY504", "time folds other than 1 are not simulated", _time_folds),
    Feature(
        "SPY505", "a schedule that runs the DSC several times is not simulated", _repeated_dscs
    ),
    Feature("SPY509", "shared tensors (ldsShareInfo_) are not simulated", _share_info),
    Feature(
        "SPY513", "index tensors of another type than index are not simulated", _address_indices
    ),
    Feature(
        "SPY516", "repeated sticks (stickRepl_ other than 1) are not simulated", _stick_replication
    ),
)


def unsupported_features(sdsc: Sdsc, file: str) -> Iterator[UnsupportedError]:
    """Every use of a feature that is not simulated, as the error it would be."""
    path = body_path(sdsc)
    for feature in FEATURES:
        if feature.code != "SPY503" and not given(sdsc.body.dscs, ()):
            return
        for place in feature.find(sdsc, path):
            yield UnsupportedError(feature.code, feature.message, JsonLocation(file, place))
