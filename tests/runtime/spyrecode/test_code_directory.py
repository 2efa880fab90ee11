"""SpyreCode directories: written whole or not at all, compared when read."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spyre.errors import BundleError, SpyreError
from spyre.mlir.bundle import load_bundle
from spyre.mlir.bundle_source import BundleFiles
from spyre.runtime.program.launch_spec import DERIVED_EMITTER
from spyre.runtime.program.plan_cache import compile_bundle, load_compiled_files
from spyre.runtime.spyrecode import code_directory
from spyre.runtime.spyrecode.code_directory import read_code_directory
from spyre.runtime.spyrecode.commands import (
    PROGRAM_BASE,
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    InitTransfer,
)
from spyre.runtime.spyrecode.compile import compile_directory
from spyre.runtime.spyrecode.init_binary import (
    read_header,
    unpack_bundle,
)
from tests.corpus.making import CorpusCase
from tests.corpus.table import CASES
from tests.runtime import bundles
from tests.runtime.spyrecode.samples import format_init_text


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return bundles.abs_of_sum(tmp_path / "b")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_plans_of_a_symbolic_bundle(bundle: Path) -> None:
    compiled = compile_directory(bundle)
    assert compiled.directory == bundle / "spyreCodeDir"
    assert names(compiled.directory) == {"spyrecode.json", "init_binary.bin", "launch_spec.json"}
    (transfer,) = compiled.code.init_transfers
    host, to_device, compute = compiled.code.execution
    assert isinstance(host, ComputeOnHost)
    assert isinstance(to_device, DataTransfer)
    assert transfer == InitTransfer("init_binary.bin", PROGRAM_BASE, transfer.size_bytes)
    assert host.ishape == (4,)
    assert [kind.kind for kind in host.hcm.symbols or ()] == ["pool", "kernel", "kernel", "kernel"]
    assert [kind.arg_index for kind in host.hcm.symbols or ()] == [None, 0, 1, 2]
    assert to_device.dev_ptr == PROGRAM_BASE + transfer.size_bytes
    assert compiled.code.allocation_bytes == transfer.size_bytes + 128
    assert host.size_bytes == to_device.size_bytes == 128
    assert compute == ComputeOnDevice(PROGRAM_BASE, "k")


def test_plans_of_a_baked_bundle(tmp_path: Path) -> None:
    compiled = compile_directory(bundles.abs_of_sum(tmp_path / "b", symbolic=False))
    assert compiled.code.execution == (ComputeOnDevice(PROGRAM_BASE, "k"),)
    assert compiled.code.allocation_bytes == compiled.code.init_transfers[0].size_bytes


def test_what_is_written_is_read(bundle: Path) -> None:
    compiled = compile_directory(bundle)
    read = read_code_directory(compiled.directory)
    assert read.code.allocation_bytes == compiled.code.allocation_bytes
    assert read.code.init_transfers == compiled.code.init_transfers
    assert read.code.execution == compiled.code.execution
    assert read.code.findings == ()
    assert read.launch_spec is not None
    assert read.launch_spec.kernel_name == "k"
    (binary,) = read.binaries
    assert read_header(binary[:128]).digest == compile_bundle(bundle).digest
    files = unpack_bundle(binary)
    assert files == {path.name: path.read_bytes() for path in bundle.iterdir() if path.is_file()}


def test_compiling_again_changes_nothing(bundle: Path) -> None:
    first = compile_directory(bundle).directory
    before = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}
    compile_directory(bundle)
    assert before == {path.name: path.stat().st_mtime_ns for path in first.iterdir()}


def test_a_changed_bundle_replaces_it(bundle: Path) -> None:
    directory = compile_directory(bundle).directory
    (directory / "notes.txt").write_text("kept")
    first = read_code_directory(directory).binaries
    module = bundle / "bundle.mlir"
    module.write_text(module.read_text() + "\n")
    compile_directory(bundle)
    assert read_code_directory(directory).binaries != first
    assert (directory / "notes.txt").read_text() == "kept"
    assert "init_binary.bin" in names(directory)
    assert not [name for name in names(directory) if name.endswith(".tmp")]


class TestLaunchSpec:
    def test_derived_with_a_finding(self, tmp_path: Path) -> None:
        bundle = bundles.abs_of_sum(tmp_path / "b", spec=False)
        compiled = compile_directory(bundle)
        assert [finding.code for finding in compiled.findings] == ["SPY364"]
        spec = read_code_directory(compiled.directory).launch_spec
        assert spec is not None
        assert spec.emitter == DERIVED_EMITTER
        assert [argument.shape for argument in spec.args] == [(32, 128)] * 3
        assert compile_directory(bundle).findings == compiled.findings, "a derived one is not given"
        assert compile_bundle(bundle).launch_spec is None

    def test_the_one_in_the_code_directory_is_given_too(self, bundle: Path) -> None:
        (bundle / "spyreCodeDir").mkdir()
        os.rename(bundle / "launch_spec.json", bundle / "spyreCodeDir" / "launch_spec.json")
        before = (bundle / "spyreCodeDir" / "launch_spec.json").read_bytes()
        assert compile_directory(bundle).findings == ()
        assert (bundle / "spyreCodeDir" / "launch_spec.json").read_bytes() == before

    def test_none_where_it_cannot_be_derived(self, tmp_path: Path) -> None:
        bundle = bundles.abs_of_sum(tmp_path / "b", spec=False)
        module = bundle / "bundle.mlir"
        module.write_text(module.read_text().replace("sdsc_bundle(", "sdsc_bundle(%n: index, "))
        compiled = compile_directory(bundle)
        assert [finding.code for finding in compiled.findings] == ["SPY846"]
        assert "launch_spec.json" not in names(compiled.directory)


class TestReading:
    @pytest.fixture
    def code(self, bundle: Path) -> Path:
        return compile_directory(bundle).directory

    def failure(self, directory: Path) -> BundleError:
        with pytest.raises(BundleError) as caught:
            read_code_directory(directory)
        return caught.value

    @pytest.mark.parametrize("name", ["init_binary.bin", "launch_spec.json"])
    def test_another_file(self, code: Path, name: str) -> None:
        data = (code / name).read_bytes()
        (code / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert self.failure(code).code == "SPY844"
        (code / name).write_bytes(data + b"\0")
        assert self.failure(code).code == "SPY844"
        (code / name).unlink()
        assert self.failure(code).code == "SPY844"

    def test_an_interrupted_copy(self, code: Path) -> None:
        (code / "spyrecode.json").unlink()
        assert self.failure(code).code == "SPY821"

    def test_binaries_without_records(self, code: Path) -> None:
        """Directories of other compilers: the binary has to be long enough."""
        document = json.loads((code / "spyrecode.json").read_text())
        del document["Files"]
        (code / "spyrecode.json").write_text(json.dumps(document))
        whole = read_code_directory(code)
        data = (code / "init_binary.bin").read_bytes()
        (code / "init_binary.bin").write_bytes(data + bytes(128))
        assert read_code_directory(code).binaries == whole.binaries
        (code / "init_binary.bin").write_bytes(data[:-1])
        assert self.failure(code).code == "SPY844"
        document["JobPreparationPlan"][1]["properties"]["init_bin_file"] = "init.txt"
        (code / "spyrecode.json").write_text(json.dumps(document))
        (code / "init.txt").write_bytes(format_init_text(data))
        assert read_code_directory(code).binaries == whole.binaries
        (code / "launch_spec.json").unlink()
        assert read_code_directory(code).launch_spec is None


class TestWriting:
    def test_a_wrong_bundle_writes_nothing(self, bundle: Path) -> None:
        (bundle / "sdsc_0.json").write_text("{")
        with pytest.raises(BundleError):
            compile_directory(bundle)
        assert not (bundle / "spyreCodeDir").exists()

    def test_no_bundle(self, tmp_path: Path) -> None:
        with pytest.raises(BundleError, match="SPY270"):
            compile_directory(tmp_path / "missing")

    def test_in_the_way(self, bundle: Path) -> None:
        (bundle / "spyreCodeDir").write_text("a file")
        with pytest.raises(BundleError, match="SPY845"):
            compile_directory(bundle)
        assert names(bundle) >= {"bundle.mlir", "spyreCodeDir"}
        assert not [name for name in names(bundle) if name.endswith(".tmp")]

    @pytest.mark.parametrize("again", [False, True])
    def test_stopped_at_every_step(
        self, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
    ) -> None:
        """As if the process ended at the nth write, sync or rename."""
        for step in range(100):
            target = tmp_path / f"stopped-{step}"
            shutil.copytree(bundle, target)
            old = None
            if again:
                old = read_code_directory(compile_directory(target).directory).binaries
                (target / "sdsc_0.json").write_bytes((target / "sdsc_0.json").read_bytes() + b"\n")
            stopped = compile_stopped_at(target, monkeypatch, step)
            found = binaries_or_none(target / "spyreCodeDir")
            now = read_code_directory(compile_directory(target).directory).binaries
            assert found in (None, old, now)
            assert not [name for name in names(target) if name.endswith(".tmp")]
            if not stopped:
                break
        assert not stopped
        assert step > 5


def compile_stopped_at(bundle: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> bool:
    """Compile ``bundle``, interrupted after ``step`` steps; False if it ended before."""
    calls = 0

    def counted(function):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls > step:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    with monkeypatch.context() as patched:
        for name in ("_write", "_sync"):
            patched.setattr(code_directory, name, counted(getattr(code_directory, name)))
        patched.setattr(os, "replace", counted(os.replace))
        patched.setattr(os, "rename", counted(os.rename))
        patched.setattr(shutil, "rmtree", lambda *arguments, **options: None)
        with suppress(KeyboardInterrupt):
            compile_directory(bundle)
    return calls > step


def test_compilers_and_readers_at_once(bundle: Path) -> None:
    """Every reader finds a whole directory, the first one or a later one."""
    compiled = compile_directory(bundle)
    (binary,) = read_code_directory(compiled.directory).binaries
    states = [binary + bytes([k]) * 128 for k in range(3)]
    found: list[bytes] = []

    def compile_often(state: bytes) -> None:
        for _ in range(8):
            code_directory.write_code_directory(bundle, compiled.code, {"init_binary.bin": state})

    def read_often() -> None:
        found.extend(read_whole(compiled.directory) for _ in range(30))

    threads = [threading.Thread(target=compile_often, args=(state,)) for state in states]
    threads += [threading.Thread(target=read_often) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 60
    assert set(found) <= {binary, *states}


def read_whole(directory: Path) -> bytes:
    """The binary's file, as a reader that was let in finds it."""
    read_code_directory(directory)
    return (directory / "init_binary.bin").read_bytes()


def binaries_or_none(directory: Path) -> tuple[bytes, ...] | None:
    """Read the binaries; return None if the directory is missing or incomplete."""
    try:
        return read_code_directory(directory).binaries
    except BundleError as error:
        if error.code not in ("SPY820", "SPY821"):
            raise
        return None


def test_an_sdsc_of_another_name(bundle: Path) -> None:
    """Escaped in the module, in a folder: it belongs to the bundle all the same."""
    (bundle / "parts").mkdir()
    os.rename(bundle / "sdsc_1.json", bundle / "parts" / "a b.json")
    module = bundle / "bundle.mlir"
    for spelling in ("./parts/a b.json", "parts\\2Fa b.json"):
        text = module.read_text()
        module.write_text(text.replace("sdsc_1.json", spelling))
        load_bundle(bundle)
        files = unpack_bundle(read_code_directory(compile_directory(bundle).directory).binaries[0])
        assert set(files) == {"bundle.mlir", "sdsc_0.json", "parts/a b.json", "launch_spec.json"}
        module.write_text(text)


def test_the_corpus(tmp_path: Path) -> None:
    """Every program is compiled and readable, or refused with nothing written."""
    outcomes = Counter(
        outcome for case in CASES for outcome in compiled_or_refused(case, tmp_path / case.name)
    )
    assert outcomes["compiled"] > 100
    assert outcomes["refused"] > 50


def compiled_or_refused(case: CorpusCase, folder: Path) -> Iterator[str]:
    """The outcome of compiling each bundle of ``case``, made in ``folder``."""
    folder.mkdir()
    case.make(folder)
    for directory in [path.parent for path in folder.rglob("bundle.mlir") if path.is_file()]:
        before = names(directory)
        try:
            compiled = compile_directory(directory)
        except SpyreError:
            assert names(directory) == before, case.name
            yield "refused"
            continue
        read = read_code_directory(compiled.directory)
        assert read.code.findings == (), case.name
        digest = read_header(read.binaries[0]).digest
        files = BundleFiles(directory, "bundle.mlir", unpack_bundle(read.binaries[0]))
        assert files.digest == digest, case.name
        assert load_compiled_files(files).check() == load_bundle(directory).check(), case.name
        yield "compiled"
