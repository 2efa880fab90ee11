"""Checks that need neighbours in memory, the card's sizes, or a device; options and bookkeeping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spyre.errors import LaunchError, Severity, UnsupportedError
from spyre.hw import check_table as ct
from spyre.hw.device.device import Device
from spyre.hw.linking.binding import Allocation
from spyre.hw.memory.device_memory import POISON, DeviceTensor
from spyre.hw.sanitizer.findings import ALL_CHECKS, Check, SanitizerFinding, parse_checks
from spyre.hw.sanitizer.tables import RecordLog
from spyre.hw.spec import LX_BASE, LX_BYTES
from spyre.layout import SpyreTensorLayout, contiguous_strides
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.operations import OperandSpec, OperationSpec, build_operation
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import Bundle, load_bundle, write_bundle
from spyre.runtime.kernel.kernel import Kernel, Launch, PoolBuffer
from spyre.runtime.run.session import Session, run
from tests.hw.harness import link
from tests.sanitizer import programs
from tests.sanitizer.programs import NBYTES, ROW, SHAPE, SPLIT


def tensor(device: Device, name: str, fill: bool = True, region: int = 0) -> DeviceTensor:
    """A tensor of SHAPE behind the others in ``region``."""
    layout = SpyreTensorLayout.from_host(SHAPE, "float16")
    strides = contiguous_strides(SHAPE)
    address = device.allocate(layout.device_bytes, region)
    made = DeviceTensor(name, address, layout, "float16", SHAPE, strides)
    if fill:
        values = np.ones(SHAPE, np.float16).ravel()
        device.upload(made, values, "float16")
    return made


def too_far(directory: Path, pool: bool = False) -> Bundle:
    """|x| of 32 rows in five tiles of 8: the last one is behind x."""
    builder = BundleBuilder()
    x, y = (builder.argument(NBYTES) for _ in range(2))
    source = builder.temporary(NBYTES) if pool else x
    with builder.loop(5) as tile:
        place = HostOperand(source.at(0, {tile: 8 * ROW * 2}))
        builder.add(pointwise("abs", (8, 128), [place], HostOperand(y.at()), {"mb": 2}))
    write_bundle(builder.build(), directory)
    return load_bundle(directory)


def text_of(findings: tuple[SanitizerFinding, ...], directory: Path) -> list[str]:
    return [str(f.to_finding()).replace(f"{directory}/", "") for f in findings]


# --- memory -----------------------------------------------------------------------------------


def test_into_the_neighbour(tmp_path: Path):
    device = Device(sanitize="memory,init")
    assert device.sanitizer is not None
    bundle = too_far(tmp_path)
    tensors = {k: tensor(device, name) for k, name in enumerate(("x", "y"))}
    Kernel(bundle, device).launch(Launch(tensors))
    found = [f for f in device.sanitizer.take() if f.severity is Severity.ERROR]
    assert text_of(tuple(found), tmp_path) == [
        "error[SPY701]: abs: Tensor0 leaves x, which its address names\n"
        " --> bundle.mlir:16:4\n"
        "16 |    sdscbundle.sdsc_execute (%addr_0, %addr_1, %arg_1, %arg_1_core_512)\n"
        "   |    ^^^^^^^^^^^^^^^^^^^^^^^\n"
        " ::: sdsc_0.json, execute 0, loop indices (4,), core 0, tensor Tensor0, address 0x2000\n"
        "  = expected: addresses of x, 0x0 to 0x2000\n"
        "  = found: 16 sticks outside in 1 execution, in y; first at mb 0, out 0"
    ]
    assert found[0].coordinate == (("mb", 0), ("out", 0))


def test_out_of_the_pool(tmp_path: Path):
    device = Device(sanitize="memory")
    assert device.sanitizer is not None
    bundle = too_far(tmp_path, pool=True)
    pool = PoolBuffer(device.allocate(NBYTES, 0), NBYTES)
    tensors = {k: tensor(device, name) for k, name in enumerate(("x", "y"))}
    Kernel(bundle, device).launch(Launch(tensors, pool))
    found = [f for f in device.sanitizer.take() if f.severity is Severity.ERROR]
    assert text_of(tuple(found), tmp_path) == [
        "error[SPY703]: abs: Tensor0 leaves the pool, which its address names\n"
        " --> bundle.mlir:17:4\n"
        "17 |    sdscbundle.sdsc_execute (%addr_0, %addr_1, %arg_1, %arg_1_core_512)\n"
        "   |    ^^^^^^^^^^^^^^^^^^^^^^^\n"
        " ::: sdsc_0.json, execute 0, loop indices (4,), core 0, tensor Tensor0, address 0x2000\n"
        "  = expected: addresses of the pool, 0x0 to 0x2000\n"
        "  = found: 16 sticks outside in 1 execution, in x; first at mb 0, out 0"
    ]


def test_a_second_stick_that_an_argument_does_not_have(tmp_path: Path):
    """Conversions to fp8 bear it, so that only the sanitizer tells."""
    builder = BundleBuilder()
    x, y = builder.argument(3 * 128), builder.argument(3 * 128)
    shapes = ((x, "SEN169_FP16", 64), (y, "SEN143_FP8", 128))
    source, target = (
        OperandSpec(("mb", "out"), (("out", lanes),), place.at(), data_format=name, role=name)
        for place, name, lanes in shapes
    )
    builder.add(OperationSpec("qfp8ch", {"mb": 3, "out": 128}, [source], [target]))
    write_bundle(builder.build(), tmp_path)
    device = Device(sanitize="memory")
    assert device.sanitizer is not None
    tensors = {}
    for k, (dtype, columns) in enumerate((("float16", 64), ("float8_e4m3fn", 128))):
        layout = SpyreTensorLayout.from_host((3, columns), dtype)
        address = device.allocate(layout.device_bytes, k)
        tensors[k] = DeviceTensor("xy"[k], address, layout, dtype, (3, columns), (columns, 1))
    Kernel(load_bundle(tmp_path), device).launch(Launch(tensors))
    (found,) = (f for f in device.sanitizer.take() if f.severity is Severity.ERROR)
    assert (found.code, found.coordinate) == ("SPY701", (("mb", 0), ("out", 64)))
    assert "3 sticks outside in 1 execution" in found.found


# --- align ------------------------------------------------------------------------------------


def test_a_span_beyond_256_mib():
    """Only a program that was not checked gets here: SPY235 says the same before."""
    source = HostOperand(0, gap={"mb": 2_200_000 - 2})
    op = build_operation(pointwise("abs", (2, 128), [source], HostOperand(1 << 34), {"mb": 2}))
    device = Device(sanitize="align")
    assert device.sanitizer is not None
    regions = [Allocation(f"region {k}", k << 34, 1 << 30) for k in range(2)]
    device.executor.run(link(device, [op], regions))
    (found,) = device.sanitizer.take()
    assert str(found.to_finding()) == (
        "error[SPY736]: abs: one core touches too long a range of Tensor0\n"
        " --> test:6:1\n"
        '6 | sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json"}\n'
        "  | ^^^^^^^^^^^^^^^^^^^^^^^\n"
        " ::: sdsc_0.json, execute 0, core 0, tensor Tensor0\n"
        "  = expected: at most 268435456 bytes from first to last\n"
        "  = found: 281600128 bytes"
    )


# --- what memory holds ------------------------------------------------------------------------


def launch_right(device: Device, directory: Path, pool_bytes: int = NBYTES) -> None:
    """|a + b| with tensors of its own, all freed again but the pool."""
    bundle = load_bundle(programs.right(directory))
    tensors = {k: tensor(device, f"t{k}", fill=k < 2, region=k) for k in range(3)}
    pool = PoolBuffer(device.allocate(pool_bytes, 3), pool_bytes)
    Kernel(bundle, device).launch(Launch(tensors, pool))
    for made in tensors.values():
        device.free(made.address_bytes)


def codes(device: Device) -> list[str]:
    assert device.sanitizer is not None
    return [finding.code for finding in device.sanitizer.take()]


def test_freed_memory_is_unwritten_again(tmp_path: Path):
    device = Device(sanitize=True)
    launch_right(device, tmp_path / "a")
    assert codes(device) == []
    bundle = load_bundle(programs.right(tmp_path / "b"))
    tensors = {k: tensor(device, f"t{k}", fill=k == 0, region=k) for k in range(3)}
    pool = PoolBuffer(device.allocate(NBYTES, 3), NBYTES)
    Kernel(bundle, device).launch(Launch(tensors, pool))
    assert codes(device) == ["SPY710"]


def test_a_raw_write_counts(tmp_path: Path):
    device = Device(sanitize=True)
    bundle = load_bundle(programs.right(tmp_path))
    tensors = {k: tensor(device, f"t{k}", fill=k == 0, region=k) for k in range(3)}
    device.memory.write(tensors[1].address_bytes, np.zeros(NBYTES, np.uint8), "t1")
    Kernel(bundle, device).launch(Launch(tensors, PoolBuffer(device.allocate(NBYTES), NBYTES)))
    assert codes(device) == []


def test_a_reset_forgets(tmp_path: Path):
    device = Device(sanitize=True)
    launch_right(device, tmp_path / "a")
    device.reset()
    assert device.sanitizer is not None
    assert device.sanitizer.log.next_record == 1
    assert not device.sanitizer.shadow.of_range(0, 1 << 20).any()
    assert not device.sanitizer.shadow.ranges.any()


def test_the_last_writer_of_an_earlier_launch_is_named(tmp_path: Path):
    """LX keeps its contents between launches, and the shadow knows who left them."""
    device = Device(sanitize="lx")
    session = Session(device)
    assert session.run(programs.above_boundary(tmp_path / "a")).sanitizer[0].code == "SPY730"
    builder = BundleBuilder()
    (y,) = programs.arguments(builder, 1)
    source = programs.lx(1_750_016 + 4 * ROW)
    builder.add(pointwise("neg", SHAPE, [source], HostOperand(y.at()), SPLIT))
    path = programs.write(builder, tmp_path / "b", [programs.WRITTEN])
    found = {f.code: f for f in session.run(path).sanitizer}
    assert found["SPY731"].last_writer == "execute 0 (abs), core 0"
    assert found["SPY731"].sticks == 4 * 12


def test_findings_are_taken_once(tmp_path: Path):
    device = Device(sanitize=True)
    path = programs.unwritten_pool(tmp_path)
    first, second = (run(path, device=device).sanitizer for _ in range(2))
    assert [f.code for f in first] == [f.code for f in second] == ["SPY710"]
    assert codes(device) == []


def test_a_timed_run_finds_the_same(tmp_path: Path):
    path = programs.two_writers(tmp_path)
    device = Device(sanitize=True)
    plain, timed = (run(path, device=device, timed=t).sanitizer for t in (False, True))
    assert plain == timed


@pytest.mark.parametrize("check", [Check.INIT, Check.RACE, Check.COVER])
def test_only_what_was_asked_for(check: Check, tmp_path: Path):
    wanted = {Check.INIT: "unwritten_pool", Check.RACE: "two_writers", Check.COVER: "short_loop"}
    device = Device(sanitize=[check])
    for other, name in wanted.items():
        result = run(programs.WRONG[name](tmp_path / name), device=device)
        found = {f.check for f in result.sanitizer}
        assert found == {check} if other is check else found <= {check}


# --- options ----------------------------------------------------------------------------------


def test_choices():
    assert parse_checks(None) == parse_checks(False) == frozenset()
    assert parse_checks(True) == parse_checks("") == ALL_CHECKS
    assert parse_checks("init, lx") == parse_checks(["init", "lx"]) == {Check.INIT, Check.LX}
    with pytest.raises(LaunchError, match="SPY739]: there is no such sanitizer check"):
        parse_checks("init,memry")


def test_records_run_out():
    log = RecordLog()
    log.add("x", ct.MAX_RECORD - 1)
    with pytest.raises(UnsupportedError, match="SPY738"):
        log.add("y")


def test_poison():
    device = Device(poison=True)
    address = device.allocate(1000)
    assert (device.memory.read(address, 1000) == POISON).all()
    assert (device.memory.read(LX_BASE + 5 * LX_BYTES, LX_BYTES) == POISON).all()
    device.memory.write(LX_BASE, np.zeros(128, np.uint8))
    device.reset()
    assert (device.memory.read(LX_BASE, 128) == POISON).all()


def test_poison_shows_what_relies_on_zeros(tmp_path: Path):
    path = programs.unwritten_pool(tmp_path)
    plain, poisoned = (run(path, device=Device(poison=p)).outputs[0] for p in (False, True))
    assert not plain.any()
    assert poisoned.any()
