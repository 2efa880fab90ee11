"""Ranks of a process group as threads of this process, which share its card."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld

from spyre.torch_backend.distributed.group import close_all


def run_ranks(size, body, backend="spyreccl", timeout=20.0):
    """Run ``body(rank)`` in a thread per rank with a world group; return the results by rank.

    The first error of a rank is raised. SPYRECCL_TRANSPORT must be ``shm``.
    """
    store, results, errors = dist.HashStore(), [None] * size, [None] * size
    world = distributed_c10d._world
    distributed_c10d._world = ThreadLocalWorld()
    c10d._set_thread_isolation_mode(True)

    def rank_body(rank):
        try:
            dist.init_process_group(
                backend, rank=rank, world_size=size, store=store, timeout=timedelta(seconds=timeout)
            )
            results[rank] = body(rank)
        except BaseException as error:
            errors[rank] = error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    threads = [threading.Thread(target=rank_body, args=(rank,)) for rank in range(size)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a rank hangs"
    finally:
        close_all()
        c10d._set_thread_isolation_mode(False)
        distributed_c10d._world = world
    for error in errors:
        if error is not None:
            raise error
    return results


def mesh_of(ranks):
    """Meshes are keys of torch's caches: those of threads must differ, as on backend threaded."""
    mesh = dist.init_device_mesh("spyre", (ranks,))
    mesh._thread_id = threading.get_ident()
    return mesh
