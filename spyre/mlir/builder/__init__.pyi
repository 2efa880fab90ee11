from .bundles import (
    MAX_SEGMENTS as MAX_SEGMENTS,
    POOL as POOL,
    BuiltBundle as BuiltBundle,
    BundleBuilder as BundleBuilder,
)
from .operations import (
    Base as Base,
    BufferAddress as BufferAddress,
    OperandSpec as OperandSpec,
    OperationSpec as OperationSpec,
    RuntimeSize as RuntimeSize,
    SizeValue as SizeValue,
)
from .recipes import (
    HostOperand as HostOperand,
    pointwise as pointwise,
    round_up as round_up,
)
