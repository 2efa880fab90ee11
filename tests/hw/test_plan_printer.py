"""Golden prints of core plans and linked programs of the example bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spyre.hw.device.device import Device
from spyre.hw.memory.device_memory import DeviceTensor
from spyre.hw.spec import REGION_BYTES
from spyre.mlir.bundle import load_bundle
from spyre.runtime.arguments.read import read_arguments
from spyre.runtime.kernel.kernel import Kernel, Launch
from tests.hw.plan_printer import format_linked, format_plan

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("example", ["softmax", "matmul", "add_loop"])
def test_plans_of_the_examples(example: str, golden: Any) -> None:
    device = Device(threads=1)
    bundle = load_bundle(ROOT / "examples" / example)
    tensors = {
        spec.arg_index: DeviceTensor(
            spec.name,
            (spec.arg_index + 1) * REGION_BYTES,
            spec.layout,
            spec.dtype_name,
            spec.shape,
            spec.strides,
        )
        for spec in read_arguments(bundle).arguments
    }
    linked = Kernel(bundle, device).link(Launch(tensors))
    plans = [format_plan(plan) for group in linked.plans for plan in group]
    golden(GOLDEN / f"{example}.txt", "\n".join([*plans, format_linked(linked)]) + "\n")
