from .generation import (
    KernelMemory as KernelMemory,
    generate_bundle as generate_bundle,
)
from .kernel_op import (
    HBM as HBM,
    LX as LX,
    DeviceDim as DeviceDim,
    Kernel as Kernel,
    KernelLoop as KernelLoop,
    KernelOp as KernelOp,
    KernelTensor as KernelTensor,
    UnimplementedOp as UnimplementedOp,
    kernel_text as kernel_text,
    operations_in as operations_in,
    roles_of as roles_of,
)
from .kernels import (
    DynamicExtents as DynamicExtents,
    DynamicKernel as DynamicKernel,
    HostExtents as HostExtents,
    InductorKernel as InductorKernel,
)
from .op_spec_form import (
    LoopSpec as LoopSpec,
    OpSpec as OpSpec,
    Spec as Spec,
    TensorArg as TensorArg,
    operations_of as operations_of,
    spec_text as spec_text,
    to_op_specs as to_op_specs,
)
from .sizes import (
    SizeSpec as SizeSpec,
)
