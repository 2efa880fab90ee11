"""A canary per private symbol of torch's distributed part."""

from __future__ import annotations

import operator
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from spyre.runtime.comms import CollectiveError
from spyre.torch_backend.distributed import compat

SYMBOLS = (
    "ProcessGroup.unbox",
    "ProcessGroup._device_types",
    "ProcessGroup._get_backend",
    "ProcessGroup.BackendType.GLOO",
    "ProcessGroup.BackendType.CUSTOM",
    "ProcessGroup._register_backend",
    "ProcessGroup._set_default_backend",
    "ProcessGroupGloo",
    "ProcessGroupGloo.abort",
    "ReduceOp.RedOpType.PREMUL_SUM",
    "Work.boxed",
    "_resolve_process_group",
    "Work.get_future",
    "Work.wait",
    "_create_work_from_future",
)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_symbol(symbol):
    assert operator.attrgetter(symbol)(torch._C._distributed_c10d)


def test_groups_are_listed():
    from torch.distributed import distributed_c10d

    assert isinstance(distributed_c10d._world.pg_map, dict)
    assert distributed_c10d._new_process_group_helper


def test_operators():
    assert torch.ops._c10d_functional.wait_tensor.default
    assert torch.ops.c10d.allreduce_.default


def test_a_timeout_is_never_shorter_than_asked_for():
    assert compat.milliseconds(0.0).total_seconds() == 0.001
    assert compat.milliseconds(1.2341).total_seconds() >= 1.2341


def test_a_connection_that_gloo_cannot_make_has_a_code():
    timeout = timedelta(seconds=0.1)
    store = dist.HashStore()
    store.set_timeout(timeout)
    options = SimpleNamespace(group_rank=0, group_size=2, timeout=timeout)
    with pytest.raises(CollectiveError, match="SPY954"):
        compat.new_gloo("absent/", store, options)


def test_ddp_and_dtensor():
    from torch.distributed.tensor import _random

    ddp = torch.nn.parallel.DistributedDataParallel
    assert ddp._ddp_init_helper
    assert ddp._set_static_graph
    assert _random.OffsetBasedRNGTracker._distribute_region
    assert _random._calc_shard_info
    assert _random._calc_shard_linear_idx
    assert torch._guards.TracingContext.try_get() is None
