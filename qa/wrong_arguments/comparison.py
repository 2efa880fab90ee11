"""Runs a wrong call on the CPU and on the card, and compares the two errors."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from qa.wrong_arguments.calls import Call, random_call
from spyre.torch_backend.compat import is_dense

FINDS = ("computed", "other", "uncoded", "crashed")
"""Kinds of outcomes that are defects of this package."""
NO_KERNEL = "not implemented for"
UNSUPPORTED = ("SPY311", "SPY901", "SPY906")
"""Codes of dtypes, values and layouts that the card does not support."""


@dataclass(frozen=True)
class Outcome:
    """``kind``: "same" error as on the CPU, or as torch has for all other devices; "fault" of the
    card that names the index; "wider": the CPU has no kernel for the dtype; "stricter": the CPU
    reads beyond a tensor; "taken" by both; "unsupported" by the card, with a code; "computed"
    although the CPU refuses; "other" error; "uncoded" error where the CPU computes; "crashed"; or
    "torch's" crash.
    """

    seed: int
    kind: str
    text: str = ""


def outcome_of(seed: int) -> Outcome:
    """Run the call of a seed on both devices and return the outcome."""
    call = random_call(seed)
    return compared(seed, call, error_of(call, "cpu"), error_of(call, "spyre"))


def error_of(call: Call, device: str) -> Exception | None:
    """Run a call on a device, and return its error."""
    moved: dict[int, torch.Tensor] = {}

    def there(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in moved:
                stays = id(value) in call.stays or device == "cpu"
                moved[id(value)] = _copy(value, "cpu" if stays else device)
            return moved[id(value)]
        if isinstance(value, (list, tuple)):
            return type(value)(map(there, value))
        is_device = isinstance(value, torch.device) or value == "cpu"
        return torch.device(device) if is_device else value

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            args, kwargs = there(list(call.args)), {k: there(v) for k, v in call.kwargs.items()}
            call.function(*args, **kwargs)
            if device == "spyre":
                torch.accelerator.synchronize()
    except Exception as error:
        return error
    return None


def _copy(x: torch.Tensor, device: str) -> torch.Tensor:
    """Return a copy with the same strides, also of a tensor with overlapping elements."""
    if is_dense(x):
        return x.detach().clone().to(device)
    storage = x.detach().as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0).clone()
    return storage.to(device).as_strided(x.size(), x.stride(), x.storage_offset())


def compared(seed: int, call: Call, cpu: Exception | None, card: Exception | None) -> Outcome:
    """Compare two errors of a call and return the outcome."""
    shown = f"{call}\n  CPU:  {described(cpu)}\n  card: {described(card)}"
    code = re.search(r"SPY\d{3}", str(card))
    if code is not None and code[0] in UNSUPPORTED:
        return Outcome(seed, "unsupported", shown)
    if call.stays and "same device" in str(card):
        return Outcome(seed, "same")
    if cpu is None or NO_KERNEL in str(cpu):
        return Outcome(seed, _where_the_cpu_computes(cpu, card, code is not None), shown)
    if card is None:
        return Outcome(seed, "computed", shown)
    if code is not None and code[0] == "SPY412":
        return Outcome(seed, "fault" if NAMED_INDEX.search(str(card)) else "other", shown)
    if _is_same(cpu, card) or _is_same(error_of(call, "meta"), card):
        return Outcome(seed, "same")
    return Outcome(seed, "other", shown)


def _is_same(expected: Exception | None, found: Exception) -> bool:
    return type(expected) is type(found) and _plain(expected) == _plain(found)


NAMED_INDEX = re.compile(r"index -?\d+ is out of bounds for dimension \w+ with size \d+")


def _where_the_cpu_computes(cpu: Exception | None, card: Exception | None, is_coded: bool) -> str:
    """Return the kind of a call that the CPU accepts, or only has no kernel for."""
    if card is None:
        return "taken" if cpu is None else "wider"
    if str(card).startswith("The size of tensor a"):
        return "stricter"
    if is_coded:
        return "unsupported"
    return "uncoded" if cpu is None else "same"


def _plain(error: Exception | None) -> str:
    """Return the text of an error without names of devices."""
    text = re.sub(r"spyre(:\d+)?|PrivateUse1|cpu(:\d+)?|CPU|meta", "device", str(error))
    return re.sub(r"\s+", " ", text).strip()


def described(error: Exception | None) -> str:
    """Return type and first lines of an error as text."""
    if error is None:
        return "computed"
    return f"{type(error).__name__}: " + " | ".join(str(error).splitlines())[:400]


def counted(outcomes: list[Outcome]) -> str:
    """Return the numbers of outcomes of each kind as text."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
