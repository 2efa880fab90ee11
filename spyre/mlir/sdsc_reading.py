"""What reading one SDSC shares: the file, its JSON paths, its cores, and how errors are made.

Used by :mod:`.sdsc_reader` (the operation) and :mod:`.sdsc_tensor_reader` (its operands). Paths
are JSON paths from the root of the file. Rules: SuperDSC reference §2, §5.1 (sdsc.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from spyre.errors import JsonLocation, SdscError, UnsupportedError
from spyre.mlir.sdsc_structs import AllocateNode, Dsc, Number, Sdsc, int_or_none
from spyre.mlir.sdsc_support import body_path, dsc_path


@dataclass(frozen=True)
class Reading:
    """One SDSC being read; ``file`` names it in errors."""

    sdsc: Sdsc
    file: str

    @cached_property
    def path(self) -> str:
        """JSON path of the SuperDsc object."""
        return body_path(self.sdsc)

    @cached_property
    def dsc_path(self) -> str:
        """JSON path of the DSC."""
        return dsc_path(self.sdsc)

    @cached_property
    def dsc(self) -> Dsc:
        """The DSC."""
        return self.sdsc.dsc

    @cached_property
    def cores(self) -> tuple[int, ...]:
        """Ids of the used cores, in file order."""
        path = f"{self.dsc_path}.coreIdsUsed_"
        return tuple(self.integer(core, path) for core in self.dsc.core_ids)

    @cached_property
    def nodes(self) -> dict[int, tuple[AllocateNode, str]]:
        """Allocate node and its JSON path, per tensor index."""
        return read_nodes(self)

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
        number = int_or_none(value)
        if number is None:
            raise self.error(
                "SPY206",
                "number cannot be read",
                path,
                expected="an integer or a decimal string of at most 18 digits",
                found=repr(value)[:60],
            )
        return number


def read_nodes(reading: Reading) -> dict[int, tuple[AllocateNode, str]]:
    """Allocate node and its JSON path per tensor index; SdscError unless all are allocations."""
    nodes: dict[int, tuple[AllocateNode, str]] = {}
    for position, node in enumerate(reading.dsc.nodes):
        path = f"{reading.dsc_path}.scheduleTree_[{position}]"
        if node.node_type != "allocate":
            message = f"node {node.name} is not an allocation"
            raise reading.error("SPY223", message, f"{path}.nodeType_", "allocate", node.node_type)
        index = reading.integer(node.tensor_index, f"{path}.ldsIdx_")
        if index in nodes:
            message = f"tensor {index} has two allocate nodes"
            raise reading.error("SPY223", message, f"{path}.ldsIdx_", "one node per tensor")
        nodes[index] = node, path
    return nodes


def read_core_slices(
    reading: Reading,
    table: Mapping[str, Mapping[str, Number]],
    dims: Mapping[str, int],
    path: str,
    may_lack: bool = False,
) -> tuple[Mapping[str, int], ...]:
    """A coreIdToWkSlice_ table as slice index per dim, for every used core in core order.

    ``may_lack``: a core without an entry has an empty row; otherwise it is an error.
    """
    rows: list[Mapping[str, int]] = []
    for core in reading.cores:
        row = table.get(str(core))
        if row is None and may_lack:
            rows.append({})
            continue
        if row is None:
            message = f"core {core} has no work slice"
            raise reading.error("SPY210", message, path, f'an entry "{core}"', "none")
        rows.append(_slice_row(reading, row, dims, f"{path}.{core}"))
    return tuple(rows)


def _slice_row(
    reading: Reading, row: Mapping[str, Number], dims: Mapping[str, int], path: str
) -> dict[str, int]:
    if row.keys() != dims.keys():
        for dim in row.keys() - dims.keys():
            raise unknown_dim(reading, dim, dims, f"{path}.{dim}")
    return {
        dim: value if type(value := row.get(dim, 0)) is int else reading.integer(value, path)
        for dim in dims
    }


def unknown_dim(reading: Reading, dim: str, dims: Mapping[str, int], path: str) -> SdscError:
    """The error for a dim that is not one of ``dims``."""
    message = f"dim {dim} is not part of the iteration space"
    return reading.error("SPY222", message, path, f"one of {', '.join(dims)}", dim)
