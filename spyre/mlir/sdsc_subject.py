"""What the SDSC rules share: a rule, a violation, and the subject a rule looks at.

The rules themselves are in :mod:`.sdsc_form_rules`, :mod:`.sdsc_slice_rules`,
:mod:`.sdsc_tensor_rules` and :mod:`.sdsc_address_rules`; :mod:`.sdsc_rules` applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from msgspec import UnsetType

from spyre.errors import Severity
from spyre.mlir.footprint import Footprint, footprint
from spyre.mlir.operation import Operation, Tensor
from spyre.mlir.sdsc_structs import CoordInfo, Dsc, Sdsc, given
from spyre.mlir.sdsc_support import body_path, dsc_path


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault a rule found: its JSON path, what is wrong, what was expected and found."""

    path: str
    message: str
    expected: str = ""
    found: str = ""


@dataclass(frozen=True)
class Subject:
    """What a rule looks at: the file, and for the rules on its meaning the operation."""

    sdsc: Sdsc
    operation: Operation | None = None

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

    @property
    def op(self) -> Operation:
        """The operation; only rules on the meaning may ask."""
        assert self.operation is not None
        return self.operation

    @cached_property
    def footprints(self) -> Mapping[int, Footprint]:
        """Footprint of every operand, by tensor index."""
        return {tensor.index: footprint(self.op, tensor) for tensor in self.op.tensors}

    @cached_property
    def node_indices(self) -> Mapping[int, int]:
        """Position of every tensor's allocate node in the schedule tree, by tensor index."""
        return {int(node.tensor_index): i for i, node in enumerate(self.dsc.nodes)}

    def node_path(self, tensor: Tensor) -> str:
        """JSON path of a tensor's allocate node."""
        return f"{self.dsc_path}.scheduleTree_[{self.node_indices[tensor.index]}]"

    def coord_infos(self, node_index: int) -> Mapping[str, CoordInfo]:
        """coordInfo of one allocate node; empty when it has none."""
        coordinates = self.dsc.nodes[node_index].coordinates
        if isinstance(coordinates, UnsetType):
            return {}
        return given(coordinates.coord_info, {})

    def start_path(self, tensor: Tensor) -> str:
        """JSON path of a tensor's start addresses."""
        return f"{self.node_path(tensor)}.startAddressCoreCorelet_.data_"


Check = Callable[[Subject], Iterable[Violation]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its code (whose title is in :mod:`spyre.codes`), severity and check."""

    code: str
    severity: Severity
    check: Check


def show_table(values: Mapping[str, int]) -> str:
    """``{"mb": 2}`` as ``mb=2``."""
    return ", ".join(f"{dim}={value}" for dim, value in values.items())
