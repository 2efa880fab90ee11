"""Damaged samples of features that real bundles lack: each is a SpyreError or a clean run.

Windows, runtime sizes, own work slices, pages, uneven slices: seeded mutants go through load,
check, and a run with and without the check. :mod:`tests.test_fuzz` does the same to real bundles.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from qa.mutations import mutate
from spyre.errors import SpyreError
from spyre.hw.device.device import Device
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import BundleContents, load_bundle, write_bundle
from spyre.mlir.explain import explain_operation
from spyre.runtime.run.session import RunOptions, Session
from tests.mlir.sample_bundles import SAMPLES

COUNT = 120
MOST_STICKS = 1 << 16


def uneven() -> BundleContents:
    builder = BundleBuilder(symbolic=False)
    x, y = builder.argument(10 * 128), builder.argument(10 * 128)
    spec = pointwise("neg", (10, 64), [HostOperand(x.at())], HostOperand(y.at()), {"mb": 4})
    builder.add(replace(spec, last_extents={"mb": 1}))
    return builder.build()


MADE = {
    **{name: SAMPLES[name] for name in ("shuffle", "pages", "runtime_rows", "pooling")},
    "convolution": SAMPLES["convolution"],
    "uneven": uneven,
}


@cache
def session() -> Session:
    return Session(Device(threads=1))


def attempt(directory: Path, check: bool) -> str:
    """The code of the error a bundle ends in; empty for a clean run."""
    try:
        bundle = load_bundle(directory)
        bundle.check()
        for inspection in bundle.inspections.values():
            if inspection.operation is not None:
                explain_operation(inspection.operation)
        options = RunOptions(values={"s0": 32}, check=check)
        arguments = session().arguments(bundle, options)
        if sum(a.layout.num_sticks for a in arguments.arguments) <= MOST_STICKS:
            session().run(bundle, None, options)
    except SpyreError as error:
        return error.code
    return ""


@pytest.mark.parametrize("name", MADE)
def test_damaged_samples(name: str, tmp_path: Path):
    write_bundle(MADE[name](), tmp_path)
    files = {path.name: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    results = set()
    for seed in range(COUNT):
        rng = random.Random(f"{name} {seed}")
        chosen = rng.choice(["sdsc_0.json"] * 4 + list(files))
        (tmp_path / chosen).write_bytes(mutate(rng, chosen, files[chosen]))
        for check in (True, False):
            results.add(attempt(tmp_path, check))
        (tmp_path / chosen).write_bytes(files[chosen])
    assert len(results) > 10
