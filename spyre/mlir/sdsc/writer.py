"""From an :class:`Operation` back to the SDSC a frontend would write: the inverse of the reader.

``write_operation`` fills every field the real frontends fill (folds, work slices, data stages,
coordinate folds, schedule, constants); ``read_operation`` of the result gives the operation
again. The builder and the torch backend emit through it. Forms: SuperDSC reference §2-§8
(sdsc.md), seen in real files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from spyre.mlir.operation import (
    MASK_CONSTANT,
    Component,
    Indirection,
    Operation,
    Padding,
    Tensor,
    Window,
)
from spyre.mlir.sdsc.reader import SYMBOLIC_KEY, WINDOWS_KEY, window_table
from spyre.mlir.sdsc.structs import (
    AffineFold,
    AllocateNode,
    ComputeOp,
    ConstantInfo,
    Coordinates,
    CoordInfo,
    DataStage,
    Dims,
    Dsc,
    FoldFunction,
    FoldManager,
    FoldProperty,
    LabeledTensor,
    MemoryPresence,
    Number,
    OpAttributes,
    RoleLayout,
    Sdsc,
    SuperDsc,
)

_CONST, _MAP = FoldFunction(const={}), FoldFunction(map={})
_ALL_CORES = "-1"
_SPATIAL_FOLDS = 3


def write_operation(op: Operation) -> Sdsc:
    """The SDSC of an operation. Its tensors must be numbered 0, 1, … and have consistent roles."""
    cores = [str(core) for core in op.cores]
    dsc = _dsc(op)
    body = SuperDsc(
        num_cores=len(cores),
        core_fold=FoldProperty(len(cores), "core"),
        corelet_fold=FoldProperty(1, "corelet"),
        time_folds=(FoldProperty(1, "time"),),
        time_fold_data=FoldManager(
            (FoldFunction(affine=AffineFold(1, 0)),), (FoldProperty(1, "time"),), {"[0]": "0"}
        ),
        core_to_dsc=dict.fromkeys(cores, 0),
        slices={dim: op.slices[dim] for dim in op.dims},
        core_slices={c: dict(row) for c, row in zip(cores, op.core_slices, strict=True)},
        schedule=dict.fromkeys(cores, ((-1, 0, 0, 0),)),
        dscs=({op.name: dsc},),
        data_dscs=() if op.symbolic_dims else UNSET,
        symbol_tags={str(s.symbol): s.tag for s in op.symbolic_dims.values() if s.tag} or UNSET,
        debug_handle=_debug_handle(op),
    )
    return Sdsc(op.sdsc_name, body)


def _debug_handle(op: Operation) -> dict[str, Any] | UnsetType:
    if not any(op.origin):
        return UNSET
    return {
        "id": str(int.from_bytes(sha256(repr(op.origin).encode()).digest()[:7])),
        "source": None,
        "aten_op": op.origin.aten_op or None,
        "ir_chain": [op.origin.node],
        "fused_from": [],
        "transform_history": [],
    }


def _dsc(op: Operation) -> Dsc:
    tensors = sorted(op.tensors, key=lambda tensor: tensor.index)
    roles = _roles(tensors)
    names = {t.index: f"allocate-{t.name}_{t.component.value}" for t in tensors}
    stage = _stage(op, {dim: op.core_extent(dim) for dim in op.dims})
    last = _stage(op, {dim: op.last_extents.get(dim, op.core_extent(dim)) for dim in op.dims})
    return Dsc(
        num_cores=len(op.cores), core_ids=op.cores, num_corelets=1,
        extents={**_dims("n", op.extents), **_windows(op.windows), **_symbolic_sizes(op)},
        masks={dim: tuple(ranges) for dim, ranges in op.masks.items()},
        mask_constant_id=_mask_constant_id(op), stages={"0": DataStage(stage, last)}, roles=roles,
        nodes=tuple(_node(op, tensor, roles[tensor.role], names) for tensor in tensors),
        tensors=tuple(_label(tensor, roles[tensor.role]) for tensor in tensors),
        constants=_constants(op) or "{}", compute_ops=(_compute_op(op),),
        dim_symbols={d: (size.symbol,) for d, size in op.symbolic_dims.items()} or UNSET,
    )  # fmt: skip


def _stage(op: Operation, extents: Mapping[str, int]) -> Dims:
    """Extents of one core, with its part of every window and symbolic size (§3, §11).

    Padding of a split dim belongs to some cores only and is written as -1.
    """
    windows = {
        dim: replace(
            window,
            total=window.span(extents[dim], extents[window.window_dim]),
            pad_front=-1 if op.slices[dim] > 1 else window.pad_front,
            pad_back=-1 if op.slices[dim] > 1 else window.pad_back,
        )
        for dim, window in op.windows.items()
    }
    return {**_dims("core", extents), **_windows(windows), **_symbolic_sizes(op, op.slices)}


def _windows(windows: Mapping[str, Window]) -> Dims:
    return {WINDOWS_KEY: window_table(windows)} if windows else {}


def _symbolic_sizes(op: Operation, slices: Mapping[str, int] | None = None) -> Dims:
    """``symbolicDimInfo_``, divided by ``slices``."""
    divisors = slices or {}
    table = {
        dim: {
            "maxSize_": size.maximum // divisors.get(dim, 1),
            "granularity_": max(1, size.granularity // divisors.get(dim, 1)),
        }
        for dim, size in op.symbolic_dims.items()
    }
    return {SYMBOLIC_KEY: table} if table else {}


def _dims(name: str, extents: Mapping[str, int]) -> Dims:
    return {"name_": name, **{f"{dim}_": extent for dim, extent in extents.items()}}


# --- tensors ----------------------------------------------------------------------------------


def _roles(tensors: Iterable[Tensor]) -> dict[str, RoleLayout]:
    """Per role the dims, in the order of its first tensor, and the stick."""
    roles: dict[str, RoleLayout] = {}
    for tensor in tensors:
        layout = RoleLayout(tensor.dims, tensor.stick_dims, tensor.stick_sizes)
        roles.setdefault(tensor.role, layout)
    return roles


def _label(tensor: Tensor, role: RoleLayout) -> LabeledTensor:
    return LabeledTensor(
        index=tensor.index,
        name=tensor.name,
        role=tensor.role,
        scale=tuple(tensor.scale[dim] for dim in role.dims),
        word_length=tensor.word_length_bytes,
        data_format=tensor.data_format,
        memories={name: MemoryPresence(1) for name in _memories(tensor)},
    )


def _memories(tensor: Tensor) -> tuple[str, ...]:
    """A tensor in HBM may be brought to LX, an index tensor may not."""
    if tensor.component is Component.LX:
        return (Component.LX.value,)
    if tensor.indirection is Indirection.INDEX:
        return (Component.HBM.value,)
    return (Component.HBM.value, Component.LX.value)


def _node(
    op: Operation, tensor: Tensor, role: RoleLayout, names: Mapping[int, str]
) -> AllocateNode:
    related = tensor.related_tensor
    return AllocateNode(
        node_type="allocate",
        name=names[tensor.index],
        prev="",
        tensor_index=tensor.index,
        component=tensor.component.value,
        symbolic=1 if tensor.symbolic else UNSET,
        layout_dims=tensor.dims,
        max_dim_sizes=tuple(tensor.max_dim_sizes.get(dim, -1) for dim in tensor.dims),
        gaps=_gaps(op, tensor) or UNSET,
        padding={dim: kind.value for dim, kind in tensor.padding.items()} or UNSET,
        non_unified_hbm=1 if tensor.per_core_in_hbm else UNSET,
        indirect_type=tensor.indirection.value,
        related_node=UNSET if related is None else names[related],
        index_type="index" if tensor.indirection is Indirection.INDEX else UNSET,
        device_dim_sizes=_device_sizes(op, tensor),
        starts=_starts(op, tensor),
        coordinates=Coordinates(
            {dim: _coord_folds(op, tensor, dim) for dim in tensor.dims},
            _own_core_slices(op, tensor),
        ),
    )


def _gaps(op: Operation, tensor: Tensor) -> dict[str, dict[str, Number]]:
    """One entry for all cores in HBM, one per core in LX (§5.1)."""
    keys = [_ALL_CORES] if tensor.component is Component.HBM else [str(c) for c in op.cores]
    return {dim: dict.fromkeys(keys, str(gap)) for dim, gap in tensor.gap_elements.items() if gap}


def _device_sizes(op: Operation, tensor: Tensor) -> tuple[Number, ...] | UnsetType:
    """Our extension: written whole (dims not given keep their iteration extent) or not at all."""
    if not tensor.device_dim_sizes:
        return UNSET
    return tuple(tensor.device_dim_sizes.get(dim, op.extents[dim]) for dim in tensor.dims)


def _starts(op: Operation, tensor: Tensor) -> FoldManager:
    pairs = zip(op.cores, tensor.starts, strict=True)
    data: dict[str, bool | Number | tuple[bool | Number, ...]] = {
        f"[{core}, 0, 0]": str(start) for core, start in pairs
    }
    return FoldManager((_MAP, _CONST, _CONST), _value_folds(op), data)


def _value_folds(op: Operation) -> tuple[FoldProperty, ...]:
    return (
        FoldProperty(len(op.cores), "core"),
        FoldProperty(1, "corelet"),
        FoldProperty(1, "time"),
    )


def _own_core_slices(op: Operation, tensor: Tensor) -> dict[str, dict[str, Number]]:
    rows = tensor.own_core_slices
    return {str(c): dict(row) for c, row in zip(op.cores, rows, strict=False) if row}


# --- coordinate folds (§5.5) ------------------------------------------------------------------


def _coord_folds(op: Operation, tensor: Tensor, dim: str) -> CoordInfo:
    """Folds outer to inner: core, corelet, row, then sticks and elements."""
    core = _core_fold(op, tensor, dim)
    elements = list(_element_folds(op, tensor, dim))
    folds = [core, (0, 1, "corelet_fold"), (0, 1, "row_fold"), *elements]
    manager = FoldManager(
        tuple(FoldFunction(affine=AffineFold(alpha, 0)) for alpha, _, _ in folds),
        tuple(FoldProperty(factor, label) for _, factor, label in folds),
    )
    padding = tensor.padding.get(dim, Padding.NONE)
    return CoordInfo(len(elements), manager, _SPATIAL_FOLDS, 0, padding.value)


Fold = tuple[int, int, str]
"""alpha (elements per step), number of steps, label."""


def _core_fold(op: Operation, tensor: Tensor, dim: str) -> Fold:
    if not tensor.holds(dim):
        return (tensor.sticks.get(dim, 0) if tensor.scale[dim] == -2 else 1), 1, "core_fold"
    slices = (tensor.own_slices or op.slices).get(dim, 1)
    window = op.window_of(tensor, dim)
    step = window.stride if window else 1
    return op.tensor_extent(tensor, dim) * step, slices, "core_fold"


def _element_folds(op: Operation, tensor: Tensor, dim: str) -> Iterator[Fold]:
    extent, stick = 1, tensor.sticks.get(dim, 0)
    if tensor.holds(dim):  # elements one core has, those under its windows where some slide
        windowed = op.window_of(tensor, dim) is not None
        extent = op.window_span(tensor, dim) if windowed else op.tensor_extent(tensor, dim)
    if not stick or tensor.scale[dim] == -1:
        yield 1, extent, "elem_arr_0"
        return
    yield stick, max(1, -(-extent // stick)), "elem_arr_1"
    yield (0 if tensor.scale[dim] == -2 else 1), stick, "elem_arr_0"


# --- constants and the compute op -------------------------------------------------------------


def _constants(op: Operation) -> dict[str, ConstantInfo]:
    return {
        str(index): ConstantInfo(
            name=name,
            data_format=op.constant_formats[name],
            data=FoldManager((_CONST, _CONST, _MAP), _value_folds(op), {"[0, 0, 0]": (bits,)}),
        )
        for index, (name, bits) in enumerate(op.constants.items())
    }


def _mask_constant_id(op: Operation) -> int:
    return list(op.constants).index(MASK_CONSTANT) if op.masks else -1


def _compute_op(op: Operation) -> ComputeOp:
    index_names = tuple(_label_name(tensor) for tensor in op.index_tensors)
    return ComputeOp(
        unit=op.unit,
        name=op.name,
        attributes=OpAttributes(op.data_format, "regular"),
        location="Inner",
        inputs=tuple(_label_name(tensor) for tensor in _listed_inputs(op)),
        outputs=tuple(_label_name(tensor) for tensor in op.outputs),
        index_inputs=index_names or UNSET,
    )


def _listed_inputs(op: Operation) -> tuple[Tensor, ...]:
    """Reductions of the vector unit list their output as an input too (real-bundles.md)."""
    lists_outputs = op.unit == "sfp" and op.reduced_dims
    return (*op.inputs, *op.outputs) if lists_outputs else op.inputs


def _label_name(tensor: Tensor) -> str:
    return f"{tensor.name}-idx{tensor.index}"
