"""Files of users and caches: read only if they are files, written complete or not at all; which of
them other users may have written; Python files imported by path; documents as typed objects.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Content of a regular file. OSError for anything else, and where memory is too small for it.

    A pipe would be waited for, and a device may have no end.
    """
    if not os.path.isfile(path) and os.path.exists(path):
        raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
    try:
        with open(path, "rb") as file:
            return file.read()
    except ValueError as error:  # NUL
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    except MemoryError:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), os.fspath(path)) from None


def other_writer(path: str | os.PathLike[str]) -> str:
    """Return why another user may have written or can replace a file or directory, "" if none can.

    As ssh judges its keys: it and every directory above it, links followed, belong to this user, to
    root, or to the owner of this package (whose code runs anyway), and neither group nor others may
    write to them. Directories above may be sticky instead, as /tmp is, and a file in a directory
    that others cannot enter may have any mode. OSError if there is none.
    """
    trusted = {0, os.geteuid(), os.stat(__file__).st_uid}
    real = os.path.realpath(path, strict=True)
    mode = stat.S_IXOTH
    for end in (*(at or 1 for at, letter in enumerate(real) if letter == "/"), len(real)):
        name = real[:end]
        is_closed = not mode & (stat.S_IXGRP | stat.S_IXOTH)
        status = os.stat(name)
        mode = status.st_mode
        if status.st_uid not in trusted:
            return f"{name} belongs to user {status.st_uid}"
        is_safe = is_closed if stat.S_ISREG(mode) else name != real and mode & stat.S_ISVTX
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_safe:
            return f"other users may write to {name}: mode {stat.S_IMODE(mode):04o}"
    return ""


def make_directories(path: Path) -> None:
    """Make a directory and those above it, if missing, such that only this user may enter them."""
    if not path.exists():
        make_directories(path.parent)
        path.mkdir(mode=stat.S_IRWXU, exist_ok=True)


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """A path beside ``target`` to write to, which takes its place when the block ends well.

    Nothing is left behind when it does not. OSErrors are the caller's to explain. Any thread or
    process may do so at the same time: the last one wins.
    """
    temporary = target.with_name(f".{uuid.uuid4().hex}{target.suffix}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def writable_target(path: Path | str, refusal: Callable[[str], Exception]) -> Path:
    """Return the path to write, with links followed; raise ``refusal(found)`` if none can be."""
    try:
        target = Path(path).resolve()
        exists = os.path.lexists(target)
    except (OSError, RuntimeError, ValueError) as error:  # too long, links in a circle, NUL
        raise refusal(str(error)) from error
    if exists and not target.is_file():
        raise refusal("something other than a file")
    if not target.parent.is_dir():
        raise refusal("a directory that does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise refusal("a directory that may not be written")
    return target


@contextmanager
def replaced_file(path: Path | str, refusal: Callable[[str], Exception]) -> Iterator[Path]:
    """`atomic_write` of a file named by the user; ``refusal(found)`` if it cannot be written."""
    target = writable_target(path, refusal)
    try:
        with atomic_write(target) as temporary:
            yield temporary
    except OSError as error:
        raise refusal(error.strerror or str(error)) from error


def import_file(path: str | os.PathLike[str], name: str) -> ModuleType:
    """Execute a Python file as module ``name``, which is found in ``sys.modules`` afterwards.

    Exceptions of the file propagate.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dynamo imports it by this name
    spec.loader.exec_module(module)
    return module


# --- documents ------------------------------------------------------------------------------------

Kind = TypeVar("Kind")


class FieldError(Exception):
    """A field of a document is wrong. ``path``: from the document on, ``.compile.cores[0]``;
    ``is_key``: it is unknown or missing, its value is not the problem.
    """

    def __init__(self, path: str, expected: str, found: object, is_key: bool = False) -> None:
        super().__init__(f"{path or 'document'}: expected {expected}, found {found}")
        self.path, self.expected, self.found, self.is_key = path, expected, found, is_key


def convert_fields(document: Any, kind: type[Kind]) -> Kind:
    """``document``, of TOML or JSON, as a msgspec type. FieldError for the first wrong field."""
    import msgspec

    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        path, value = path.removesuffix("`"), document
        owner: Any = kind
        for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[key] if key else value[int(index)]
            types = msgspec.structs.fields(owner) if key else ()
            owner = next((field.type for field in types if field.name == key), owner)
        if key := re.search("unknown field `(.*)`", text, re.DOTALL):
            known = f"one of {', '.join(owner.__struct_fields__)}"
            raise FieldError(f"{path}.{key[1]}", known, key[1], True) from None
        if key := re.search("missing required field `(.*)`", text):
            raise FieldError(path, f"a key {key[1]}", ", ".join(value) or "none", True) from None
        expected = re.match("Expected (.*?)(, got |$)", text)
        one_of = " or ".join(map(str, get_args(owner)))  # of a Literal, msgspec names no choices
        shown = expected[1].replace("`", "") if expected else one_of
        raise FieldError(path, shown, value) from None
