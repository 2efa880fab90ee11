"""Functions compiled with the passes on or off, and their graphs after the passes."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import torch

from spyre.torch_backend.inductor.base.compat import inductor_config
from spyre.torch_backend.inductor.base.notes import format_operations
from spyre.torch_backend.inductor.hooks import pre_scheduling
from spyre.torch_backend.inductor.kernel.builder import SpyreKernel
from spyre.torch_backend.inductor.lowering.device_ir import DEVICE_OPERATION
from spyre.torch_backend.program.op_spec import OpKind


class Seen:
    """``restickified``: names of copied tensors, by graph operation; ``emitted``: number of
    restickifies in kernels; ``text``: the last graph.
    """

    def __init__(self):
        self.restickified = []
        self.emitted = 0
        self.text = ""

    def note(self, graph):
        for operation in graph.operations:
            known = getattr(operation, DEVICE_OPERATION, None)
            if known is not None and known.kind is OpKind.RESTICKIFY:
                self.restickified += [dep.name for dep in operation.get_read_writes().reads]
        self.text = format_operations(graph.operations)


@contextmanager
def passes(*more, first=None):
    """Run all passes (or ``first`` in their place), then ``more``; yield the record."""
    seen, finished = Seen(), SpyreKernel.finished

    def counted(kernel, printer=None):
        kinds = [spec.kind for spec in kernel.specs]
        seen.emitted += kinds.count(OpKind.RESTICKIFY)
        return finished(kernel, printer)

    chosen = pre_scheduling.LAYOUT_PASSES if first is None else first
    changed = mock.patch.object(pre_scheduling, "LAYOUT_PASSES", (*chosen, *more, seen.note))
    counting = mock.patch.object(SpyreKernel, "finished", counted)
    uncached = inductor_config.patch({"force_disable_caches": True})
    with changed, counting, uncached:
        yield seen


def run(function, *inputs, first=None):
    """Return the card's results as CPU tensors, and the record."""
    torch._dynamo.reset()
    given = [t.to("spyre") for t in inputs]
    with passes(first=first) as seen, torch.no_grad():
        found = torch.compile(function, fullgraph=True)(*given)
    found = found if isinstance(found, tuple) else (found,)
    return [t.cpu() for t in found], seen


def same_bits(function, *inputs):
    """Run with and without the passes, compare the results' bits, and return both records."""
    with_passes, on = run(function, *inputs)
    without, off = run(function, *inputs, first=())
    for a, b in zip(with_passes, without, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
    return on, off
