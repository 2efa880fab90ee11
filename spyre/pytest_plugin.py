"""The pytest plugin: tests that need the PyTorch device, without fallbacks, under the sanitizer.

``@pytest.mark.spyre``: the test runs where there is a device, and is skipped with the reason where
there is none. A failure on the card after the test's last line fails this test, and no later one.
``@pytest.mark.spyre(fallbacks=False)``, or the fixture ``spyre_no_fallbacks``: an operation that
would run on the CPU is an error. Every pytest of an environment loads this module, so it imports
nothing before a test asks for it. docs/pytest.md describes it.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    ("sanitize", "SPYRE_SANITIZE", "1", "watch every access of marked tests; =init,race: these"),
    ("numerics", "SPYRE_NUMERICS", None, "number mode: dl16, ieee, or as spyre-run takes it"),
    ("fallback", "SPYRE_FALLBACK", None, "operations without a kernel: warn, silent or error"),
)
"""Options, the variables they set, their values when given without one, help."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spyre", "the simulated Spyre card")
    for name, _, const, text in _OPTIONS:
        more: dict[str, Any] = {} if const is None else {"nargs": "?", "const": const}
        more |= {"choices": ("warn", "silent", "error")} if name == "fallback" else {}
        group.addoption(f"--spyre-{name}", metavar="VALUE", help=text, **more)
    group.addoption(
        "--spyre-fail-on",
        choices=("error", "warning"),
        default="error",
        help="least severe finding of the sanitizer that fails a test (error)",
    )
    group.addoption(
        "--spyre-keep",
        metavar="DIRECTORY",
        help="keep the programs that a failed test compiled, in a directory of its name",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> None:
    """Give options without a value theirs: `--spyre-sanitize tests` names a directory of tests."""
    texts = {f"--spyre-{name}": const for name, _, const, _ in _OPTIONS if const is not None}
    if texts.keys().isdisjoint(args):
        return
    args[:] = [f"{text}={texts[text]}" if text in texts else text for text in args]
    known = parser.parse_known_args(args, copy(early_config.option))
    early_config.known_args_namespace = known


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "spyre(fallbacks=True): needs the PyTorch device 'spyre'; fallbacks=False makes operations "
        "that would run on the CPU errors",
    )
    for name, variable, _, _ in _OPTIONS:
        value = config.getoption(f"--spyre-{name}")
        if value is not None:
            _set_until_end(config, variable, value)
            _check_value(name, value)


def _check_value(name: str, value: str) -> None:
    """UsageError for a value that an option does not take."""
    from spyre.config import sanitizer_checks
    from spyre.errors import SpyreError
    from spyre.hw.numerics import parse_numerics
    from spyre.hw.sanitizer import parse_checks

    try:
        if name == "sanitize":
            parse_checks(sanitizer_checks())
        elif name == "numerics":
            parse_numerics(value)
    except SpyreError as error:
        raise pytest.UsageError(f"--spyre-{name}: {error}") from None


def _set_until_end(config: pytest.Config, variable: str, value: str) -> None:
    """The card reads its variables when it is first used, in or before the first marked test."""
    before = os.environ.get(variable)
    os.environ[variable] = value

    def restore() -> None:
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before

    config.add_cleanup(restore)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spyre") is not None and (reason := _missing()):
        pytest.skip(reason)


def _missing() -> str:
    """Return the reason why there is no device, or ""."""
    if find_spec("torch") is None:
        return "the PyTorch device needs torch: pip install torch==2.13.0"
    import torch

    if not hasattr(torch, "spyre"):
        return "torch has no device 'spyre': TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it from loading"
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    marker = item.get_closest_marker("spyre")
    if marker is None:
        return (yield)
    from torch import spyre as card

    sanitizes = item.config.getoption("--spyre-sanitize") is not None
    if sanitizes:
        card.sanitizer_findings()  # those of tests without the mark
    with pytest.MonkeyPatch.context() as patched, _kept(item, patched), _explained(item):
        if not marker.kwargs.get("fallbacks", True):
            patched.setenv("SPYRE_FALLBACK", "error")
        try:
            result = yield
        finally:
            card.synchronize()
        if sanitizes:
            _report(card.sanitizer_findings(), item.config.getoption("--spyre-fail-on"))
    return result


@contextmanager
def _kept(item: pytest.Item, patched: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep the programs of a test if it fails, and name the command that runs them again."""
    root = item.config.getoption("--spyre-keep")
    if root is None:
        yield
        return
    directory = Path(root, re.sub(r"[^A-Za-z0-9_.-]+", "_", item.nodeid))
    shutil.rmtree(directory, ignore_errors=True)  # of an earlier run
    patched.setenv("SPYRE_KEEP", str(directory))
    try:
        yield
    except BaseException:
        programs = sorted(directory.glob("*")) if directory.is_dir() else []
        commands = [f"spyre run {program} --verify" for program in programs]
        item.add_report_section("call", "programs", "\n".join(commands) or "none was compiled")
        raise
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _explained(item: pytest.Item) -> Iterator[None]:
    """If a comparison of the test fails, name the first wrong execute of its compiled functions."""
    from spyre.torch_backend.recorded_calls import explanation, recording

    with recording() as recorder:
        try:
            yield
        except AssertionError:
            if recorder.calls:
                with recording():  # of a new recorder: these runs are not recorded
                    try:
                        text = explanation(recorder.calls)
                    except Exception as error:  # the test's own failure is what counts
                        text = f"the first wrong execute is not known: {error}"
                item.add_report_section("call", "compiled functions", text)
            raise


def _report(findings: Sequence[Any], fail_on: str) -> None:
    """Fail the test for findings as severe as ``fail_on``; show the others as warnings."""
    failing = [f for f in findings if fail_on == "warning" or f.severity.value == "error"]
    for finding in findings:
        if finding not in failing:
            warnings.warn(str(finding), stacklevel=1)
    if failing:
        pytest.fail("\n".join(map(str, failing)), pytrace=False)


@pytest.fixture
def spyre_no_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that would run on the CPU is an error, SPY900."""
    monkeypatch.setenv("SPYRE_FALLBACK", "error")
