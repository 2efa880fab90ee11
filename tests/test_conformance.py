"""All real bundles, run by the conformance runner in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from qa.conformance.__main__ import main
from qa.conformance.cases import find_cases


@pytest.mark.shared
@pytest.mark.slow
def test_every_real_bundle_reproduces(shared_dir: Path, capsys: pytest.CaptureFixture[str]):
    bundles = shared_dir / "bundles"
    count = len(find_cases(bundles))
    status = main([str(bundles)])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert printed.split() == [f"{count}/{count}"]
    assert count > 200
