"""The plugin that comes with the package, in separate runs of pytest."""

from __future__ import annotations

import os
from fnmatch import fnmatch

import pytest

from spyre import cache, pytest_plugin

pytest.importorskip("torch")
pytest_plugins = ["pytester"]

ON_THE_CARD = """
import pytest, torch

@pytest.mark.spyre
def test_sum():
    assert (torch.ones(3, device='spyre') + 1).cpu().tolist() == [2, 2, 2]

@pytest.mark.spyre
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_of_several_sticks(dtype):
    x = torch.randn(2, 3, 192, dtype=dtype).to('spyre')
    torch.softmax(x * 2, -1)[:, ::2].transpose(0, 1).sum(0)

@pytest.mark.spyre(fallbacks=False)
def test_forbidden_by_mark():
    torch.linalg.svd(torch.ones(4, 4, device='spyre'))

def test_forbidden_by_fixture(spyre_no_fallbacks):
    torch.linalg.svd(torch.ones(4, 4, device='spyre'))

def test_allowed():
    torch.linalg.svd(torch.ones(4, 4, device='spyre'))

@pytest.mark.spyre
def test_fails_late():
    table = torch.zeros(4, 64, device='spyre')
    torch.nn.functional.embedding(torch.tensor([9]).to('spyre'), table)

@pytest.mark.spyre
def test_after_it():
    assert torch.ones(3, device='spyre').sum().item() == 3

@pytest.mark.spyre
def test_reads_what_nobody_wrote():
    torch.empty(64, 64, device='spyre') + 1
"""


KERNELS = cache.directory()
"""Directory of compiled kernels; an inner run has another home directory."""


@pytest.fixture
def plugin(pytestconfig, monkeypatch):
    """Arguments that load the plugin in an inner run: a checkout in sys.path has no entry point."""
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(KERNELS))
    is_installed = pytestconfig.pluginmanager.hasplugin("spyre")
    return () if is_installed else ("-p", "spyre.pytest_plugin")


def test_marks_and_fixtures(pytester, plugin):
    file = pytester.makepyfile(ON_THE_CARD)
    options = ("-rA", "--strict-markers", "--spyre-fail-on=warning", "--spyre-sanitize", file)
    result = pytester.runpytest_subprocess(*plugin, *options)
    report = result.parseoutcomes()
    assert (report["passed"], report["failed"]) == (5, 4)
    for name in ("test_sum", "test_allowed", "test_after_it"):
        result.stdout.fnmatch_lines([f"PASSED *::{name}"])
    for name, why in (
        ("test_forbidden_by_mark", "SPY900"),
        ("test_forbidden_by_fixture", "SPY900"),
        ("test_fails_late", "SPY4"),
        ("test_reads_what_nobody_wrote", "SPY7"),
    ):
        result.stdout.fnmatch_lines([f"FAILED *::{name} - *"])
        section = result.stdout.str().partition(f"_ {name} _")[2].partition("\n____")[0]
        assert why in section, name


def test_without_a_device_it_is_skipped_with_the_reason(pytester, plugin, monkeypatch):
    monkeypatch.setattr(pytest_plugin, "find_spec", lambda name: None)
    pytester.makepyfile("import pytest\n@pytest.mark.spyre\ndef test_it(): assert False")
    result = pytester.runpytest_inprocess("-rs", *plugin)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs torch: pip install torch==2.13.0*"])


def test_options_hold_for_the_run_only(pytester, plugin, monkeypatch):
    monkeypatch.setenv("SPYRE_NUMERICS", "dl16-chunk")
    monkeypatch.delenv("SPYRE_FALLBACK", raising=False)
    pytester.makepyfile("""
        import os
        def test_it():
            assert os.environ['SPYRE_NUMERICS'] == 'ieee'
            assert os.environ['SPYRE_FALLBACK'] == 'silent'
    """)
    options = ("--spyre-numerics=ieee", "--spyre-fallback=silent")
    pytester.runpytest_inprocess(*plugin, *options).assert_outcomes(passed=1)
    assert os.environ["SPYRE_NUMERICS"] == "dl16-chunk"
    assert "SPYRE_FALLBACK" not in os.environ


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--spyre-sanitize=inti", "*--spyre-sanitize: *SPY739*some of memory, init,*found: inti*"),
        ("--spyre-numerics=foo", "*--spyre-numerics: *SPY530*expected: dl16,*found: foo*"),
        ("--spyre-fallback=eror", "*--spyre-fallback: *invalid choice: 'eror'*"),
    ],
)
def test_a_value_that_an_option_does_not_take(pytester, plugin, option, text):
    """Not an error of every test, and not a run that no test notices."""
    outcome = pytester.runpytest_inprocess(*plugin, option)
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    assert fnmatch(str(outcome.stderr), text)


def test_the_programs_of_a_failed_test_are_kept(pytester, plugin):
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.spyre
        @pytest.mark.parametrize("expected", [3, 4])
        def test_sum(expected):
            x = torch.full((2, 65), 1.5).to("spyre")
            assert (x.half() * 2 + expected * 0).cpu()[0, 0] == expected
        """
    )
    outcome = pytester.runpytest_subprocess(*plugin, "--spyre-keep=kept", "-k", "4")
    outcome.assert_outcomes(failed=1)
    kept = sorted((pytester.path / "kept").glob("*/*"))
    assert kept
    assert all((program / "bundle.mlir").is_file() for program in kept)
    relative = kept[0].relative_to(pytester.path)
    outcome.stdout.fnmatch_lines(["*programs*", f"spyre run {relative} --verify"])
    passed = pytester.runpytest_subprocess(*plugin, "--spyre-keep=kept", "-k", "3")
    passed.assert_outcomes(passed=1)
    assert not list((pytester.path / "kept").glob("*expected*3*"))


def test_a_failed_comparison_names_the_first_wrong_execute(pytester, plugin):
    pytester.makepyfile(
        """
        from msgspec.structs import replace
        import pytest, torch
        from torch._inductor import config
        from spyre.torch_backend.inductor.bundles import kernels

        config.force_disable_caches = True  # both programs are of one graph
        made = kernels.generate_bundle

        def exchanged(name, kernel, *args, **named):
            ops = [replace(op, name="abs") if op.name == "exp" else op for op in kernel]
            return made(name, tuple(ops), *args, **named)

        @pytest.mark.spyre
        @pytest.mark.parametrize("wrong", [True, False])
        def test_exp(wrong, monkeypatch):
            torch._dynamo.reset()
            if wrong:
                monkeypatch.setattr(kernels, "generate_bundle", exchanged)
            x = torch.linspace(-1, 1, 256).reshape(2, 128).half()
            found = torch.compile(lambda x: torch.exp(x * 2))(x.to("spyre")).cpu()
            torch.testing.assert_close(found, torch.exp(x * 2), rtol=2e-3, atol=1e-3)
        """
    )
    outcome = pytester.runpytest_subprocess(*plugin)
    outcome.assert_outcomes(failed=1, passed=1)
    outcome.stdout.fnmatch_lines(
        ["*compiled functions*", "call 1 of 1*", "*SPY622*the tile that abs writes*"]
    )
