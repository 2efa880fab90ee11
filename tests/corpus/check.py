"""SDSCs that break a rule: patches of ``tests/mlir/bad_sdsc``, and built ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spyre.mlir.builder.operations import OperandSpec, OperationSpec
from tests.corpus.making import CorpusCase, Edit, Stage, bundle_of
from tests.mlir.sample_bundles import SAMPLES
from tests.mlir.test_sdsc_bad import CASES as PATCHES, FOLDER, patched

CODE = re.compile(r"(?:error|warning)\[(SPY\d{3})\]|Error: .*?(SPY\d{3})")


def patch_edit(case: dict[str, Any]) -> Edit:
    def edit(directory: Path) -> None:
        target = directory / case.get("file", "sdsc_0.json")
        target.write_bytes(patched(target.read_bytes(), case))

    return edit


def patch_case(name: str, case: dict[str, Any]) -> CorpusCase | None:
    """A patched SDSC; None for the few patches that are no fault."""
    found = re.findall(r"SPY\d{3}", (FOLDER / f"{name}.txt").read_text())
    if not found:
        return None
    stage = Stage.PARSE if found[0] < "SPY207" else Stage.CHECK
    bundle = SAMPLES[case["base"]]
    return CorpusCase(f"sdsc_{name}", stage, found[0], bundle, (patch_edit(case),))


def nine_tensors() -> OperationSpec:
    tensors = [OperandSpec(("mb", "out"), (("out", 64),), k << 32) for k in range(9)]
    return OperationSpec("add", {"mb": 4, "out": 64}, tensors[:8], tensors[8:])


CASES = (
    *(made for name, case in PATCHES.items() if (made := patch_case(name, case)) is not None),
    CorpusCase("sdsc_nine_tensors", Stage.CHECK, "SPY216", bundle_of(nine_tensors())),
)
