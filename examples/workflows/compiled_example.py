"""Example bundles, compiled for the runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from spyre.runtime.spyrecode.compile import compile_directory

EXAMPLES = Path(__file__).parents[1]


@contextmanager
def compiled(name: str) -> Iterator[Path]:
    """A temporary copy of example ``name`` with what `spyre-compile` makes of it."""
    with TemporaryDirectory() as parent:
        directory = Path(parent) / name
        shutil.copytree(EXAMPLES / name, directory)
        compile_directory(directory)
        yield directory
