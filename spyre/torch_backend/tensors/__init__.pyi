from .allocation import (
    DeviceBuffer as DeviceBuffer,
    StorageLayout as StorageLayout,
    allocate as allocate,
    allocate_based as allocate_based,
    allocate_on as allocate_on,
    argument_base as argument_base,
    buffer_of as buffer_of,
    default_base as default_base,
    empty_strided_on as empty_strided_on,
    storage_elements as storage_elements,
    tensor_at as tensor_at,
    with_strides as with_strides,
)
from .copies import (
    assemble as assemble,
    check_broadcast as check_broadcast,
    download as download,
    fetched as fetched,
    from_host as from_host,
    host_tensor as host_tensor,
    is_whole as is_whole,
    lay_out_for as lay_out_for,
    move as move,
    moves_bits as moves_bits,
    raw_tensor as raw_tensor,
    relayout as relayout,
    start_host_storage as start_host_storage,
    to_host as to_host,
    upload as upload,
    view_of as view_of,
    with_bits_of as with_bits_of,
    write_storage as write_storage,
)
from .layouts import (
    device_tensor_layout as device_tensor_layout,
    empty_in_layout as empty_in_layout,
    factor_layout as factor_layout,
    is_factor as is_factor,
    new_layout as new_layout,
    to_layout as to_layout,
)
from .module_moves import apply as apply, set_data as set_data
from .storages import METHODS as METHODS, new_storage as new_storage, set_storage as set_storage
