"""Writing case directories: the inverse of :mod:`.case_file`, and the dumps of ``spyre-run``.

A dump is a case with ``findings.json`` beside it, the report of the run it was made of.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import numpy as np

from spyre.errors import LaunchError
from spyre.mlir.bundle import MODULE_FILE, load_bundle
from spyre.runtime.case_file import CASE_FILE, IMAGES_FILE, VALUES_FILE, Case, CaseFile
from spyre.runtime.launch_spec import find_launch_spec

FINDINGS_FILE = "findings.json"
DUMP_VERSION = 1
_VERSION_KEY = "spyre_dump"


class _Marker(msgspec.Struct):
    spyre_dump: int


def check_dump_directory(directory: Path) -> None:
    """LaunchError SPY380 unless ``directory`` does not exist or is an earlier dump."""
    if not os.path.lexists(directory):
        return
    try:
        msgspec.json.decode((directory / FINDINGS_FILE).read_bytes(), type=_Marker)
    except (OSError, msgspec.MsgspecError) as error:
        raise LaunchError(
            "SPY380",
            f"{directory} exists and is no earlier dump",
            expected=f"a new directory, or one whose {FINDINGS_FILE} a dump has written",
        ) from error


def write_dump(
    case: Case,
    directory: Path,
    report: Mapping[str, Any],
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write ``case`` and ``report`` to ``directory``: all of it, or nothing.

    LaunchError SPY380 as of `check_dump_directory`, SPY381 when something cannot be written.
    """
    check_dump_directory(directory)
    content = {_VERSION_KEY: DUMP_VERSION, **report}
    text = msgspec.json.format(msgspec.json.encode(content), indent=1)
    _write(case, directory, {**(extra_files or {}), FINDINGS_FILE: text + b"\n"})


def write_case(case: Case, directory: Path) -> None:
    """Write a case directory with all its kernels; LaunchError SPY381 when it cannot be written.

    A case directory that is there already is replaced in one step.
    """
    _write(case, directory, {})


def _write(case: Case, directory: Path, extra_files: Mapping[str, bytes]) -> None:
    temporary = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
    try:
        temporary.mkdir(parents=True)
        _write_content(case, temporary, extra_files)
        _put_in_place(temporary, directory)
    except OSError as error:
        raise LaunchError(
            "SPY381", f"cannot write {directory}", found=str(error.strerror or error)
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put_in_place(temporary: Path, directory: Path) -> None:
    """Rename; what was there is moved away first and removed last."""
    old = temporary.with_name(f"{temporary.name}.old")
    if directory.exists():
        directory.rename(old)
    temporary.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _write_content(case: Case, target: Path, extra_files: Mapping[str, bytes]) -> None:
    names = _bundle_names(case.spec)
    for source, name in names.items():
        _copy_bundle(case.directory / source, target / name)
    for name, data in extra_files.items():
        (target / name).write_bytes(data)
    _write_arrays(target / VALUES_FILE, case.values)
    if case.images:
        _write_arrays(target / IMAGES_FILE, case.images)
    launches = tuple(
        msgspec.structs.replace(launch, bundle=names[launch.bundle])
        for launch in case.spec.launches
    )
    spec = msgspec.structs.replace(case.spec, launches=launches)
    text = msgspec.json.format(msgspec.json.encode(spec), indent=1)
    (target / CASE_FILE).write_bytes(text + b"\n")


def _bundle_names(spec: CaseFile) -> dict[str, str]:
    """Directory of every bundle in the copy: its own, unless that lies outside of the case."""
    names: dict[str, str] = {}
    for launch in spec.launches:
        pure = PurePosixPath(launch.bundle)
        inside = not pure.is_absolute() and ".." not in pure.parts
        names.setdefault(launch.bundle, launch.bundle if inside else f"kernel_{len(names)}")
    return names


def _copy_bundle(source: Path, target: Path) -> None:
    """bundle.mlir, the SDSC files and launch_spec.json, byte for byte."""
    bundle = load_bundle(source)
    files = [MODULE_FILE, *bundle.sdscs, *bundle.unexecuted]
    found = find_launch_spec(source)
    for path in [*(source / name for name in files), *([found] if found else [])]:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
