from .host_tensor import (
    ArrayHeader as ArrayHeader,
    HostTensor as HostTensor,
    TensorSpec as TensorSpec,
    load_tensors as load_tensors,
    parse_tensor_spec as parse_tensor_spec,
    random_tensor as random_tensor,
    read_npz as read_npz,
    require_shape as require_shape,
    save_tensors as save_tensors,
)
from .read import (
    Inputs as Inputs,
    arrangement_findings as arrangement_findings,
    given_launch_spec as given_launch_spec,
    prepare_inputs as prepare_inputs,
    read_arguments as read_arguments,
    trace_operands as trace_operands,
)
from .specs import (
    ArgumentSpec as ArgumentSpec,
    KernelArguments as KernelArguments,
    argument_name as argument_name,
    spec_of_arguments as spec_of_arguments,
)
