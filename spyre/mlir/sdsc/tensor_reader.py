"""From a labeledDs_ entry, its role and its allocate node to a :class:`Tensor`.

Scale order against layout order, start addresses per core, gaps, device sizes and indirect access
are resolved here; :mod:`.reader` puts the tensors together. Raises SdscError and
UnsupportedError with JSON paths. Rules: SuperDSC reference §4, §5.1, §6.4 (sdsc.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from msgspec import UNSET, UnsetType

from spyre.mlir.operation import Component, Indirection, Padding, Tensor
from spyre.mlir.sdsc.reading import SdscDocument, read_core_slices, unknown_dim
from spyre.mlir.sdsc.structs import (
    AllocateNode,
    Coordinates,
    FoldManager,
    LabeledTensor,
    Number,
    RoleLayout,
    given,
)

_FOLD_KEY = re.compile(r"\[\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*\]\Z", re.ASCII)
_INDIRECTION = {kind.value: kind for kind in Indirection}
_COMPONENT = {kind.value: kind for kind in Component}
_PADDING = {kind.value: kind for kind in Padding}


def read_tensor(document: SdscDocument, index: int) -> Tensor:
    """The operand at position ``index`` of labeledDs_."""
    label = document.dsc.tensors[index]
    path = f"{document.dsc_path}.labeledDs_[{index}]"
    if index not in document.nodes:
        message = f"tensor {label.name} has no allocate node"
        raise document.error("SPY223", message, f"{document.dsc_path}.scheduleTree_", "one node")
    node, node_path = document.nodes[index]
    role = _role(document, label, path)
    dims, coordinates = node.layout_dims, given(node.coordinates, Coordinates())
    table = given(coordinates.core_slices, {})  # empty in all real files; only shuffle fills it
    return Tensor(
        index=index,
        name=label.name,
        role=label.role,
        component=_component(document, node, node_path),
        data_format=label.data_format,
        word_length_bytes=document.integer(label.word_length, f"{path}.wordLength"),
        dims=_layout_dims(document, node, role, node_path),
        scale=_scale(document, label, role, path),
        stick_dims=role.stick_dims,
        stick_sizes=_stick_sizes(document, label.role, role),
        starts=_starts(document, node, node_path),
        symbolic=bool(given(node.symbolic, False)),
        gap_elements=_gaps(document, node, node_path),
        # our extension: true memory extents
        device_dim_sizes=_sizes_per_dim(
            document, node.device_dim_sizes, dims, f"{node_path}.deviceDimSizes_"
        ),
        max_dim_sizes=_sizes_per_dim(
            document, node.max_dim_sizes, dims, f"{node_path}.maxDimSizes_"
        ),
        indirection=_indirection(document, node, node_path),
        related_tensor=_related_tensor(document, node, node_path),
        per_core_in_hbm=bool(given(node.non_unified_hbm, False)),
        json_path=path,
        padding=_padding(document, node, node_path),
        own_slices=_own_slices(document, node, coordinates, node_path) if table else {},
        own_core_slices=_own_core_slices(document, node, table, node_path) if table else (),
    )


def _role(document: SdscDocument, label: LabeledTensor, path: str) -> RoleLayout:
    role = document.dsc.roles.get(label.role)
    if role is None:
        known = ", ".join(document.dsc.roles)
        message = f"role {label.role} of {label.name} is not described"
        raise document.error("SPY219", message, f"{path}.dsType_", f"one of {known}", label.role)
    return role


def _component(document: SdscDocument, node: AllocateNode, path: str) -> Component:
    component = _COMPONENT.get(node.component)
    if component is None:
        message = f"node {node.name} is in an unknown memory"
        raise document.error("SPY225", message, f"{path}.component_", "hbm or lx", node.component)
    return component


def _layout_dims(
    document: SdscDocument, node: AllocateNode, role: RoleLayout, path: str
) -> tuple[str, ...]:
    dims = node.layout_dims
    if len(dims) != len(role.dims) or set(dims) != set(role.dims) or len(set(dims)) != len(dims):
        message = f"node {node.name} orders other dims than its role has"
        expected = f"an order of {', '.join(role.dims)}"
        found = ", ".join(dims)
        raise document.error("SPY224", message, f"{path}.layoutDimOrder_", expected, found)
    return dims


def _scale(
    document: SdscDocument, label: LabeledTensor, role: RoleLayout, path: str
) -> dict[str, int]:
    """Scale per dim: the file lists it in the order of the role's dims, not the node's."""
    if len(label.scale) != len(role.dims):
        message = f"{label.name} has one scale per dim of its role"
        found = f"{len(label.scale)} entries"
        raise document.error(
            "SPY220", message, f"{path}.scale_", f"{len(role.dims)} entries", found
        )
    numbers = (document.integer(s, f"{path}.scale_[{i}]") for i, s in enumerate(label.scale))
    # An entry belongs to a dim by its place in the role, though the node may order dims otherwise.
    return dict(zip(role.dims, numbers, strict=True))


def _stick_sizes(document: SdscDocument, name: str, role: RoleLayout) -> tuple[int, ...]:
    path = f"{document.dsc_path}.primaryDsInfo_.{name}"
    sizes = tuple(document.integer(size, f"{path}.stickSize_") for size in role.stick_sizes)
    if len(sizes) != len(role.stick_dims) or not sizes or min(sizes) < 1:
        expected = "one positive size per entry of stickDimOrder_"
        found = f"dims {list(role.stick_dims)}, sizes {list(sizes)}"
        raise document.error("SPY221", f"stick of role {name} is malformed", path, expected, found)
    return sizes


def _gaps(document: SdscDocument, node: AllocateNode, path: str) -> dict[str, int]:
    """Return the gap per dim in elements; the core key "-1" means all cores."""
    gaps = {}
    for dim, per_core in given(node.gaps, {}).items():
        place = f"{path}.backGapCore_.{dim}"
        # In files HBM tensors have one entry "-1", LX tensors one per core, all of them texts.
        values = {document.integer(gap, f"{place}.{core}") for core, gap in per_core.items()}
        if dim not in node.layout_dims:
            raise unknown_dim(document, dim, dict.fromkeys(node.layout_dims, 1), place)
        if len(values) > 1:
            raise document.unsupported("SPY510", f"gaps of {dim} differ between cores", place)
        if values:
            gaps[dim] = values.pop()
    return gaps


def _sizes_per_dim(
    document: SdscDocument, sizes: tuple[Number, ...] | UnsetType, dims: tuple[str, ...], path: str
) -> dict[str, int]:
    """A list that follows the node's own dim order, by dim."""
    if isinstance(sizes, UnsetType):
        return {}
    if len(sizes) != len(dims):
        expected, found = f"{len(dims)} entries", f"{len(sizes)} entries"
        raise document.error("SPY244", "one size per dim is needed", path, expected, found)
    return {dim: document.integer(size, path) for dim, size in zip(dims, sizes, strict=True)}


def _padding(document: SdscDocument, node: AllocateNode, path: str) -> dict[str, Padding]:
    """Kind of padding per dim (§5.1); dims without any are left out."""
    kinds = {}
    for key, kind in given(node.padding, {}).items():
        dim, place = key.removesuffix("_"), f"{path}.padding_.{key}"
        if dim not in node.layout_dims:
            raise unknown_dim(document, dim, dict.fromkeys(node.layout_dims, 1), place)
        if kind not in _PADDING:
            message = f"padding of {node.name} along {dim} is of an unknown kind"
            expected = f"one of {', '.join(_PADDING)}"
            raise document.error("SPY255", message, place, expected, kind)
        if _PADDING[kind] is not Padding.NONE:
            kinds[dim] = _PADDING[kind]
    return kinds


def _indirection(document: SdscDocument, node: AllocateNode, path: str) -> Indirection:
    kind = given(node.indirect_type, Indirection.NONE.value)
    if kind not in _INDIRECTION:
        message = f"node {node.name} has an unknown part in indirect access"
        expected = f"one of {', '.join(_INDIRECTION)}"
        raise document.error("SPY243", message, f"{path}.indirectAllocType_", expected, kind)
    return _INDIRECTION[kind]


def _related_tensor(document: SdscDocument, node: AllocateNode, path: str) -> int | None:
    name = given(node.related_node, "")
    if not name:
        return None
    for index, (other, _) in document.nodes.items():
        if other.name == name:
            return index
    message = f"node {node.name} refers to an unknown node"
    known = ", ".join(other.name for other, _ in document.nodes.values())
    place = f"{path}.relatedIndirectAccessAlloc_"
    raise document.error("SPY243", message, place, f"one of {known}", name)


# --- per-core values --------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _fold_indices(key: str) -> tuple[int, ...] | None:
    """``"[3, 0, 0]"`` → (3, 0, 0); None when it is not a list of naturals."""
    return tuple(map(int, key[1:-1].split(","))) if _FOLD_KEY.match(key) else None


def _starts(document: SdscDocument, node: AllocateNode, path: str) -> tuple[int, ...]:
    """Start address (bytes) or symbol id for every used core, in core order (§5.1)."""
    place = f"{path}.startAddressCoreCorelet_"
    values = _value_per_core(document, node.starts, place)
    first = node.starts.functions[0] if node.starts.functions else None
    if first is not None and first.const is not UNSET:  # a Const core fold: one entry for all cores
        if len(values) != 1:
            message, found = "a start address common to all cores is one entry", len(values)
            raise document.error("SPY245", message, f"{place}.data_", "1 entry", f"{found} entries")
        return tuple(values.values()) * len(document.cores)
    if first is None or first.map is UNSET:
        message = "start addresses are neither constant nor listed per core"
        raise document.error("SPY245", message, f"{place}.dim_prop_func", "Const or Map first")
    try:
        return tuple([values[core] for core in document.cores])
    except KeyError as error:
        core = error.args[0]
        message = f"core {core} has no start address in {node.name}"
        raise document.error("SPY226", message, f"{place}.data_", f'"[{core}, 0, 0]"') from None


def _value_per_core(document: SdscDocument, manager: FoldManager, path: str) -> dict[int, int]:
    values: dict[int, int] = {}
    for key, value in given(manager.data, {}).items():
        indices = _fold_indices(key)
        place = f"{path}.data_"
        # FoldManager data may hold lists, as constants do; an address is one text or number.
        if indices is None or isinstance(value, tuple):
            expected = '"[core, corelet, time]": address'
            raise document.error("SPY245", "malformed start address", place, expected, key[:60])
        if any(indices[1:]):
            message = "start addresses that vary over corelet or time are not simulated"
            raise document.unsupported("SPY512", message, f'{place}["{key}"]')
        values[indices[0]] = document.integer(value, place)
    return values


def _own_slices(
    document: SdscDocument, node: AllocateNode, coordinates: Coordinates, path: str
) -> dict[str, int]:
    """Slice count per dim of a node with its own work slices: its core folds' factors (§9)."""
    counts = {}
    for dim, info in given(coordinates.coord_info, {}).items():
        place = f"{path}.coordinates_.coordInfo.{dim}.folds.dim_prop_attr"
        factors = [document.integer(p.factor, place) for p in info.folds.properties[:1]]
        if not factors or factors[0] < 1:
            raise document.error("SPY245", f"core fold of {dim} is malformed", place, "at least 1")
        counts[dim] = factors[0]
    rows = given(coordinates.core_slices, {}).values()
    for dim in node.layout_dims:  # without coordInfo, the highest slice index decides
        indices = [document.integer(row.get(dim, 0), path) for row in rows]
        counts.setdefault(dim, max(indices, default=0) + 1)
    return counts


def _own_core_slices(
    document: SdscDocument, node: AllocateNode, table: Mapping[str, Mapping[str, Number]], path: str
) -> tuple[Mapping[str, int], ...]:
    """Work slices a node carries itself, per core; empty for a core that holds nothing (§9)."""
    dims = dict.fromkeys(node.layout_dims, 1)
    place = f"{path}.coordinates_.coreIdToWkSlice_"
    unused = sorted(table.keys() - {str(core) for core in document.cores})
    if unused:
        message = f"{node.name} belongs to core {unused[0]}, which takes no part in the operation"
        raise document.unsupported("SPY517", f"{message}: not simulated", f"{place}.{unused[0]}")
    return read_core_slices(document, table, dims, place, may_lack=True)
