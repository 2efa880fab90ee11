"""What torch builds on collectives and made for other devices: DDP's map of used parameters, and
the random numbers of DTensors. Patches of torch that are installed when the first group is made.

DDP reduces a map of the parameters each rank used, which it stages in pinned memory that a device
in Python cannot give; here the map stays on the host, and gloo reduces it. DTensor's tracker counts
offsets of a Philox generator; the cards' generator has none. Here every operation takes one number
of the generator, which all ranks share, and each shard draws from a seed made of it.
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
"""Numbers a CPU generator can be seeded with."""


def _close_group(name: str, rank: int) -> None:
    from spyre.torch_backend.distributed.group import close_group

    close_group(name, rank)


def _let_gloo_reduce_map(group: Any) -> None:
    """Collectives of CPU tensors of a DDP group go to the gloo backend it has anyway."""
    from spyre.torch_backend.distributed.group import group_of

    if torch.device("cpu") not in group._device_types:
        compat.register_gloo_for_cpu(group, group_of(*compat.name_of_process_group(group)).gloo)


def _synchronise_generators() -> None:
    """The card's generator of every rank goes on from where that of rank 0 is."""
    generator = cpu_generator()
    state = generator.get_state().to("spyre")
    dist.broadcast(state, 0)
    generator.set_state(state.cpu())


@contextmanager
def _shard_random(spec: Any, generator: torch.Generator | None) -> Iterator[None]:
    """Within, the card draws the numbers of this rank's shard; replicas draw the same ones.

    ``spec``: DTensorSpec of the result. ``generator``: whose number all shards begin with, by
    default the card's; one number further afterwards.
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
"""Each does its work once per process; by the name of the patch."""
