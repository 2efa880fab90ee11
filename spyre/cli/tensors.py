"""The tensor files of a command line: ``-i``, ``-o`` and ``--save-output``.

A file may hold several tensors; all files together must give one per argument.
"""

from __future__ import annotations

from collections.abc import Sequence

from spyre.errors import LaunchError
from spyre.runtime.arguments import ArgumentSpec
from spyre.runtime.host_tensor import HostTensor
from spyre.runtime.tensor_files import load_tensors, save_tensors


def load_inputs(files: Sequence[str], arguments: Sequence[ArgumentSpec]) -> tuple[HostTensor, ...]:
    """A tensor per input argument. LaunchError SPY367 for another number of tensors."""
    return _load(files, arguments, "SPY367", "input")


def load_expected(
    files: Sequence[str], arguments: Sequence[ArgumentSpec]
) -> tuple[HostTensor, ...]:
    """A tensor per output argument. LaunchError SPY369 for another number of tensors."""
    return _load(files, arguments, "SPY369", "output")


def save_outputs(file: str, tensors: Sequence[HostTensor]) -> None:
    """Write the outputs; LaunchError SPY370 when the file cannot be written."""
    try:
        save_tensors(file, tensors)
    except OSError as error:
        raise LaunchError("SPY370", f"cannot write {file}", found=str(error.strerror)) from error


def _load(
    files: Sequence[str], arguments: Sequence[ArgumentSpec], code: str, what: str
) -> tuple[HostTensor, ...]:
    tensors: list[HostTensor] = []
    for file in files:
        k = len(tensors)
        tensors += load_tensors(file, arguments[k].host_spec if k < len(arguments) else None)
    if len(tensors) != len(arguments):
        raise LaunchError(
            code,
            f"the {what} files hold another number of tensors than the kernel has {what}s",
            expected=", ".join(f"{a.name} {a.host_spec}" for a in arguments) or f"no {what}s",
            found=", ".join(f"{t.name} {t.spec}" for t in tensors) or "no tensors",
        )
    return tuple(tensors)
