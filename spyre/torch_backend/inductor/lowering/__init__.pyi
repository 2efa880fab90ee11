from .decompositions import (
    copy_strided_views as copy_strided_views,
    decompositions as decompositions,
    eager_operators as eager_operators,
    install_lowerings as install_lowerings,
    mark_fallbacks as mark_fallbacks,
    mark_fallbacks_in as mark_fallbacks_in,
    numbers_as_tensors as numbers_as_tensors,
    share_sequences as share_sequences,
)
from .device_graph import (
    DeviceProgram as DeviceProgram,
)
from .device_ir import (
    DEVICE_OPERATION as DEVICE_OPERATION,
    Body as Body,
    ConstantLoad as ConstantLoad,
    DeviceOperation as DeviceOperation,
    Load as Load,
    body_of as body_of,
    program_of as program_of,
)
