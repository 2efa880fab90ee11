"""Tiled tensor layouts: how a host tensor lies in sticks on the card, and who goes where.

A leaf above `spyre.dtypes`: `tensor_layout` holds `SpyreTensorLayout` and the default layout
algorithm, `geometry` derives from a layout which host element each device position holds,
`conversion` says a copy as loop nests, which the device executes, `reference` moves whole tensors
position by position, slowly and obviously; descriptors and copies are tested against it.
Rules: runtime reference §1-3.
"""

from spyre.layout.conversion import DataConversionInfo, StrideInfo, ZeroFill, conversion_info
from spyre.layout.geometry import (
    TransferGeometry,
    device_coordinate,
    host_coordinate_of_offset,
    host_coordinates_of_stick,
    host_positions,
    occupied_sticks,
    transfer_geometry,
    viewed_sticks,
)
from spyre.layout.reference import device_to_host_reference, host_to_device_reference
from spyre.layout.tensor_layout import (
    ELEMENT_ARRANGEMENTS,
    SpyreTensorLayout,
    StrideRule,
    arrangement_positions,
    contiguous_strides,
    storage_bytes,
)

__all__ = [
    "ELEMENT_ARRANGEMENTS",
    "DataConversionInfo",
    "SpyreTensorLayout",
    "StrideInfo",
    "StrideRule",
    "TransferGeometry",
    "ZeroFill",
    "arrangement_positions",
    "contiguous_strides",
    "conversion_info",
    "device_coordinate",
    "device_to_host_reference",
    "host_coordinate_of_offset",
    "host_coordinates_of_stick",
    "host_positions",
    "host_to_device_reference",
    "occupied_sticks",
    "storage_bytes",
    "transfer_geometry",
    "viewed_sticks",
]
