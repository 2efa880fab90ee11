"""Parts of a corpus case: a good bundle, edits that damage it, and a command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from spyre.mlir.builder.operations import OperationSpec, build_operation
from spyre.mlir.bundle import Bundle, BundleContents, write_bundle
from spyre.mlir.sdsc.writer import write_operation
from spyre.mlir.text.syntax import ExecuteOp, Function, Module
from tests.mlir.test_sdsc_bad import parent_of, put

BUNDLE = "bundle"
"""Directory of the bundle, below the one the command line runs in."""

Edit = Callable[[Path], None]
"""Changes files of the bundle directory it is given."""


class Stage(StrEnum):
    """Stage at which a fault is found."""

    PARSE = "parse"
    CHECK = "check"
    LAUNCH = "launch"
    RUN = "run"
    SANITIZE = "sanitize"


class CorpusCase(msgspec.Struct, frozen=True):
    """One case.

    ``bundle`` writes the good bundle (None: there is none), ``edits`` spoil it. ``words``: command
    line after ``spyre-run``, run in the directory that holds the bundle. ``code``: the code that
    must be in its answer. ``environment``: variables set for the run.
    """

    name: str
    stage: Stage
    code: str
    bundle: Callable[[], BundleContents] | None
    edits: tuple[Edit, ...] = ()
    words: tuple[str, ...] = (BUNDLE, "--check")
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)

    def make(self, directory: Path) -> None:
        """Write the bundle below ``directory`` and spoil it."""
        target = directory / BUNDLE
        target.mkdir()
        if self.bundle is not None:
            write_bundle(self.bundle(), target)
        for edit in self.edits:
            edit(target)


def bundle_of(*specs: OperationSpec) -> Callable[[], BundleContents]:
    """A baked bundle that executes operations of which no rule has been checked."""

    def build() -> BundleContents:
        sdscs = {
            f"sdsc_{k}.json": write_operation(build_operation(spec, f"{k}_{spec.name}"))
            for k, spec in enumerate(specs)
        }
        body = tuple(ExecuteOp((), name) for name in sdscs)
        return Bundle(Path("bundle"), Module(Function("sdsc_bundle", (), body)), sdscs)

    return build


def write(name: str, content: str | bytes) -> Edit:
    """Write a file, ``name`` relative to the bundle."""

    def edit(directory: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)

    return edit


def text(name: str, old: str, new: str) -> Edit:
    """Replace ``old``, which must occur, everywhere in a file."""

    def edit(directory: Path) -> None:
        content = (directory / name).read_text()
        assert old in content
        (directory / name).write_text(content.replace(old, new))

    return edit


def patch(
    name: str,
    values: Mapping[str, Any] | None = None,
    *,
    copy: Mapping[str, str] | None = None,
    remove: Sequence[str] = (),
) -> Edit:
    """Set, copy and remove members of a JSON file, given as JSON pointers."""

    def edit(directory: Path) -> None:
        tree = json.loads((directory / name).read_bytes())
        for pointer, value in (values or {}).items():
            put(tree, pointer, value)
        for pointer, source in (copy or {}).items():
            parent, key = parent_of(tree, source)
            put(tree, pointer, parent[key])
        for pointer in remove:
            parent, key = parent_of(tree, pointer)
            del parent[key]
        (directory / name).write_text(json.dumps(tree))

    return edit


def delete(name: str) -> Edit:
    """Remove a file."""
    return lambda directory: (directory / name).unlink()


def folder(name: str) -> Edit:
    """Make a directory."""
    return lambda directory: (directory / name).mkdir()


def array(name: str, values: Any, dtype: str) -> Edit:
    """Save a .npy file."""
    return lambda directory: np.save(directory / name, np.array(values, dtype))


def arrays(name: str, **values: Any) -> Edit:
    """Save a .npz file."""
    return lambda directory: np.savez(directory / name, **values)
