"""Output files on a disk that fills up: they must be whole or unchanged, without remains beside.

The disk is a tmpfs of a few megabytes, of which a chosen part is free. Without the right to mount
one, the length of each file is limited instead.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from qa.faults.files import EXAMPLES, TENSOR_SUFFIXES, Workshop
from qa.faults.outcome import Command, Fault, after, ended

DISK_BYTES = 4 << 20


@dataclass(frozen=True)
class Disk:
    """A directory whose free space can be chosen."""

    root: Path
    is_mounted: bool

    @contextmanager
    def nearly_full(self, free_bytes: int) -> Iterator[None]:
        """Leave ``free_bytes`` free within the block; without a mount, limit files to that size."""
        if self.is_mounted:
            with self._filled(free_bytes):
                yield
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    @contextmanager
    def _filled(self, free_bytes: int) -> Iterator[None]:
        filler = self.root / "filler"
        status = os.statvfs(self.root)
        with filler.open("wb") as file:
            os.posix_fallocate(
                file.fileno(), 0, max(1, status.f_bavail * status.f_bsize - free_bytes)
            )
        try:
            yield
        finally:
            filler.unlink()


@contextmanager
def small_disk(root: Path) -> Iterator[Disk]:
    """Mount a disk at ``root`` within the block, if that is allowed."""
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(root)]
    is_mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield Disk(root, is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(root)], check=True)


@dataclass(frozen=True)
class Written:
    """A command that writes ``name`` to the disk; ``is_whole``: True if the file is complete."""

    name: str
    command: Command
    is_whole: Callable[[Path], bool]
    beside: tuple[str, ...] = ()


def output_faults(shop: Workshop, disk: Disk) -> Iterator[Fault]:
    """Yield a fault per kind of output, new or over an old file, and size of the free space."""
    for written in _kinds(shop, disk):
        for is_there in (False, True):
            for share in (0.0, 0.05, 0.3, 0.8, 0.99):
                state = "over a good one" if is_there else "new"
                yield Fault(
                    f"{written.name}, {state}, {share:.0%} of the room it needs",
                    partial(_inject, disk, written, is_there, share),
                )


def _kinds(shop: Workshop, disk: Disk) -> Iterator[Written]:
    bundle, run = shop.at("bundle"), ("spyre-run", shop.at("bundle"), "-q")
    for suffix in TENSOR_SUFFIXES:
        name = f"y{suffix}"
        command = (*run, "--save-output", str(disk.root / name))
        yield Written(name, command, lambda p: ended((*run, "-o", str(p), "--exact")).code == 0)
    yield Written(
        "dump", (*run, "-o", shop.at("y.npy"), "--dump", str(disk.root / "dump")),
        lambda p: ended(("spyre-run", str(p), "-q")).code == 0,
    )  # fmt: skip
    yield Written("t.json", (*run, "--trace", str(disk.root / "t.json")), _is_json)
    yield Written(
        "r.html", (*run, "--report", str(disk.root / "r.html")),
        lambda p: p.read_text().rstrip().endswith("</html>"),
    )  # fmt: skip
    yield Written(
        "r.svg", (*run, "--roofline", str(disk.root / "r.svg")),
        lambda p: p.read_text().rstrip().endswith("</svg>"),
    )  # fmt: skip
    compiled = disk.root / "bundle"
    shutil.copytree(EXAMPLES / "softmax", compiled, dirs_exist_ok=True)
    yield Written(
        "bundle/spyreCodeDir", ("spyre-compile", "-q", "--bundle", "-d", str(compiled)),
        lambda p: (p / "spyrecode.json").is_file(),
    )  # fmt: skip
    shutil.copy(shop.at("s.csv.journal"), disk.root / "s.csv.journal")
    yield Written(
        "s.csv",
        ("spyre.sweep", "--jobs", "1", shop.at("sweep.toml"), "--out", str(disk.root / "s.csv")),
        lambda p: p.read_text().count("\n") == 3,
        beside=("s.csv.journal",),
    )
    del bundle


def _is_json(path: Path) -> bool:
    return bool(json.loads(path.read_bytes()))


def _inject(disk: Disk, written: Written, is_there: bool, share: float, rng: random.Random) -> str:
    target = disk.root / written.name
    _remove(target)
    first = ended(written.command)
    if first.code:
        return f"cannot be written at all: {first}"
    needed = _size(target)
    if not is_there:
        _remove(target)
    before = _state(target)
    names = sorted(p.name for p in target.parent.iterdir())
    with disk.nearly_full(int(needed * min(1.0, share + rng.random() * 0.05))):
        done = ended(written.command)
        left = sorted(p.name for p in target.parent.iterdir() if p.name != "filler")
    if done.untruth:
        return done.untruth
    if done.code == 0:
        return "" if written.is_whole(target) else "exit code 0, and the file is not whole"
    if _state(target) != before:
        return "what could not be written has changed"
    return f"left behind: {left}" if left != names else after(written.command)


def _state(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {str(p): p.read_bytes() for p in files if p.is_file()}


def _size(path: Path) -> int:
    return sum(map(len, _state(path).values()))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
