"""Context of reading and checking one SDSC: JSON paths, cores, errors, unsupported features.

Readers and rules share the object made here. `unsupported_features` finds valid SDSC features that
are not simulated: the reader raises the first, the checker warns of each.
Rules: SuperDSC reference §2, §3, §5, §9, §11 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec
from msgspec import UNSET, UnsetType

from spyre.errors import JsonLocation, SdscError, UnsupportedError
from spyre.mlir.operation import Footprint, Operation, Tensor, footprint
from spyre.mlir.sdsc.codec import json_path
from spyre.mlir.sdsc.structs import (
    AllocateNode,
    CoordInfo,
    Dims,
    Dsc,
    Number,
    ScheduleStep,
    Sdsc,
    given,
    int_or_none,
)

DIM_NAMES = frozenset(
    "in out mb ij rc kij x y sij zij i j r c ki kj si sj zi zj".split()  # noqa: SIM905
)
"""The primary dims of the format (§1)."""


def dim_entries(extents: Dims) -> dict[str, int | str]:
    """The dims of a DataStructDims object in file order, names without the trailing ``_``."""
    return {
        key[:-1]: value
        for key, value in extents.items()
        if key[:-1] in DIM_NAMES and key[-1] == "_" and not isinstance(value, dict)
    }


def runs_dsc(step: tuple[int | None, ...]) -> bool:
    """True if a step (§9) runs a DSC after its data op."""
    return len(step) > 1 and step[1] is not None and step[1] >= 0


def step_numbers(step: ScheduleStep) -> tuple[int | None, ...]:
    """A step's members as [data op, DSC, barrier before, barrier after].

    An object's members are found by names that contain ``datadsc``, ``dldsc``, ``before`` and
    ``after`` (emitters add prefixes); members with other names are taken in file order.
    """
    if not isinstance(step, dict):
        return tuple(int_or_none(member) for member in step)
    # Files have lists; the schema of RFC 0552 also allows objects with names like these.
    names = ("datadsc", "dldsc", "before", "after")
    keys = {name: key for name in names for key in step if name in key.lower()}
    ordered = [keys[name] for name in names] if len(keys) == len(step) == 4 else list(step)
    return tuple(int_or_none(step[key]) for key in ordered)


class SdscDocument(msgspec.Struct, frozen=True, dict=True):
    """One SDSC file and values derived from it; ``file`` names it in errors."""

    sdsc: Sdsc
    file: str

    @cached_property
    def path(self) -> str:
        """JSON path of the SuperDsc object."""
        return json_path((self.sdsc.name,))

    @cached_property
    def dsc_path(self) -> str:
        """JSON path of the DSC."""
        return json_path((self.sdsc.name, "dscs_", 0, self.sdsc.dsc_name))

    @cached_property
    def dsc(self) -> Dsc:
        """The DSC."""
        return self.sdsc.dsc

    @cached_property
    def cores(self) -> tuple[int, ...]:
        """Ids of the used cores, in file order."""
        path = f"{self.dsc_path}.coreIdsUsed_"
        ids = self.dsc.core_ids
        return tuple(core if type(core) is int else self.integer(core, path) for core in ids)

    @cached_property
    def nodes(self) -> dict[int, tuple[AllocateNode, str]]:
        """Allocate node and its JSON path, per tensor index. SdscError for other nodes."""
        nodes: dict[int, tuple[AllocateNode, str]] = {}
        for position, node in enumerate(self.dsc.nodes):
            path = f"{self.dsc_path}.scheduleTree_[{position}]"
            if node.node_type != "allocate":
                message = f"node {node.name} is not an allocation"
                raise self.error("SPY223", message, f"{path}.nodeType_", "allocate", node.node_type)
            index = self.integer(node.tensor_index, f"{path}.ldsIdx_")
            if index in nodes:
                message = f"tensor {index} has two allocate nodes"
                raise self.error("SPY223", message, f"{path}.ldsIdx_", "one node per tensor")
            nodes[index] = node, path
        return nodes

    def error(
        self, code: str, message: str, path: str, expected: str = "", found: str = ""
    ) -> SdscError:
        """An SdscError at a JSON path of this file."""
        return SdscError(
            code, message, JsonLocation(self.file, path), expected=expected, found=found
        )

    def unsupported(self, code: str, message: str, path: str) -> UnsupportedError:
        """An UnsupportedError at a JSON path of this file."""
        return UnsupportedError(code, message, JsonLocation(self.file, path))

    def integer(self, value: Number | bool, path: str) -> int:
        """An integer or decimal string as int."""
        number = value if type(value) is int else int_or_none(value)
        if number is None:
            message = "number cannot be read"
            expected = "an integer or a decimal string of at most 18 digits"
            raise self.error("SPY206", message, path, expected=expected, found=repr(value)[:60])
        return number


def unsupported_features(document: SdscDocument) -> Iterator[UnsupportedError]:
    """Every use of a feature that is not simulated, as the error it would be."""
    refused, body, path = document.unsupported, document.sdsc.body, document.path
    for key, entries in (("dataOpdscs_", body.data_op_dscs), ("datadscs_", body.data_dscs)):
        if given(entries, ()):
            yield refused("SPY503", "data-op DSCs are not simulated", f"{path}.{key}")
    if not (dscs := given(body.dscs, ())):
        return
    if len(dscs) > 1:
        yield refused("SPY501", "several DSCs in one SDSC are not simulated", f"{path}.dscs_")
    if len(document.dsc.compute_ops) > 1:
        message = "several compute ops in one DSC are not simulated"
        yield refused("SPY502", message, f"{document.dsc_path}.computeOp_")
    yield from _unsupported_runs(document)
    if given(body.share_info, ()):
        message = "shared tensors (ldsShareInfo_) are not simulated"
        yield refused("SPY509", message, f"{path}.ldsShareInfo_")
    yield from _unsupported_tensors(document)


def _unsupported_runs(document: SdscDocument) -> Iterator[UnsupportedError]:
    """A DSC that runs more than once."""
    refused, body, path = document.unsupported, document.sdsc.body, document.path
    for index, fold in enumerate(given(body.time_folds, ())):
        if str(fold.factor) != "1":
            message = "time folds other than 1 are not simulated"
            yield refused("SPY504", message, f"{path}.sdscFoldProps_[{index}].factor_")
    for core, steps in given(body.schedule, {}).items():
        if len(steps) > 1 and sum(runs_dsc(step_numbers(step)) for step in steps) > 1:
            message = "a schedule that runs the DSC several times is not simulated"
            yield refused("SPY505", message, f"{path}.coreIdToDscSchedule.{core}")


def _unsupported_tensors(document: SdscDocument) -> Iterator[UnsupportedError]:
    refused, dsc, path = document.unsupported, document.dsc, document.dsc_path
    for index, node in enumerate(dsc.nodes):
        # "address": the tensor holds byte addresses of the device; never emitted (sdsc.md §6.4)
        if given(node.index_type, "index") != "index":
            message = "index tensors of another type than index are not simulated"
            yield refused("SPY513", message, f"{path}.scheduleTree_[{index}].indexTensorType_")
    # `stickRepl_` of a role or of the DSC, unless it is 1: its meaning is unpublished.
    replications = {f"primaryDsInfo_.{name}.": role for name, role in dsc.roles.items()} | {"": dsc}
    for owner, value in replications.items():
        if not _says_once(value.stick_replication):
            message = "repeated sticks (stickRepl_ other than 1) are not simulated"
            yield refused("SPY516", message, f"{path}.{owner}stickRepl_")


def _says_once(value: object) -> bool:
    """True for nothing, 0, 1, and lists or objects of these."""
    if isinstance(value, dict):
        return all(map(_says_once, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_says_once, value))
    return value is UNSET or value is None or str(value) in ("0", "1", "False", "True")


def read_core_slices(
    document: SdscDocument,
    table: Mapping[str, Mapping[str, Number]],
    dims: Mapping[str, int],
    path: str,
    may_lack: bool = False,
) -> tuple[Mapping[str, int], ...]:
    """A coreIdToWkSlice_ table as slice index per dim, for every used core in core order.

    ``may_lack``: a core without an entry has an empty row; otherwise it is an error.
    """
    rows: list[Mapping[str, int]] = []
    for core in document.cores:
        row = table.get(str(core))
        if row is None and may_lack:  # a shuffle's source may be on some of the cores only
            rows.append({})
            continue
        if row is None:
            message = f"core {core} has no work slice"
            raise document.error("SPY210", message, path, f'an entry "{core}"', "none")
        rows.append(_slice_row(document, row, dims, f"{path}.{core}"))
    return tuple(rows)


def _slice_row(
    document: SdscDocument, row: Mapping[str, Number], dims: Mapping[str, int], path: str
) -> dict[str, int]:
    if row.keys() != dims.keys():  # a dim may be left out: then it is not split
        for dim in row.keys() - dims.keys():
            raise unknown_dim(document, dim, dims, f"{path}.{dim}")
    return {
        dim: value if type(value := row.get(dim, 0)) is int else document.integer(value, path)
        for dim in dims
    }


def unknown_dim(document: SdscDocument, dim: str, dims: Mapping[str, int], path: str) -> SdscError:
    """The error for a dim that is not one of ``dims``."""
    message = f"dim {dim} is not part of the iteration space"
    return document.error("SPY222", message, path, f"one of {', '.join(dims)}", dim)


# --- values for the rules ----------------------------------------------------------------------


class RuleContext(msgspec.Struct, frozen=True, dict=True):
    """Subject of a rule on the meaning: an operation, and the file it was read from.

    ``source`` is None for a built operation: paths are then those of the file that the writer would
    make, where the node of tensor k is the k-th and the DSC has the operation's name.
    """

    op: Operation
    source: SdscDocument | None = None

    @property
    def document(self) -> SdscDocument:
        """The file, for rules that compare parts of it with each other."""
        assert self.source is not None
        return self.source

    @cached_property
    def path(self) -> str:
        """JSON path of the SuperDsc object."""
        return json_path((self.op.sdsc_name,))

    @cached_property
    def dsc_path(self) -> str:
        """JSON path of the DSC."""
        if self.source is not None:
            return self.source.dsc_path
        return json_path((self.op.sdsc_name, "dscs_", 0, self.op.name))

    @cached_property
    def footprints(self) -> Mapping[int, Footprint]:
        """Footprint of every operand, by tensor index."""
        return {tensor.index: footprint(self.op, tensor) for tensor in self.op.tensors}

    def node_path(self, tensor: Tensor) -> str:
        """JSON path of a tensor's allocate node."""
        if self.source is not None:
            return self.source.nodes[tensor.index][1]
        return f"{self.dsc_path}.scheduleTree_[{tensor.index}]"

    def start_path(self, tensor: Tensor) -> str:
        """JSON path of a tensor's start addresses."""
        return f"{self.node_path(tensor)}.startAddressCoreCorelet_.data_"


def coord_infos(node: AllocateNode) -> Mapping[str, CoordInfo]:
    """coordInfo of an allocate node by dim; empty when it has none."""
    coordinates = node.coordinates
    return {} if isinstance(coordinates, UnsetType) else given(coordinates.coord_info, {})


def show_table(values: Mapping[str, int]) -> str:
    """``{"mb": 2}`` as ``mb=2``."""
    return ", ".join(f"{dim}={value}" for dim, value in values.items())
