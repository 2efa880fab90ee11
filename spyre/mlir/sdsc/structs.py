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


def optional(name: str) -> Any:
    """A field that files may leave out; ``name``: its key in files."""
    return field(name=name, default=UNSET)


class FoldProperty(Struct, frozen=True):
    """One fold: the number of steps (``factor_``) and their label."""

    factor: Number = field(name="factor_")
    label: str | UnsetType = optional("label_")


class AffineFold(Struct, frozen=True):
    """coordinate = alpha · index + beta."""

    alpha: Number = field(name="alpha_")
    beta: Number = field(name="beta_")


class FoldFunction(Struct, frozen=True):
    """Effect of a fold's index: exactly one of Affine, Const (ignored) or Map (looked up)."""

    affine: AffineFold | UnsetType = optional("Affine")
    const: dict[str, Any] | UnsetType = optional("Const")
    map: dict[str, Any] | UnsetType = optional("Map")


class FoldManager(Struct, frozen=True):
    """Values over folds: ``data_`` maps ``"[core, corelet, time]"`` to a value."""

    functions: tuple[FoldFunction, ...] = field(name="dim_prop_func")
    properties: tuple[FoldProperty, ...] = field(name="dim_prop_attr")
    data: dict[str, bool | Number | tuple[bool | Number, ...]] | UnsetType = optional("data_")


class CoordInfo(Struct, frozen=True):
    """Coordinates of a core's stored elements along one dim, as nested folds (§5.5)."""

    element_folds: Number = field(name="elemArr")
    folds: FoldManager
    spatial: Number | UnsetType = UNSET
    temporal: Number | UnsetType = UNSET
    padding: str | UnsetType = UNSET


class Coordinates(Struct, frozen=True):
    """Coordinate description of one allocation; its own work slices only for ``shuffle``."""

    coord_info: dict[str, CoordInfo] | UnsetType = optional("coordInfo")
    core_slices: dict[str, dict[str, Number]] | UnsetType = optional("coreIdToWkSlice_")


class AllocateNode(Struct, frozen=True):
    """Place of one tensor: memory, dim order (innermost first), start address per core."""

    node_type: str = field(name="nodeType_")
    name: str = field(name="name_")
    tensor_index: Number = field(name="ldsIdx_")
    component: str = field(name="component_")
    layout_dims: tuple[str, ...] = field(name="layoutDimOrder_")
    starts: FoldManager = field(name="startAddressCoreCorelet_")
    prev: str | UnsetType = optional("prev_")
    max_dim_sizes: tuple[Number, ...] | UnsetType = optional("maxDimSizes_")
    symbolic: Flag | UnsetType = optional("isStartAddrSymbolic_")
    gaps: dict[str, dict[str, Number]] | UnsetType = optional("backGapCore_")
    non_unified_hbm: Flag | UnsetType = optional("nonUnifiedAllocInHBM_")
    padding: dict[str, str] | UnsetType = optional("padding_")
    coordinates: Coordinates | UnsetType = optional("coordinates_")
    indirect_type: str | UnsetType = optional("indirectAllocType_")
    related_node: str | UnsetType = optional("relatedIndirectAccessAlloc_")
    index_type: str | UnsetType = optional("indexTensorType_")
    device_dim_sizes: tuple[Number, ...] | UnsetType = optional("deviceDimSizes_")


class MemoryPresence(Struct, frozen=True):
    """Possible presence of a tensor in one memory; the allocate node has the actual one."""

    is_present: Flag = field(name="isPresent")
    is_padded: Any = optional("isPadded")
    is_zero_padded: Any = optional("isZeroPadded")
    offset: Any = optional("dsOffset")
    allocate_node: Any = optional("allocateNode_")


class LabeledTensor(Struct, frozen=True):
    """One entry of ``labeledDs_``; ``scale`` is in the order of its role's layoutDimOrder_."""

    index: Number = field(name="ldsIdx_")
    name: str = field(name="dsName_")
    role: str = field(name="dsType_")
    scale: tuple[Number, ...] = field(name="scale_")
    word_length: Number = field(name="wordLength")
    data_format: str = field(name="dataFormat_")
    memories: dict[str, MemoryPresence] | UnsetType = optional("memOrg_")
    is_static: Any = optional("isStatic_")
    is_first_use: Any = optional("isFirstUse_")
    is_external: Any = optional("isExternal_")
    density: Any = optional("density_")
    hbm_start: Any = optional("hbmStartAddress_")
    lx_start: Any = optional("lxStartAddress_")


class RoleLayout(Struct, frozen=True):
    """``primaryDsInfo_`` of one role: its dims, and the stick (innermost first, elements)."""

    dims: tuple[str, ...] = field(name="layoutDimOrder_")
    stick_dims: tuple[str, ...] = field(name="stickDimOrder_")
    stick_sizes: tuple[Number, ...] = field(name="stickSize_")
    stick_replication: Any = optional("stickRepl_")


class DataStage(Struct, frozen=True):
    """Extents of one core: steady state ``ss_`` and last step ``el_``."""

    steady: Dims = field(name="ss_")
    epilogue: Dims | UnsetType = optional("el_")
    name: str | UnsetType = optional("name_")


class ConstantInfo(Struct, frozen=True):
    """A named constant; ``data`` holds the bit pattern in ``data_format``."""

    name: str = field(name="name_")
    data_format: str = field(name="dataFormat_")
    data: FoldManager = field(name="data_")


class OpAttributes(Struct, frozen=True):
    """Execution format and fidelity of a compute op."""

    data_format: str = field(name="dataFormat_")
    fidelity: str | UnsetType = optional("fidelity_")


class ComputeOp(Struct, frozen=True):
    """The computation: name and tensors (``"Tensor0-idx0"``) of the function."""

    name: str = field(name="opFuncName")
    inputs: tuple[str, ...] = field(name="inputLabeledDs")
    outputs: tuple[str, ...] = field(name="outputLabeledDs")
    unit: str | UnsetType = optional("exUnit")
    attributes: OpAttributes | UnsetType = optional("attributes_")
    location: str | UnsetType = UNSET
    index_inputs: tuple[str, ...] | UnsetType = optional("indirectAccessIndexLabeledDs")
    interim: tuple[str, ...] | UnsetType = optional("interimLabeledDs")


class Dsc(Struct, frozen=True):
    """One data-structure compute description: extents, tensors, allocations, compute ops."""

    num_cores: Number = field(name="numCoresUsed_")
    core_ids: tuple[Number, ...] = field(name="coreIdsUsed_")
    extents: Dims = field(name="N_")
    roles: dict[str, RoleLayout] = field(name="primaryDsInfo_")
    nodes: tuple[AllocateNode, ...] = field(name="scheduleTree_")
    tensors: tuple[LabeledTensor, ...] = field(name="labeledDs_")
    compute_ops: tuple[ComputeOp, ...] = field(name="computeOp_")
    num_corelets: Number | UnsetType = optional("numCoreletsUsed_")
    stages: dict[str, DataStage] | UnsetType = optional("dataStageParam_")
    masks: dict[str, tuple[tuple[Number, ...], ...]] | UnsetType = optional("coordinateMasking_")
    mask_constant_id: Number | UnsetType = optional("maskingConstId_")
    constants: dict[str, ConstantInfo] | str | UnsetType = optional("constantInfo_")
    dim_symbols: dict[str, tuple[Number, ...]] | UnsetType = optional("dimToSymbolMapping_")
    role_relation: Any = optional("pdsRelation_")
    stick_replication: Any = optional("stickRepl_")
    backend_dims: Any = optional("dscN_")
    chip: Any = optional("ChipD_")
    chiplet: Any = optional("ChipletD_")
    core: Any = optional("CoreD_")
    corelet: Any = optional("CoreletD_")
    block: Any = optional("B_")
    tile: Any = optional("T_")
    tile_epilogue: Any = optional("Tel_")
    piece: Any = optional("P_")
    piece_epilogue: Any = optional("Pel_")
    loop_order: Any = optional("loopOrder_")
    loop_properties: Any = optional("loopProperties_")
    auxiliary_loop_order: Any = optional("auxLoopOrder_")


ScheduleStep = tuple[Number, ...] | dict[str, Number]
"""[data op, DSC, barrier before, barrier after] (§9), or an object with those names."""


class SuperDsc(Struct, frozen=True):
    """The object under the SDSC's name: cores, work slices, schedule and the DSCs."""

    num_cores: Number = field(name="numCoresUsed_")
    core_fold: FoldProperty | UnsetType = optional("coreFoldProp_")
    corelet_fold: FoldProperty | UnsetType = optional("coreletFoldProp_")
    time_folds: tuple[FoldProperty, ...] | UnsetType = optional("sdscFoldProps_")
    time_fold_data: FoldManager | UnsetType = optional("sdscFolds_")
    core_to_dsc: dict[str, Number] | UnsetType = optional("coreIdToDsc_")
    slices: dict[str, Number] | UnsetType = optional("numWkSlicesPerDim_")
    core_slices: dict[str, dict[str, Number]] | UnsetType = optional("coreIdToWkSlice_")
    schedule: dict[str, tuple[ScheduleStep, ...]] | UnsetType = optional("coreIdToDscSchedule")
    dscs: tuple[dict[str, Dsc], ...] | UnsetType = optional("dscs_")
    data_op_dscs: tuple[Any, ...] | UnsetType = optional("dataOpdscs_")
    data_dscs: tuple[Any, ...] | UnsetType = optional("datadscs_")
    extents: Dims | UnsetType = optional("N_")
    unpadded_extents: Dims | UnsetType = optional("unPadN_")
    share_info: tuple[Any, ...] | UnsetType = optional("ldsShareInfo_")
    target: str | UnsetType = optional("target_")
    symbol_tags: dict[str, str] | UnsetType = optional("inputSymbolsAndTags_")
    producers_consumers: Any = optional("prodConsList")
    op_functions: Any = optional("opFuncsUsed_")
    folded_name: Any = optional("folded_sdsc_name_")
    fold_coordinate: Any = optional("fold_coord_")
    program_config: Any = optional("pcfg_")
    scratchpad: Any = optional("spb_")
    symbol_definitions: Any = optional("symbolDefinitions_")
    opcode_correction: Any = optional("dimToSymbolMappingOpcodeCorrection_")
    debug_handle: Any = optional("debug_handle_")


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
