"""Kept plans: the same as freshly read bundles, found by content, never used when damaged."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

import spyre
from spyre import cache
from spyre.errors import SpyreError, ValidationError
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import Bundle, load_bundle, write_bundle
from spyre.runtime.arguments.read import given_launch_spec
from spyre.runtime.program import plan_cache
from spyre.runtime.program.plan_cache import (
    CompiledBundle,
    LoweredBundle,
    PlanCache,
    compile_bundle,
    default_cache,
    load_compiled,
    load_source,
    read_bundle_files,
)
from tests.corpus.table import CASES
from tests.runtime import bundles

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/bundle.mlir"))


@pytest.fixture
def plans(tmp_path: Path) -> PlanCache:
    (tmp_path / "plans").mkdir()
    return PlanCache(tmp_path / "plans")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundles.abs_of_sum(tmp_path / "b")


def same(kernel: LoweredBundle, fresh: LoweredBundle) -> None:
    """All that a launch and its messages depend on, places included."""
    assert kernel.directory == fresh.directory
    assert str(kernel.program) == str(fresh.program)
    assert kernel.program == fresh.program
    assert [e.location for e in kernel.program.executes] == [
        e.location for e in fresh.program.executes
    ]
    assert [p.location for p in kernel.program.parameters] == [
        p.location for p in fresh.program.parameters
    ]
    assert dict(kernel.operations) == dict(fresh.operations)
    assert kernel.check() == fresh.check()


@pytest.mark.parametrize("directory", EXAMPLES, ids=lambda path: path.name)
def test_examples(directory: Path, plans: PlanCache) -> None:
    for _ in range(2):
        same(load_compiled(directory, plans), load_bundle(directory))
    assert (plans.counts["stored"], plans.counts["hits"]) == (1, 1)
    assert load_compiled(directory, plans) == compile_bundle(directory)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_corpus(case, tmp_path: Path, plans: PlanCache) -> None:
    """Whatever reading a bundle finds, it finds through the cache too, at the same places."""
    (tmp_path / "c").mkdir()
    case.make(tmp_path / "c")
    for directory in {path.parent for path in (tmp_path / "c").rglob("bundle.mlir")}:
        fresh = outcome(partial(read_and_check, directory))
        for _ in range(2):
            kept = outcome(partial(load_compiled, directory, plans))
            if isinstance(kept, SpyreError):
                assert str(kept) == str(fresh)
            else:
                assert isinstance(fresh, Bundle)
                same(kept, fresh)


T = TypeVar("T")


def outcome(function: Callable[[], T]) -> T | SpyreError:
    """Return the function's result, or its SpyreError."""
    try:
        return function()
    except SpyreError as error:
        return error


def read_and_check(directory: Path) -> Bundle:
    """Read and check a bundle like the compiler, without compiling."""
    bundle = load_bundle(directory)
    assert bundle.program is not None
    assert bundle.operations is not None
    bundle.check(raise_on_error=True)
    given_launch_spec(bundle)
    return bundle


def test_the_path_does_not_count_but_is_told(
    bundle: Path, tmp_path: Path, plans: PlanCache
) -> None:
    load_compiled(bundle, plans)
    moved = tmp_path / "moved" / "deep"
    moved.parent.mkdir()
    os.rename(bundle, moved)
    same(load_compiled(moved, plans), load_bundle(moved))
    assert plans.counts["hits"] == 1


@pytest.mark.parametrize("spelling", [".", "", "../b", "bundle.mlir", "./bundle.mlir"])
def test_places_are_spelled_as_given(
    bundle: Path, plans: PlanCache, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    load_compiled(bundle, plans)
    monkeypatch.chdir(bundle)
    given = spelling or "."
    same(load_compiled(given, plans), load_bundle(given))
    assert plans.counts["hits"] == 1


def test_content_counts(bundle: Path, tmp_path: Path) -> None:
    def digest() -> str:
        files = read_bundle_files(bundle)
        assert files is not None
        return files.digest

    first = digest()
    (bundle / "notes.txt").write_text("not part of it")
    assert digest() == first
    other = read_bundle_files(bundle / "bundle.mlir")
    assert other is not None
    assert other.digest == first
    seen = {first}
    for name in ("bundle.mlir", "sdsc_0.json", "launch_spec.json"):
        with open(bundle / name, "a") as file:
            file.write("\n")
        seen.add(digest())
    (bundle / "sdsc_7.json").write_text("{}")
    seen.add(digest())
    (bundle / "sdsc_7.json").rename(bundle / "sdsc_8.json")
    seen.add(digest())
    assert len(seen) == 6
    assert read_bundle_files(tmp_path / "missing") is None


def test_a_bundle_with_errors_is_not_kept(bundle: Path, plans: PlanCache) -> None:
    module = bundle / "bundle.mlir"
    module.write_text(module.read_text().replace('symbol_ids"=[-1', 'symbol_ids"=[-99'))
    with pytest.raises(ValidationError, match=r"b/bundle\.mlir:"):
        load_compiled(bundle, plans)
    assert plans.counts["stored"] == 0
    assert isinstance(load_source(bundle), Bundle)


def test_names_with_escapes_are_not_kept(bundle: Path, plans: PlanCache) -> None:
    module = bundle / "bundle.mlir"
    module.write_text(module.read_text().replace("sdsc_1.json", "sdsc\\5F1.json"))
    same(load_compiled(bundle, plans), load_bundle(bundle))
    assert plans.counts == PlanCache(plans.directory).counts


class TestDamage:
    @pytest.fixture
    def entry(self, bundle: Path, plans: PlanCache) -> Path:
        load_compiled(bundle, plans)
        (path,) = plans.directory.iterdir()
        return path

    def test_any_byte(self, bundle: Path, plans: PlanCache, entry: Path) -> None:
        whole = entry.read_bytes()
        rng = random.Random(5)
        places = [*range(112), *rng.sample(range(112, len(whole)), 50)]
        for count, place in enumerate(places, 1):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << rng.randrange(8)
            entry.write_bytes(bytes(damaged))
            same(load_compiled(bundle, plans), load_bundle(bundle))
            assert plans.counts["damaged"] == count
        assert entry.read_bytes() == whole, "rebuilt"

    @pytest.mark.parametrize("size", [0, 5, 111, 112, 500, -1])
    def test_truncated(self, bundle: Path, plans: PlanCache, entry: Path, size: int) -> None:
        whole = entry.read_bytes()
        entry.write_bytes(whole[:size])
        same(load_compiled(bundle, plans), load_bundle(bundle))
        assert plans.counts["damaged"] == 1
        assert entry.read_bytes() == whole

    def test_the_entry_of_another_bundle(
        self, tmp_path: Path, bundle: Path, plans: PlanCache, entry: Path
    ) -> None:
        other = bundles.scratch(tmp_path / "other")
        load_compiled(other, plans)
        (second,) = set(plans.directory.iterdir()) - {entry}
        entry.write_bytes(second.read_bytes())
        same(load_compiled(bundle, plans), load_bundle(bundle))

    def test_another_version(
        self, bundle: Path, plans: PlanCache, entry: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(plan_cache, "version_key", lambda: "ab" * 32)
        load_compiled(bundle, plans)
        assert plans.counts["misses"] == 2
        assert len(list(plans.directory.iterdir())) == 2


class TestLimits:
    def test_the_oldest_go(self, tmp_path: Path, bundle: Path) -> None:
        (tmp_path / "small").mkdir()
        plans = PlanCache(tmp_path / "small", max_entries=3)
        digests = [f"{k:02x}" * 32 for k in range(5)]
        for k, digest in enumerate(digests):
            plans.put(digest, b"x")
            os.utime(plans.path_of(digest), (k, k))
        assert [d for d in digests if plans.path_of(d).exists()] == digests[2:]
        assert plans.counts["evicted"] == 2

    def test_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "small").mkdir()
        plans = PlanCache(tmp_path / "small", max_bytes=2500)
        for k in range(4):
            plans.put(f"{k:02x}" * 32, bytes(1000))
        assert len(list(plans.directory.iterdir())) == 2

    def test_what_killed_writers_left_goes(self, tmp_path: Path) -> None:
        plans = PlanCache(tmp_path, max_entries=2)
        old, new = (plans.directory / f".{name}.plan" for name in ("old", "new"))
        old.write_text("")
        new.write_text("")
        os.utime(old, (1, 1))
        plans.put("0" * 64, b"x")
        assert (old.exists(), new.exists()) == (False, True)


class TestPlaces:
    def test_switched_off(self, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPYRE_PLAN_CACHE", "off")
        assert default_cache() is None
        same(load_compiled(bundle), load_bundle(bundle))

    def test_unwritable(
        self, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "file"))
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
        cache.warn_once.cache_clear()
        with pytest.warns(RuntimeWarning, match="nothing is kept"):
            same(load_compiled(bundle), load_bundle(bundle))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            same(load_compiled(bundle), load_bundle(bundle))

    def test_it_vanishes(self, bundle: Path, plans: PlanCache) -> None:
        plans.directory.rmdir()
        cache.warn_once.cache_clear()
        with pytest.warns(RuntimeWarning, match="cannot be kept"):
            same(load_compiled(bundle, plans), load_bundle(bundle))


def test_threads_share_a_cache(tmp_path: Path, plans: PlanCache) -> None:
    directories = [bundles.abs_of_sum(tmp_path / f"b{k}", symbolic=k % 2 == 0) for k in range(4)]
    fresh = {d: compile_bundle(d) for d in directories}
    wrong: list[Path] = []

    def work() -> None:
        wrong.extend(d for d in directories * 5 if load_compiled(d, plans) != fresh[d])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert plans.counts["hits"] + plans.counts["misses"] == 80


class TestSources:
    def test_edits_change_the_digest(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
        file = tmp_path / "a.py"
        file.write_text("x = 1")
        first = cache.digest_of_sources([str(file)])
        assert cache.digest_of_sources([str(file)]) == first
        file.write_text("x = 2")
        assert cache.digest_of_sources([str(file)]) != first
        file.write_text("x = 1")
        assert cache.digest_of_sources([str(file)]) == first
        assert len(list((tmp_path / "cache" / "sources").iterdir())) == 1

    @pytest.mark.parametrize("text", ["", "short", "0" * 64, "0" * 64 + " " + "1" * 63])
    def test_damaged_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
        file = tmp_path / "a.py"
        file.write_text("x = 1")
        first = cache.digest_of_sources([str(file)])
        (kept,) = (tmp_path / "cache" / "sources").iterdir()
        kept.write_text(text)
        assert cache.digest_of_sources([str(file)]) == first

    def test_a_list_is_made_again_after_an_edit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "cache"))
        first, second = tmp_path / "a.py", tmp_path / "b.py"
        first.write_text("")
        second.write_text("")
        found: list[int] = []

        def find() -> list[str]:
            found.append(1)
            return [str(first), *([str(second)] if "b" in first.read_text() else [])]

        def digest() -> str:
            return cache.digest_of_found_sources("a", find)

        seen = {digest(), digest()}
        assert (len(seen), len(found)) == (1, 1)
        first.write_text("import b")
        seen |= {digest(), digest()}
        assert (len(seen), len(found)) == (2, 2)
        second.write_text("x = 1")
        seen |= {digest(), digest()}
        assert (len(seen), len(found)) == (3, 3)
        first.write_text("")
        second.unlink()
        assert digest() in seen

    def test_the_key_covers_what_a_plan_needs(self) -> None:
        """What Python imports to compile a bundle, against the sources of the version key."""
        code = (
            "import sys, spyre.mlir.bundle, spyre.runtime.program.plan_cache\n"
            "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('spyre.')"
            " and m.__file__))"
        )
        # Of the same package as this process: -c would look in the working directory first.
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=True)
        known = set(cache.package_sources(*plan_cache._SOURCES))
        others = {"config.py", "cache.py", "files.py", "address.py", "spec.py"}
        for path in map(Path, done.stdout.decode().split()):
            outside = path.name in others or path.name == "__init__.py"
            assert str(path) in known or outside, path


# --- fresh processes --------------------------------------------------------------------------

WARM = """
import json, sys
from spyre.runtime.program.plan_cache import default_cache, load_compiled
load_compiled(sys.argv[1])
print(json.dumps([default_cache().counts["hits"], sorted(sys.modules)]))
"""


def in_a_fresh_process(directory: Path, cache_directory: Path) -> tuple[int, set[str]]:
    environment = {**os.environ, "SPYRE_CACHE_DIR": str(cache_directory)}
    done = subprocess.run(
        [sys.executable, "-c", WARM, str(directory)],
        capture_output=True,
        check=True,
        env=environment,
        cwd=ROOT,
    )
    hits, modules = json.loads(done.stdout)
    return hits, set(modules)


def five_executes(directory: Path) -> Path:
    """Five additions on 32 cores, every operand's address a symbol of its own per core."""
    shape, splits, builder = (1024, 256), {"mb": 32}, BundleBuilder()
    a, b, y = (builder.argument(1024 * 256 * 2) for _ in range(3))
    for _ in range(5):
        operands = [HostOperand(a.at()), HostOperand(b.at())]
        builder.add(pointwise("add", shape, operands, HostOperand(y.at()), splits))
    write_bundle(builder.build(), directory)
    return directory


@pytest.mark.parametrize("name", ["softmax", "matmul", "add_loop", "five"])
def test_a_second_process_finds_its_plan(name: str, tmp_path: Path) -> None:
    directory = ROOT / "examples" / name if name != "five" else five_executes(tmp_path / "b")
    assert in_a_fresh_process(directory, tmp_path)[0] == 0
    hits, modules = in_a_fresh_process(directory, tmp_path)
    assert hits == 1
    assert not modules & {"lark", "spyre.mlir.text.parser", "spyre.mlir.bundle", "numba"}


def test_the_second_run_parses_nothing(tmp_path: Path) -> None:
    bundle = bundles.abs_of_sum(tmp_path / "b")
    code = (
        "import sys\nfrom spyre.cli.run import main\n"
        f"code = main([{str(bundle)!r}, '-q'])\n"
        "print(code, 'lark' in sys.modules, 'spyre.mlir.text.parser' in sys.modules)"
    )
    answers = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        answers.append(done.stdout.decode().split())
    assert answers[1] == ["0", "False", "False"]


def test_results_are_the_same(bundle: Path) -> None:
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(bundles.SHAPE).astype(np.float16) for _ in range(2)]
    kernel = load_compiled(bundle)
    assert isinstance(kernel, CompiledBundle)
    read, kept = spyre.run(load_bundle(bundle), inputs), spyre.run(kernel, inputs)
    np.testing.assert_array_equal(read.outputs[0], kept.outputs[0])
    assert read.findings == kept.findings == spyre.run(bundle, inputs).findings


def test_plans_do_not_hold_what_is_computed_from_operations(bundle: Path) -> None:
    operation = next(iter(compile_bundle(bundle).operations.values()))
    tensors, symbols = operation.tensors, operation.symbol_ids
    assert operation.footprints, "the check computes them"
    read = pickle.loads(pickle.dumps(operation))
    assert not vars(read)
    assert read == operation
    assert (read.tensors, read.symbol_ids, read.footprints) == (tensors, symbols, {})
