"""Element arrangements of a launch's arguments against the operations that use them.

Every operand is traced to its argument as for a bundle without launch_spec.json; the rules are in
:mod:`spyre.hw.arrangement_rules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from spyre.errors import Finding
from spyre.hw.arrangement_rules import STANDARD, arrangement_faults
from spyre.hw.ops import find_op
from spyre.mlir.operation import Operation
from spyre.runtime.arguments import KernelArguments
from spyre.runtime.derived_arguments import uses_by_owner
from spyre.runtime.kernel_source import KernelSource


def arrangement_findings(
    bundle: KernelSource, arguments: KernelArguments, values: Mapping[str, int]
) -> tuple[Finding, ...]:
    """Warnings on every execute whose arguments are tagged; LaunchErrors as of the tracing.

    A launch in which every layout is STANDARD has nothing to find and is not traced.
    """
    known = {a.arg_index: a.layout.element_arrangement for a in arguments.arguments}
    if set(known.values()) <= {STANDARD}:
        return ()
    baked = not bundle.program.parameters
    first = 1 if baked and arguments.pool_bytes else 0
    tags: dict[int, dict[int, str]] = defaultdict(dict)
    operations: dict[int, Operation] = {}
    for owner, uses in uses_by_owner(bundle, values).items():
        for use in uses:
            operations[use.execute] = use.op
            if owner - first in known:
                tags[use.execute][use.tensor.index] = known[owner - first]
    found: list[Finding] = []
    for execute, op in sorted(operations.items(), key=lambda pair: pair[0]):
        spec = find_op(op.name)
        if spec is not None:
            found += arrangement_faults(op, spec, tags[execute])
    return tuple(dict.fromkeys(found))
