"""Workflow 2: compiled kernels become an execution plan, their binaries go to program memory.

`python -m examples.workflows.workflow_2_loading`
"""

from __future__ import annotations

from examples.workflows.compiled_example import compiled
from spyre import FlexDevice
from spyre.runtime.flex.prepare import load_execution_plan


def main() -> None:
    """Load two kernels; show what was allocated and copied, and which steps a launch will have."""
    card = FlexDevice()
    with compiled("softmax") as softmax, compiled("matmul") as matmul:
        print(
            "softmax/spyreCodeDir:", *sorted(p.name for p in (softmax / "spyreCodeDir").iterdir())
        )

        # Space in segment 7 for every binary, and one DMA each. Nothing is launched.
        with card.recording() as commands:
            plan = load_execution_plan([softmax, matmul], card)

    for job in plan:
        print(job.job_plan)
        print("  expected shapes:", job.job_plan.expected_input_shapes)
    print(commands, end="")


if __name__ == "__main__":
    main()
