"""Patches of torch for DDP and random DTensors, installed when the first group is created.

DDP reduces a map of the parameters that each rank used, staged in pinned memory, which a device in
Python cannot provide; here the map stays on the host and gloo reduces it. DTensor's tracker counts
offsets of a Philox generator, which the cards' generator does not have; here every operation draws
one number from the generator that all ranks share, and each shard derives a seed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from spyre.errors import UnsupportedError
from spyre.torch_backend.device import cpu_generator
from spyre.torch_backend.distributed import compat

SEEDS = 1 << 32
"""Number of seeds of a CPU generator."""


def _close_group(name: str, rank: int) -> None:
    from spyre.torch_backend.distributed.group import close_group

    close_group(name, rank)


def _let_gloo_reduce_map(group: Any) -> None:
    """Use the group's gloo backend for collectives of CPU tensors."""
    from spyre.torch_backend.distributed.group import group_of

    if torch.device("cpu") not in group._device_types:
        compat.register_gloo_for_cpu(group, group_of(*compat.name_of_process_group(group)).gloo)


def _synchronise_generators() -> None:
    """Set the generator of every rank's card to the state of rank 0."""
    generator = cpu_generator()
    state = generator.get_state().to("spyre")
    dist.broadcast(state, 0)
    generator.set_state(state.cpu())


@contextmanager
def _shard_random(spec: Any, generator: torch.Generator | None) -> Iterator[None]:
    """Seed the card for this rank's shard within the block; replicas draw equal numbers.

    ``spec``: DTensorSpec of the result. ``generator``: provides the common seed, by default the
    card's; it advances by one number.
    """
    if compat.is_tracing():
        raise UnsupportedError(
            "SPY979",
            "random operations of DTensors under torch.compile",
            hint="draw before, or keep the operation out of the compiled function",
        )
    card = cpu_generator()
    source = card if generator is None else generator
    (common,) = torch.randint(SEEDS, (1,), generator=source, device="cpu").tolist()
    before = card.get_state()
    card.manual_seed((common + compat.shard_index(spec)) % SEEDS)
    try:
        yield
    finally:
        card.set_state(before)


INSTALLERS: dict[str, Callable[[], None]] = {
    "collective_wait": compat.wrap_work_wait,
    "destroy": partial(compat.wrap_destroy, _close_group),
    "ddp": partial(compat.wrap_ddp, compat.used_map_on_host, _let_gloo_reduce_map),
    "dtensor_random": partial(compat.wrap_dtensor_random, _synchronise_generators, _shard_random),
}
"""By name of a patch, its installer, which has an effect once per process."""
