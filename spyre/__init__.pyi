from . import errors as errors
from .errors import SpyreError as SpyreError
from .hw.device.device import Device as Device
from .hw.numerics import Numerics as Numerics
from .mlir.bundle import (
    Bundle as Bundle,
    load_bundle as load_bundle,
)
from .mlir.tiles.program import (
    KtirProgram as KtirProgram,
    load_ktir as load_ktir,
)
from .runtime.flex.device import FlexDevice as FlexDevice
from .runtime.flex.prepare import (
    launch_jobplan as launch_jobplan,
    launch_kernel as launch_kernel,
    prepare_kernel as prepare_kernel,
)
from .runtime.flex.stream import Event as Event
from .runtime.memory.allocator import SpyreTensor as SpyreTensor
from .runtime.profile.profile import profile as profile
from .runtime.run.session import (
    RunResult as RunResult,
    Session as Session,
    run as run,
)
from .torch_backend.inductor.explain import explain as explain
from .torch_backend.torch_reference import first_wrong as first_wrong

__version__: str
