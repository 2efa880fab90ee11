"""Bundles, compiled for the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.make import EXAMPLES
from spyre.mlir.bundle import BundleContents, write_bundle
from spyre.runtime.spyrecode.compile import compile_directory


@contextmanager
def compiled(name: str, parts: BundleContents | None = None) -> Iterator[Path]:
    """A temporary directory with a bundle, example ``name`` if not ``parts``, and its SpyreCode."""
    with TemporaryDirectory() as parent:
        directory = Path(parent) / name
        write_bundle(EXAMPLES[name]() if parts is None else parts, directory)
        compile_directory(directory)
        yield directory
