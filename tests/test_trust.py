"""The cache is used only where no other user can have written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from spyre import cache
from spyre.cache import PACKAGE, read_kept, require_trusted, writable_directory
from spyre.errors import BundleError, LaunchError
from spyre.files import make_directories, other_writer
from spyre.runtime.cases import read_case
from spyre.runtime.run import run
from spyre.runtime.spyrecode import compile_directory
from tests.runtime.cases.test_case import write_case

EXAMPLE = Path(__file__).parents[1] / "examples" / "softmax"
OTHER_USER = 54321
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def _warn_again():
    cache.warn_once.cache_clear()


def owned_by_another(path: Path) -> Path:
    os.chown(path, OTHER_USER, OTHER_USER)
    return path


def test_directories_are_made_for_this_user_alone(tmp_path):
    old = os.umask(0o002)
    try:
        make_directories(tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o700, 0o700]
    assert other_writer(tmp_path / "a" / "b") == ""
    make_directories(tmp_path / "a" / "b")  # there already


@root_only
def test_a_cache_of_root_is_one_warning_for_another_user():
    """Of all its directories, in plain words: no line of the package's source."""
    code = (
        "import os, tempfile\n"
        "from spyre.cli.entry import run_process\nfrom spyre.cache import writable_directory\n"
        f"os.setuid({OTHER_USER})\n"
        "run_process(lambda: sum(writable_directory(name) is None for name in 'ab'))"
    )
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        temporary = Path(place) / "tmp"
        temporary.mkdir()
        temporary.chmod(0o1777)
        places = {"SPYRE_CACHE_DIR": f"{place}/cache", "TMPDIR": str(temporary)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | places, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr.count("\n")) == (0, 1)
        private = temporary / f"spyre-cache-{OTHER_USER}"
        cause = f"warning: SPY405: the cache {place}/cache cannot be used (Permission denied)"
        assert done.stderr.startswith(f"{cause}: {private} is used")
        assert sorted(path.name for path in private.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("mode", "is_trusted"),
    [(0o700, True), (0o755, True), (0o775, False), (0o757, False), (0o777, False), (0o1777, False)],
)
def test_modes_of_the_directory(tmp_path, mode, is_trusted):
    tmp_path.chmod(mode)
    assert (other_writer(tmp_path) == "") == is_trusted


@pytest.mark.parametrize(
    ("mode", "is_trusted"), [(0o755, True), (0o1777, True), (0o777, False), (0o770, False)]
)
def test_modes_of_directories_above(tmp_path, mode, is_trusted):
    make_directories(tmp_path / "above" / "cache")
    (tmp_path / "above").chmod(mode)
    assert (other_writer(tmp_path / "above" / "cache") == "") == is_trusted


@pytest.mark.parametrize(
    ("directory", "file", "is_trusted"),
    [(0o755, 0o644, True), (0o755, 0o664, False), (0o711, 0o666, False), (0o700, 0o666, True)],
)
def test_modes_of_files(tmp_path, directory, file, is_trusted):
    (tmp_path / "x").write_text("x")
    (tmp_path / "x").chmod(file)
    tmp_path.chmod(directory)
    assert (other_writer(tmp_path / "x") == "") == is_trusted


def test_a_link_is_judged_by_what_it_names(tmp_path):
    make_directories(tmp_path / "open" / "cache")
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "cache")
    assert "other users may write to" in other_writer(tmp_path / "link")


@root_only
def test_owners(tmp_path):
    make_directories(tmp_path / "a" / "b")
    assert other_writer(tmp_path / "a" / "b") == ""
    owned_by_another(tmp_path / "a")
    assert other_writer(tmp_path / "a" / "b") == f"{tmp_path}/a belongs to user {OTHER_USER}"


def test_a_cache_of_others_is_refused_with_one_warning(tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    private = tmp_path / f"spyre-cache-{os.geteuid()}"
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(kept))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert writable_directory("plans") == kept / "plans"
    kept.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"SPY405: .*other users may write to .*: mode 0777"):
        assert writable_directory("plans") == private / "plans"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert writable_directory("grammar") == private / "grammar"


@root_only
def test_a_file_of_another_user_is_not_read(tmp_path):
    kept = tmp_path / "kept"
    kept.write_bytes(b"x")
    assert read_kept(kept) == b"x"
    owned_by_another(kept)
    with pytest.warns(RuntimeWarning, match="SPY405"), pytest.raises(PermissionError):
        require_trusted(kept)
    with pytest.raises(PermissionError):
        read_kept(kept)


class _Planted:
    """Runs code when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


PROGRAM = """
import sys, warnings
import numpy as np
warnings.simplefilter("always")
from spyre.hw.kernels.machine_code import entry_of
from spyre.runtime.program.plan_cache import load_compiled
load_compiled(sys.argv[1])
entry_of("fusion.find_chains").function(np.zeros((0, 99), np.int64), np.zeros((0, 99), np.int64))
"""
"""Uses every kind of file in the cache: sources, tables of the parser, a plan, compiled code."""


def test_code_planted_in_a_cache_of_others_does_not_run(tmp_path):
    """Every file of a used cache is replaced by a pickle with an effect."""
    environment = {
        **os.environ,
        "SPYRE_CACHE_DIR": str(tmp_path / "cache"),
        "SPYRE_MEANWHILE": "0",
        "PYTHONPATH": str(PACKAGE.parent),
        "TMPDIR": str(tmp_path),
    }

    def run_program() -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(EXAMPLE)],
            capture_output=True, text=True, env=environment, check=True,
        )  # fmt: skip
        return done.stderr

    assert "SPY405" not in run_program()
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert {path.suffix for path in kept} >= {".o", ".plan", ".tables"}
    for path in kept:
        path.write_bytes(pickle.dumps(_Planted(tmp_path / "ran")))
    (tmp_path / "cache").chmod(0o777)
    assert run_program().count("RuntimeWarning: SPY405: the cache") == 1
    assert not (tmp_path / "ran").exists()


# --- files of bundles and cases -----------------------------------------------------------------


def secret_of(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("root:secret")
    return tmp_path / "secret"


@pytest.mark.parametrize("name", ["bundle.mlir", "sdsc_0.json", "launch_spec.json"])
def test_a_bundle_does_not_read_through_links(tmp_path, monkeypatch, name):
    bundle = tmp_path / "b"
    shutil.copytree(EXAMPLE, bundle)
    (bundle / name).rename(tmp_path / name)
    (bundle / name).symlink_to(tmp_path / name)
    with pytest.raises(BundleError, match=r"SPY(274|301)(.|\n)*SPYRE_ALLOW_OUTSIDE") as caught:
        run(bundle)
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("SPYRE_ALLOW_OUTSIDE", "1")
    run(bundle)


def test_a_bundle_may_link_to_its_own_files(tmp_path):
    bundle = tmp_path / "b"
    shutil.copytree(EXAMPLE, bundle)
    (bundle / "files").mkdir()
    (bundle / "sdsc_0.json").rename(bundle / "files" / "x.json")
    (bundle / "sdsc_0.json").symlink_to("files/x.json")
    (tmp_path / "latest").symlink_to(bundle)
    run(tmp_path / "latest")


def test_what_a_link_names_is_not_shown(tmp_path):
    bundle = tmp_path / "b"
    shutil.copytree(EXAMPLE, bundle)
    (bundle / "bundle.mlir").unlink()
    (bundle / "bundle.mlir").symlink_to(secret_of(tmp_path))
    with pytest.raises(BundleError) as caught:
        run(bundle)
    assert "root:secret" not in str(caught.value)


@pytest.mark.parametrize("place", ["../other", "{}/other", "link", "k0/../../other"])
def test_a_case_runs_its_own_bundles(tmp_path, monkeypatch, place):
    case = tmp_path / "case"
    write_case(case)
    shutil.copytree(case / "k0", tmp_path / "other")
    (case / "link").symlink_to(tmp_path / "other")
    content = json.loads((case / "case.json").read_text())
    content["launches"][0]["bundle"] = place.format(tmp_path)
    (case / "case.json").write_text(json.dumps(content))
    with pytest.raises(LaunchError, match="SPY371"):
        read_case(case)
    monkeypatch.setenv("SPYRE_ALLOW_OUTSIDE", "1")
    read_case(case)


def test_a_case_does_not_read_arrays_through_links(tmp_path):
    case = tmp_path / "case"
    write_case(case)
    (case / "values.npz").rename(tmp_path / "values.npz")
    (case / "values.npz").symlink_to(tmp_path / "values.npz")
    with pytest.raises(LaunchError, match="SPY371"):
        read_case(case)


def test_nothing_is_compiled_through_a_link(tmp_path):
    bundle = tmp_path / "b"
    shutil.copytree(EXAMPLE, bundle, ignore=shutil.ignore_patterns("spyreCodeDir"))
    (tmp_path / "home").mkdir()
    (bundle / "spyreCodeDir").symlink_to(tmp_path / "home")
    with pytest.raises(BundleError, match="SPY845"):
        compile_directory(bundle)
    assert not list((tmp_path / "home").iterdir())
