"""Bad SDSCs, data driven: a good bundle, a patch, and the exact diagnosis (bad_sdsc/)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spyre.codes import diagnostic_codes
from spyre.errors import Severity, SpyreError
from spyre.mlir.bundle import BundleContents, load_bundle, write_bundle

from .sample_bundles import SAMPLES

FOLDER = Path(__file__).parent / "bad_sdsc"
CASES: dict[str, dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())


@cache
def sample(name: str) -> BundleContents:
    return SAMPLES[name]()


def parent_of(tree: Any, pointer: str) -> tuple[Any, Any]:
    *steps, last = pointer.split("/")[1:]
    for step in steps:
        tree = tree[int(step) if isinstance(tree, list) else step]
    return tree, int(last) if isinstance(tree, list) else last


def put(tree: Any, pointer: str, value: Any) -> None:
    parent, key = parent_of(tree, pointer)
    if isinstance(parent, list) and key == len(parent):
        parent.append(value)
    else:
        parent[key] = value


def patched(data: bytes, case: dict[str, Any]) -> bytes:
    tree = json.loads(data)
    for pointer, value in case.get("set", {}).items():
        put(tree, pointer, value)
    for pointer, source in case.get("copy", {}).items():
        parent, key = parent_of(tree, source)
        put(tree, pointer, parent[key])
    for pointer in case.get("remove", ()):
        parent, key = parent_of(tree, pointer)
        del parent[key]
    text = json.dumps(tree)
    if "text" in case:
        old, new = case["text"]
        assert old in text
        text = text.replace(old, new)
    return text.encode(errors="surrogateescape")[: case.get("keep_bytes")]


def diagnosis(directory: Path) -> str:
    """Return the messages of loading, checking and reading, in this order."""
    lines: list[str] = []
    try:
        bundle = load_bundle(directory)
        findings = bundle.check()
        lines += map(str, findings)
        if all(finding.severity is Severity.WARNING for finding in findings):
            assert bundle.operations
            lines.append("readable")
    except SpyreError as error:
        lines.append(f"{type(error).__name__}: {error}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_diagnosis(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Callable[[Path, str], None],
) -> None:
    case = CASES[name]
    monkeypatch.chdir(tmp_path)
    write_bundle(sample(case["base"]), "bundle")
    target = Path("bundle", case.get("file", "sdsc_0.json"))
    target.write_bytes(patched(target.read_bytes(), case))
    golden(FOLDER / f"{name}.txt", diagnosis(Path("bundle")))


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_good(name: str, tmp_path: Path) -> None:
    write_bundle(sample(name), tmp_path)
    bundle = load_bundle(tmp_path)
    assert bundle.check(raise_on_error=True) == ()
    assert list(bundle.operations) == list(bundle.sdscs)


def test_every_code_has_a_case() -> None:
    """SPY27x belong to test_bundle, SPY29x to the builder tests; SPY216 needs nine tensors."""
    texts = "".join((FOLDER / f"{name}.txt").read_text() for name in CASES)
    ours = [c for c in diagnostic_codes() if "SPY200" < c < "SPY270" or "SPY500" < c <= "SPY519"]
    assert [code for code in ours if code not in texts] == ["SPY216"]
