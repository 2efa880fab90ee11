"""Compiled programs and calls as people see them: TORCH_SPYRE_DEBUG and SPYRE_KEEP.

TORCH_SPYRE_DEBUG=1 sends every operation, copy and compiled program of the device to the logger
``spyre.torch``; it is read once, when the device is registered. SPYRE_KEEP writes the bundles.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spyre import config
from spyre.errors import LaunchError
from spyre.mlir.bundle import BundleParts, write_bundle

logger = logging.getLogger("spyre.torch")


def describe(value: Any) -> str:
    """A tensor as dtype, sizes and device, anything else as it prints."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return f"{name}{list(value.size())}@{value.device}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(describe, value)) + "]"
    return repr(value)


def logged(kernel: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """``kernel`` with a line per call: the operation and what it was given.

    ``name`` None: of kernels that get the operator as their first argument.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        shown, given = (name, args) if name is not None else (f"{args[0]} on the CPU", args[1:])
        parts = [*map(describe, given), *(f"{k}={describe(v)}" for k, v in kwargs.items())]
        logger.debug("%s(%s)", shown, ", ".join(parts))
        return kernel(*args, **kwargs)

    return call


def log_program(name: str, listing: str) -> None:
    """A line per operation of a program that was compiled."""
    lines = "".join(f"\n  {line}" for line in listing.splitlines())
    logger.debug("compiled %s:%s", name, lines)


def start_logging() -> None:
    """Let the lines be seen, on stderr if the program has no logging of its own."""
    logger.setLevel(logging.DEBUG)
    if not logging.getLogger().handlers and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


LISTING_FILE = "operations.txt"


def shows_programs() -> bool:
    """Whether `show_program` has anything to do."""
    return config.logs_torch_operations() or config.keep_directory() is not None


def show_program(name: str, listing: str, parts: BundleParts) -> None:
    """Log and write a program that is about to be compiled, as the environment asks for.

    ``listing``: its operations, one a line. LaunchError SPY951 when SPYRE_KEEP cannot be written.
    """
    if config.logs_torch_operations():
        log_program(name, listing)
    directory = config.keep_directory()
    if directory is not None:
        keep_program(directory, name, listing, parts)


def keep_program(directory: Path, name: str, listing: str, parts: BundleParts) -> Path:
    """Write a program to a new directory in ``directory``, numbered and named after ``name``."""
    files = {**parts.extra_files, LISTING_FILE: f"{listing}\n".encode()}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return write_bundle(replace(parts, extra_files=files), next_place(directory, name))
    except OSError as error:
        raise LaunchError(
            "SPY951",
            f"the program {name} cannot be written to {directory}",
            expected="SPYRE_KEEP to name a directory that may be written",
            found=error.strerror or type(error).__name__,
        ) from error


def next_place(directory: Path, name: str) -> Path:
    """A directory made here, numbered after the last one; several processes may do so at once."""
    text = re.sub(r"[^A-Za-z0-9_.-]+", "_", name)
    while True:
        number = max(_numbers(directory), default=0) + 1
        place = directory / f"{number:04d}-{text}"
        try:
            place.mkdir()
        except FileExistsError:  # another process was faster
            continue
        return place


def _numbers(directory: Path) -> Iterator[int]:
    """Numbers of the programs that are there."""
    for place in directory.iterdir():
        head = place.name.split("-", 1)[0]
        if head.isdecimal():
            yield int(head)
