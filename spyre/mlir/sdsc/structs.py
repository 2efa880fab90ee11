"""SDSC JSON as typed, frozen structs: reading bytes into them and writing them back.

First step of the way ``sdsc_*.json`` → :class:`Sdsc` → ``Operation`` (:mod:`.reader`). The
structs mirror the file, one class per JSON object; ``UNSET`` means the key is absent. Keys the
format does not know are kept in :attr:`Sdsc.unknown`, so writing returns them. Fields follow the
SuperDSC reference (sdsc.md §2-§10); units: extents and gaps in elements, addresses in bytes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

T = TypeVar("T")

_DECIMAL = re.compile(r"-?[0-9]{1,18}\Z", re.ASCII)

Integer = Annotated[int, Meta(ge=-(2**62), le=2**62)]
"""An integer that fits the simulator's int64 arithmetic with a spare bit."""

Number = Integer | str
"""An integer, or the same as a decimal string: emitters differ, readers accept both."""

Flag = bool | Integer
"""true/false or 0/1."""

Dims = dict[str, Number | dict[str, Any]]
"""A DataStructDims object: ``mb_`` → extent, next to ``name_`` and nested tables."""


def given(value: T | UnsetType, default: T) -> T:
    """``value``, or ``default`` when the key is absent."""
    return default if value is UNSET else value


def int_or_none(value: Number | bool) -> int | None:
    """An integer or a decimal string of at most 18 digits as int; None for anything else."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and _DECIMAL.match(value) else None


class FoldProperty(Struct, frozen=True):
    """One fold: the number of steps (``factor_``) and their label."""

    factor: Number = field(name="factor_")
    label: str | UnsetType = field(name="label_", default=UNSET)


class AffineFold(Struct, frozen=True):
    """coordinate = alpha · index + beta."""

    alpha: Number = field(name="alpha_")
    beta: Number = field(name="beta_")


class FoldFunction(Struct, frozen=True):
    """Effect of a fold's index: exactly one of Affine, Const (ignored) or Map (looked up)."""

    affine: AffineFold | UnsetType = field(name="Affine", default=UNSET)
    const: dict[str, Any] | UnsetType = field(name="Const", default=UNSET)
    map: dict[str, Any] | UnsetType = field(name="Map", default=UNSET)


class FoldManager(Struct, frozen=True):
    """Values over folds: ``data_`` maps ``"[core, corelet, time]"`` to a value."""

    functions: tuple[FoldFunction, ...] = field(name="dim_prop_func")
    properties: tuple[FoldProperty, ...] = field(name="dim_prop_attr")
    data: dict[str, bool | Number | tuple[bool | Number, ...]] | UnsetType = field(
        name="data_", default=UNSET
    )


class CoordInfo(Struct, frozen=True):
    """Coordinates of a core's stored elements along one dim, as nested folds (§5.5)."""

    element_folds: Number = field(name="elemArr")
    folds: FoldManager
    spatial: Number | UnsetType = UNSET
    temporal: Number | UnsetType = UNSET
    padding: str | UnsetType = UNSET


class Coordinates(Struct, frozen=True):
    """Coordinate description of one allocation; its own work slices only for ``shuffle``."""

    coord_info: dict[str, CoordInfo] | UnsetType = field(name="coordInfo", default=UNSET)
    core_slices: dict[str, dict[str, Number]] | UnsetType = field(
        name="coreIdToWkSlice_", default=UNSET
    )


class AllocateNode(Struct, frozen=True):
    """Place of one tensor: memory, dim order (innermost first), start address per core."""

    node_type: str = field(name="nodeType_")
    name: str = field(name="name_")
    tensor_index: Number = field(name="ldsIdx_")
    component: str = field(name="component_")
    layout_dims: tuple[str, ...] = field(name="layoutDimOrder_")
    starts: FoldManager = field(name="startAddressCoreCorelet_")
    prev: str | UnsetType = field(name="prev_", default=UNSET)
    max_dim_sizes: tuple[Number, ...] | UnsetType = field(name="maxDimSizes_", default=UNSET)
    symbolic: Flag | UnsetType = field(name="isStartAddrSymbolic_", default=UNSET)
    gaps: dict[str, dict[str, Number]] | UnsetType = field(name="backGapCore_", default=UNSET)
    non_unified_hbm: Flag | UnsetType = field(name="nonUnifiedAllocInHBM_", default=UNSET)
    padding: dict[str, str] | UnsetType = field(name="padding_", default=UNSET)
    coordinates: Coordinates | UnsetType = field(name="coordinates_", default=UNSET)
    indirect_type: str | UnsetType = field(name="indirectAllocType_", default=UNSET)
    related_node: str | UnsetType = field(name="relatedIndirectAccessAlloc_", default=UNSET)
    index_type: str | UnsetType = field(name="indexTensorType_", default=UNSET)
    device_dim_sizes: tuple[Number, ...] | UnsetType = field(name="deviceDimSizes_", default=UNSET)


class MemoryPresence(Struct, frozen=True):
    """Possible presence of a tensor in one memory; the allocate node has the actual one."""

    is_present: Flag = field(name="isPresent")
    is_padded: Any = field(name="isPadded", default=UNSET)
    is_zero_padded: Any = field(name="isZeroPadded", default=UNSET)
    offset: Any = field(name="dsOffset", default=UNSET)
    allocate_node: Any = field(name="allocateNode_", default=UNSET)


class LabeledTensor(Struct, frozen=True):
    """One entry of ``labeledDs_``; ``scale`` is in the order of its role's layoutDimOrder_."""

    index: Number = field(name="ldsIdx_")
    name: str = field(name="dsName_")
    role: str = field(name="dsType_")
    scale: tuple[Number, ...] = field(name="scale_")
    word_length: Number = field(name="wordLength")
    data_format: str = field(name="dataFormat_")
    memories: dict[str, MemoryPresence] | UnsetType = field(name="memOrg_", default=UNSET)
    is_static: Any = field(name="isStatic_", default=UNSET)
    is_first_use: Any = field(name="isFirstUse_", default=UNSET)
    is_external: Any = field(name="isExternal_", default=UNSET)
    density: Any = field(name="density_", default=UNSET)
    hbm_start: Any = field(name="hbmStartAddress_", default=UNSET)
    lx_start: Any = field(name="lxStartAddress_", default=UNSET)


class RoleLayout(Struct, frozen=True):
    """``primaryDsInfo_`` of one role: its dims, and the stick (innermost first, elements)."""

    dims: tuple[str, ...] = field(name="layoutDimOrder_")
    stick_dims: tuple[str, ...] = field(name="stickDimOrder_")
    stick_sizes: tuple[Number, ...] = field(name="stickSize_")
    stick_replication: Any = field(name="stickRepl_", default=UNSET)


class DataStage(Struct, frozen=True):
    """Extents of one core: steady state ``ss_`` and last step ``el_``."""

    steady: Dims = field(name="ss_")
    epilogue: Dims | UnsetType = field(name="el_", default=UNSET)
    name: str | UnsetType = field(name="name_", default=UNSET)


class ConstantInfo(Struct, frozen=True):
    """A named constant; ``data`` holds the bit pattern in ``data_format``."""

    name: str = field(name="name_")
    data_format: str = field(name="dataFormat_")
    data: FoldManager = field(name="data_")


class OpAttributes(Struct, frozen=True):
    """Execution format and fidelity of a compute op."""

    data_format: str = field(name="dataFormat_")
    fidelity: str | UnsetType = field(name="fidelity_", default=UNSET)


class ComputeOp(Struct, frozen=True):
    """The computation: name and tensors (``"Tensor0-idx0"``) of the function."""

    name: str = field(name="opFuncName")
    inputs: tuple[str, ...] = field(name="inputLabeledDs")
    outputs: tuple[str, ...] = field(name="outputLabeledDs")
    unit: str | UnsetType = field(name="exUnit", default=UNSET)
    attributes: OpAttributes | UnsetType = field(name="attributes_", default=UNSET)
    location: str | UnsetType = UNSET
    index_inputs: tuple[str, ...] | UnsetType = field(
        name="indirectAccessIndexLabeledDs", default=UNSET
    )
    interim: tuple[str, ...] | UnsetType = field(name="interimLabeledDs", default=UNSET)


class Dsc(Struct, frozen=True):
    """One data-structure compute description: extents, tensors, allocations, compute ops."""

    num_cores: Number = field(name="numCoresUsed_")
    core_ids: tuple[Number, ...] = field(name="coreIdsUsed_")
    extents: Dims = field(name="N_")
    roles: dict[str, RoleLayout] = field(name="primaryDsInfo_")
    nodes: tuple[AllocateNode, ...] = field(name="scheduleTree_")
    tensors: tuple[LabeledTensor, ...] = field(name="labeledDs_")
    compute_ops: tuple[ComputeOp, ...] = field(name="computeOp_")
    num_corelets: Number | UnsetType = field(name="numCoreletsUsed_", default=UNSET)
    stages: dict[str, DataStage] | UnsetType = field(name="dataStageParam_", default=UNSET)
    masks: dict[str, tuple[tuple[Number, ...], ...]] | UnsetType = field(
        name="coordinateMasking_", default=UNSET
    )
    mask_constant_id: Number | UnsetType = field(name="maskingConstId_", default=UNSET)
    constants: dict[str, ConstantInfo] | str | UnsetType = field(
        name="constantInfo_", default=UNSET
    )
    dim_symbols: dict[str, tuple[Number, ...]] | UnsetType = field(
        name="dimToSymbolMapping_", default=UNSET
    )
    role_relation: Any = field(name="pdsRelation_", default=UNSET)
    stick_replication: Any = field(name="stickRepl_", default=UNSET)
    backend_dims: Any = field(name="dscN_", default=UNSET)
    chip: Any = field(name="ChipD_", default=UNSET)
    chiplet: Any = field(name="ChipletD_", default=UNSET)
    core: Any = field(name="CoreD_", default=UNSET)
    corelet: Any = field(name="CoreletD_", default=UNSET)
    block: Any = field(name="B_", default=UNSET)
    tile: Any = field(name="T_", default=UNSET)
    tile_epilogue: Any = field(name="Tel_", default=UNSET)
    piece: Any = field(name="P_", default=UNSET)
    piece_epilogue: Any = field(name="Pel_", default=UNSET)
    loop_order: Any = field(name="loopOrder_", default=UNSET)
    loop_properties: Any = field(name="loopProperties_", default=UNSET)
    auxiliary_loop_order: Any = field(name="auxLoopOrder_", default=UNSET)


ScheduleStep = tuple[Number, ...] | dict[str, Number]
"""[data op, DSC, barrier before, barrier after] (§9), or an object with those names."""


class SuperDsc(Struct, frozen=True):
    """The object under the SDSC's name: cores, work slices, schedule and the DSCs."""

    num_cores: Number = field(name="numCoresUsed_")
    core_fold: FoldProperty | UnsetType = field(name="coreFoldProp_", default=UNSET)
    corelet_fold: FoldProperty | UnsetType = field(name="coreletFoldProp_", default=UNSET)
    time_folds: tuple[FoldProperty, ...] | UnsetType = field(name="sdscFoldProps_", default=UNSET)
    time_fold_data: FoldManager | UnsetType = field(name="sdscFolds_", default=UNSET)
    core_to_dsc: dict[str, Number] | UnsetType = field(name="coreIdToDsc_", default=UNSET)
    slices: dict[str, Number] | UnsetType = field(name="numWkSlicesPerDim_", default=UNSET)
    core_slices: dict[str, dict[str, Number]] | UnsetType = field(
        name="coreIdToWkSlice_", default=UNSET
    )
    schedule: dict[str, tuple[ScheduleStep, ...]] | UnsetType = field(
        name="coreIdToDscSchedule", default=UNSET
    )
    dscs: tuple[dict[str, Dsc], ...] | UnsetType = field(name="dscs_", default=UNSET)
    data_op_dscs: tuple[Any, ...] | UnsetType = field(name="dataOpdscs_", default=UNSET)
    data_dscs: tuple[Any, ...] | UnsetType = field(name="datadscs_", default=UNSET)
    extents: Dims | UnsetType = field(name="N_", default=UNSET)
    unpadded_extents: Dims | UnsetType = field(name="unPadN_", default=UNSET)
    share_info: tuple[Any, ...] | UnsetType = field(name="ldsShareInfo_", default=UNSET)
    target: str | UnsetType = field(name="target_", default=UNSET)
    symbol_tags: dict[str, str] | UnsetType = field(name="inputSymbolsAndTags_", default=UNSET)
    producers_consumers: Any = field(name="prodConsList", default=UNSET)
    op_functions: Any = field(name="opFuncsUsed_", default=UNSET)
    folded_name: Any = field(name="folded_sdsc_name_", default=UNSET)
    fold_coordinate: Any = field(name="fold_coord_", default=UNSET)
    program_config: Any = field(name="pcfg_", default=UNSET)
    scratchpad: Any = field(name="spb_", default=UNSET)
    symbol_definitions: Any = field(name="symbolDefinitions_", default=UNSET)
    opcode_correction: Any = field(name="dimToSymbolMappingOpcodeCorrection_", default=UNSET)
    debug_handle: Any = field(name="debug_handle_", default=UNSET)


UnknownKey = tuple[tuple[str | int, ...], Any]
"""A key the format does not know: the tokens that lead to it from the JSON root, and its value."""


class Sdsc(Struct, frozen=True):
    """One SDSC file: the only key of the root object, its body, and keys we do not know."""

    name: str
    body: SuperDsc
    unknown: tuple[UnknownKey, ...] = ()

    @property
    def dsc_name(self) -> str:
        """Name of the first DSC ('' when there is none)."""
        dscs = given(self.body.dscs, ())
        return next(iter(dscs[0]), "") if dscs else ""

    @property
    def dsc(self) -> Dsc:
        """The first DSC; the reader refuses more than one. IndexError when there is none."""
        return next(iter(given(self.body.dscs, ())[0].values()))
