from .access_map import (
    AccessMap as AccessMap,
    Axis as Axis,
    Int64Array as Int64Array,
    canonical_axes as canonical_axes,
    drop_unit_axes as drop_unit_axes,
    join_axes as join_axes,
    pad_axes as pad_axes,
    sort_axes as sort_axes,
)
from .conversion import (
    DEVICE as DEVICE,
    HOST as HOST,
    DataConversionInfo as DataConversionInfo,
    DevicePosition as DevicePosition,
    conversion_info as conversion_info,
    device_coordinate as device_coordinate,
    host_coordinates_of_stick as host_coordinates_of_stick,
    occupied_sticks as occupied_sticks,
    viewed_sticks as viewed_sticks,
)
from .device_view import (
    DeviceView as DeviceView,
    Factor as Factor,
    device_view as device_view,
    row_major_view as row_major_view,
    split as split,
    strided_subview as strided_subview,
)
from .geometry import (
    TransferGeometry as TransferGeometry,
    exact_geometry as exact_geometry,
    host_coordinate_of_offset as host_coordinate_of_offset,
    is_parted as is_parted,
    transfer_geometry as transfer_geometry,
)
from .tensor_layout import (
    ELEMENT_ARRANGEMENTS as ELEMENT_ARRANGEMENTS,
    SpyreTensorLayout as SpyreTensorLayout,
    arrangement_positions as arrangement_positions,
    contiguous_strides as contiguous_strides,
    logical_columns as logical_columns,
    storage_bytes as storage_bytes,
)
