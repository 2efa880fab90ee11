"""The bundle builder: both address modes say the same addresses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spyre.errors import BundleError
from spyre.mlir.builder.bundles import SEGMENT_BYTES, BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import Bundle, load_bundle, write_bundle
from spyre.mlir.text.printer import print_module

from .sample_bundles import SAMPLES

GOLDEN = Path(__file__).parent / "golden"


def addresses(bundle: Bundle) -> list[tuple[str, list[tuple[int, ...]]]]:
    """(operation, starts per operand) of every dynamic execute, parameter k bound to segment k."""
    names = [parameter.name for parameter in bundle.program.parameters]
    values = {name: index * SEGMENT_BYTES for index, name in enumerate(names)}
    schedule = bundle.program.schedule(values)
    result = []
    for static, instance in zip(schedule.order.tolist(), schedule.instance.tolist(), strict=True):
        execute = bundle.program.executes[static]
        row = schedule.symbols[static][instance].tolist()
        table = dict(zip(execute.symbol_ids, row, strict=True))
        operation = bundle.operations[execute.sdsc_filename]
        starts = [tuple(table.get(s, s) for s in tensor.starts) for tensor in operation.tensors]
        result.append((operation.name, starts))
    return result


def test_both_modes_give_the_same_addresses(tmp_path: Path) -> None:
    kept = load_bundle(write_bundle(SAMPLES["tiled"](), tmp_path / "kept"))
    unrolled = load_bundle(write_bundle(SAMPLES["tiled_baked"](), tmp_path / "unrolled"))
    assert (len(kept.sdscs), len(unrolled.sdscs)) == (2, 9)
    assert addresses(kept) == addresses(unrolled)


@pytest.mark.parametrize("symbolic", [True, False])
def test_tiled_bundle_golden(symbolic: bool, golden: Callable[[Path, str], None]) -> None:
    name = "tiled" if symbolic else "tiled_baked"
    golden(GOLDEN / f"built_{name}.mlir", print_module(SAMPLES[name]().module))


def test_strides_are_those_of_the_device_layout(tmp_path: Path) -> None:
    """Row tiles are 128 · 128 bytes apart, column tiles two stick columns of 512 rows."""
    bundle = load_bundle(write_bundle(SAMPLES["tiled_baked"](), tmp_path))
    adds = [op for op in bundle.operations.values() if op.name == "add"]
    assert len(adds) == 8
    bases = [op.inputs[0].starts[0] - SEGMENT_BYTES for op in adds]
    assert bases == [r * 128 * 128 + c * 512 * 256 for r in range(4) for c in range(2)]


def test_equal_addresses_share_a_symbol() -> None:
    builder = BundleBuilder()
    x = builder.argument(128 * 32)
    builder.add(
        pointwise("add", (32, 64), [HostOperand(x.at()), HostOperand(x.at())], HostOperand(x.at()))
    )
    builder.add(pointwise("abs", (32, 64), [HostOperand(x.at())], HostOperand(x.at())))
    executes = list(builder.build().module.executes())
    assert [execute.symbol_ids for execute in executes] == [(-1,), (-2,)]


def test_pool_takes_segment_zero() -> None:
    builder = BundleBuilder(symbolic=False)
    x = builder.argument(128 * 32)
    first, second = builder.temporary(100), builder.temporary(128 * 32)
    assert (first.offset_bytes, second.offset_bytes, builder.pool_bytes) == (0, 128, 128 + 4096)
    builder.add(pointwise("abs", (32, 64), [HostOperand(x.at())], HostOperand(second.at(128))))
    (sdsc,) = builder.build().sdscs.values()
    nodes = sdsc.dsc.nodes
    assert [node.starts.data for node in nodes] == [
        {"[0, 0, 0]": str(SEGMENT_BYTES)},
        {"[0, 0, 0]": "256"},
    ]


def test_wrong_descriptions() -> None:
    builder = BundleBuilder(symbolic=False)
    x = builder.argument(128, "x")
    with pytest.raises(BundleError, match="buffer x exists already"):
        builder.argument(128, "x")
    with pytest.raises(BundleError, match="a loop runs at least once"), builder.loop(0):
        pass
    with builder.loop(2) as loop:
        pass
    with pytest.raises(BundleError, match=f"loop {loop} is not open here"):
        builder.add(pointwise("abs", (1, 64), [HostOperand(x.at(0, {loop: 128}))], HostOperand(0)))
    other = BundleBuilder().argument(128, "y")
    with pytest.raises(BundleError, match="abs: unknown buffer y"):
        builder.add(pointwise("abs", (1, 64), [HostOperand(other.at())], HostOperand(0)))
    for _ in range(7):
        builder.argument(128)
    with pytest.raises(BundleError, match="too many arguments for baked addresses"):
        builder.build()
