"""How an allocation is to be placed (runtime reference §4.1, AllocationDirective)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from spyre.errors import LaunchError
from spyre.hw.regions import PROGRAM_REGION, TENSOR_REGIONS


class AllocationPolicy(StrEnum):
    """Bind: one chunk. Interleave: one chunk in each of several domains."""

    BIND = "Bind"
    INTERLEAVE = "Interleave"


class MemoryType(StrEnum):
    """What the memory is for: tensors never lie in segment 7, programs lie nowhere else."""

    TENSOR = "Tensor"
    PROGRAM = "Program"


@dataclass(frozen=True, slots=True)
class AllocationDirective:
    """Policy, domains and memory type of one allocation; LaunchError SPY802 if they do not agree.

    A domain is a memory region here. ``domains`` empty: the allocator chooses. One domain with
    Bind: that region or none. Interleave names two or more, each once.
    """

    policy: AllocationPolicy = AllocationPolicy.BIND
    domains: tuple[int, ...] = ()
    memory_type: MemoryType = MemoryType.TENSOR

    def __post_init__(self) -> None:
        self._check_domains()
        if self.policy is AllocationPolicy.BIND and len(self.domains) > 1:
            raise self._wrong("at most one domain", "Bind")
        if self.policy is AllocationPolicy.INTERLEAVE and len(self.domains) < 2:
            raise self._wrong("two domains or more", "Interleave")

    def _check_domains(self) -> None:
        program = self.memory_type is MemoryType.PROGRAM
        allowed = (PROGRAM_REGION,) if program else range(TENSOR_REGIONS)
        unique = len(set(self.domains)) == len(self.domains)
        if not unique or any(domain not in allowed for domain in self.domains):
            first, last = allowed[0], allowed[-1]
            wanted = f"only {first}" if program else f"different ones of {first} to {last}"
            raise self._wrong(wanted, self.memory_type)

    def _wrong(self, expected: str, what: str) -> LaunchError:
        return LaunchError(
            "SPY802",
            f"an allocation directive names domains that {what} cannot use",
            expected=expected,
            found=str(list(self.domains)),
        )


BIND = AllocationDirective()
PROGRAM = AllocationDirective(memory_type=MemoryType.PROGRAM)
