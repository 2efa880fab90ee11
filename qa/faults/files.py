"""Damaged input files: every damage of every kind of file, for every command that reads it.

All commands run in this process. After a damage a command must exit with 0, 1 or 2 in agreement
with its output; once the file is restored, the same command must succeed.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import spyre
from qa.faults.damages import damaged, damages_of
from qa.faults.outcome import Command, Fault, after, ended
from spyre.runtime.program.plan_cache import PlanCache, load_compiled

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TENSOR_SUFFIXES = (".npy", ".npz", ".pt", ".bin")


@dataclass(frozen=True)
class FileKind:
    """A file in a workshop and the commands that read it; ``is_written``: they may rewrite it."""

    name: str
    path: str
    commands: tuple[Command, ...]
    is_written: bool = False


@dataclass(frozen=True)
class Workshop:
    """A directory with a good file of every kind, and a private cache."""

    root: Path

    def make(self) -> None:
        """Fill the directory with files that the programs write."""
        bundle = self.root / "bundle"
        shutil.copytree(EXAMPLES / "softmax", bundle)
        for suffix in TENSOR_SUFFIXES:
            self._must("spyre-run", "-q", str(bundle), "--save-output", self.at(f"y{suffix}"))
            self._must(
                "spyre-run", "-q", str(EXAMPLES / "softmax"), "--seed", "3",
                "--save-output", self.at(f"x{suffix}"),
            )  # fmt: skip
        self._must(
            "spyre-run", "-q", str(bundle), "-o", self.at("y.npy"), "--dump", self.at("case")
        )
        self._must("spyre-compile", "-q", "--bundle", "-d", str(bundle))
        kept = ended(("spyre-run", str(bundle), "--profile", "--json"))
        (self.root / "kept.json").write_text(kept.out)
        shutil.copy(
            Path(spyre.__file__).parent / "hw" / "cost" / "spyre.toml", self.root / "m.toml"
        )
        (self.root / "sweep.toml").write_text(
            'bundles = ["bundle"]\n[machine]\ncalibration.stream_gbps = [75, 150]\n'
        )
        self._must("spyre.sweep", "-q", self.at("sweep.toml"), "--out", self.at("s.csv"))

    def at(self, name: str) -> str:
        return str(self.root / name)

    def _must(self, *command: str) -> None:
        done = ended(command)
        assert done.code == 0, done

    @cached_property
    def kinds(self) -> tuple[FileKind, ...]:
        """Every kind of file that programs read."""
        bundle, case = self.at("bundle"), self.at("case")
        run: Command = ("spyre-run", bundle, "-q", "-o", self.at("y.npy"))
        check: Command = ("spyre-run", bundle, "--check")
        explain: Command = ("spyre-run", bundle, "--explain", "--json")
        compiled: Command = ("spyre-compile", "--bundle", "-d", bundle)
        replay: Command = ("spyre-run", case, "-q")
        check_case: Command = ("spyre-run", case, "--check", "--json")
        dump: Command = ("spyre-run", bundle, "-q", "--dump", case)
        compare: Command = ("spyre-run", "--compare", self.at("kept.json"), bundle)
        profile: Command = ("spyre-run", bundle, "--profile", "-q", "--machine", self.at("m.toml"))
        sweep: Command = (
            "spyre.sweep", self.at("sweep.toml"), "--out", self.at("s.csv"), "--jobs", "1",
        )  # fmt: skip
        return (
            FileKind("module", "bundle/bundle.mlir", (run, check, explain, compiled)),
            FileKind("SDSC", "bundle/sdsc_1.json", (run, check, explain, compiled)),
            FileKind("launch spec", "bundle/launch_spec.json", (run, check, explain)),
            FileKind("case", "case/case.json", (replay, check_case)),
            FileKind("values of a case", "case/values.npz", (replay, check_case)),
            FileKind("findings of a dump", "case/findings.json", (dump,), True),
            *(self._tensor("input", "-i", f"x{suffix}") for suffix in TENSOR_SUFFIXES),
            *(self._tensor("expected", "-o", f"y{suffix}") for suffix in TENSOR_SUFFIXES),
            FileKind("SpyreCode", "bundle/spyreCodeDir/spyrecode.json", (compiled,), True),
            FileKind("kept run", "kept.json", (compare,)),
            FileKind("machine", "m.toml", (profile,)),
            FileKind("sweep", "sweep.toml", (sweep,)),
            FileKind("journal", "s.csv.journal", (sweep,), True),
        )

    def _tensor(self, what: str, option: str, name: str) -> FileKind:
        command = ("spyre-run", self.at("bundle"), "-q", option, self.at(name))
        return FileKind(f"{what} {name}", name, (command,))


def file_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield every damage of every kind of file, for every command that reads it."""
    for kind in shop.kinds:
        for damage in damages_of(shop.root / kind.path):
            for command in kind.commands:
                yield Fault(
                    f"{kind.name}, {damage}: {' '.join(command)}",
                    partial(_inject, shop.root / kind.path, kind.is_written, damage, command),
                )


def _inject(path: Path, is_written: bool, damage: str, command: Command, rng: random.Random) -> str:
    with damaged(path, damage, rng):
        before = _content(path)
        done = ended(command)
        if not is_written and _content(path) != before:
            return "the file that was read has changed"
    return done.untruth or after(command)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 30 else None


def plan_faults(shop: Workshop) -> Iterator[Fault]:
    """Yield every damage of a kept plan, which must be loaded unharmed or compiled again."""
    bundle, cache = shop.root / "bundle", shop.root / "plans"
    cache.mkdir(exist_ok=True)
    good = load_compiled(bundle, PlanCache(cache))
    (file,) = cache.iterdir()

    def inject(damage: str, rng: random.Random) -> str:
        with damaged(file, damage, rng), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that cannot be replaced, such as a directory
            found = load_compiled(bundle, PlanCache(cache))
        return "" if found == good else "another program"

    for damage in damages_of(file):
        yield Fault(f"kept plan, {damage}", partial(inject, damage))
