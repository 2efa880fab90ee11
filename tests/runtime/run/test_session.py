"""Running bundles through a session: inputs, outputs, placement, reuse, reports."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

import spyre
from spyre.errors import LaunchError, ValidationError
from spyre.hw.device.device import Device
from spyre.hw.linking import linker
from spyre.hw.linking.linker import Linker
from spyre.mlir.bundle import load_bundle
from spyre.runtime.arguments.host_tensor import HostTensor
from spyre.runtime.dma import DmaEngine
from spyre.runtime.flex.device import flex_device_of
from spyre.runtime.program.plan_cache import load_source
from spyre.runtime.run import session as session_module
from spyre.runtime.run.session import RunOptions, Session
from tests.runtime import bundles

ROOT = Path(__file__).resolve().parents[3]

SEGMENT = 1 << 34


def inputs(seed: int = 0) -> list[np.ndarray]:
    """Small integers: exact in every format."""
    generator = np.random.default_rng(seed)
    return [generator.integers(-9, 9, bundles.SHAPE).astype(np.float16) for _ in range(2)]


@pytest.fixture
def bundle(tmp_path):
    return bundles.abs_of_sum(tmp_path / "b")


@pytest.fixture(scope="module")
def device():
    return Device(threads=1)


class TestInputs:
    def test_in_order(self, bundle, device):
        a, b = inputs()
        result = spyre.run(bundle, [a, b], device=device)
        np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))
        assert result.outputs[0].dtype == np.float32
        assert result.output_tensors[0].dtype_name == "float16"

    def test_by_name_and_index(self, bundle, device):
        a, b = inputs()
        result = spyre.run(bundle, {"arg_1": b, 0: a}, device=device)
        np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))

    def test_loaded_bundle(self, bundle, device):
        a, b = inputs()
        result = spyre.run(load_bundle(bundle), [a, b], device=device)
        np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))

    def test_a_strided_host_tensor(self, bundle, device):
        """A transposed storage with an offset is read by its own strides."""
        a, b = inputs()
        storage = np.concatenate([np.zeros(5, np.float16), a.T.ravel()])
        strided = HostTensor("a", "float16", (32, 128), (1, 32), 5, storage)
        result = spyre.run(bundle, [strided, b], device=device)
        np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))

    def test_random_by_seed(self, bundle, device):
        first, same, other = (spyre.run(bundle, device=device, seed=s) for s in (3, 3, 4))
        np.testing.assert_array_equal(first.outputs[0], same.outputs[0])
        assert not np.array_equal(first.outputs[0], other.outputs[0])
        expected = np.abs(sum(t.to_values() for t in first.inputs))
        np.testing.assert_allclose(first.outputs[0], expected, rtol=2**-8, atol=2**-8)

    @pytest.mark.parametrize(
        "given",
        [[], [0, 0, 0], {"arg_0": 0}, {"arg_0": 0, "arg_9": 0}, {"arg_0": 0, 0: 0, "arg_1": 0}],
    )
    def test_wrong_inputs(self, bundle, device, given):
        zeros = np.zeros(bundles.SHAPE, np.float16)
        filled = dict.fromkeys(given, zeros) if isinstance(given, dict) else [zeros] * len(given)
        with pytest.raises(LaunchError) as caught:
            spyre.run(bundle, filled, device=device)
        assert caught.value.code == "SPY367"

    def test_wrong_shape_and_dtype(self, bundle, device):
        a, b = inputs()
        with pytest.raises(LaunchError, match="SPY333"):
            spyre.run(bundle, [a.T, b], device=device)
        with pytest.raises(LaunchError, match="SPY334"):
            spyre.run(bundle, [a.astype(np.int32), b], device=device)

    def test_bfloat16_as_bits_or_numbers(self, tmp_path, device):
        directory = bundles.abs_of_sum(tmp_path / "b")
        bundles.add_spec(directory, ["input", "input", "output"], bundles.NBYTES, "bfloat16")
        a, b = (x.astype(np.float32) for x in inputs())
        bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
        for given in ([a, b], bits):
            result = spyre.run(directory, given, device=device)
            np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))
            assert result.output_tensors[0].dtype_name == "bfloat16"


class TestInPlace:
    def test_an_in_place_argument_is_input_and_output(self, tmp_path, device):
        a, b = inputs()
        directory = bundles.add_in_place(tmp_path / "b")
        result = spyre.run(directory, [a, b], device=device)
        assert len(result.outputs) == 1
        np.testing.assert_array_equal(result.outputs[0], a + b)

    def test_alias(self, bundle, device):
        """The output in the memory of the first input."""
        a, b = inputs()
        result = spyre.run(bundle, [a, b], device=device, aliases={2: 0})
        assert [p.spec.name for p in result.arguments] == ["arg_0", "arg_1"]
        np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))


class TestPlacement:
    def test_baked_addresses_are_the_files(self, tmp_path):
        directory = bundles.abs_of_sum(tmp_path / "b", symbolic=False)
        result = spyre.run(directory, inputs(), device=Device(threads=1))
        assert [p.address_bytes for p in result.arguments] == [SEGMENT, 2 * SEGMENT, 3 * SEGMENT]

    def test_baked_bundles_relocate(self, tmp_path):
        directory = bundles.abs_of_sum(tmp_path / "b", symbolic=False)
        used = Device(threads=1)
        for segment in range(4):
            used.allocate(4096, segment)
        a, b = inputs()
        result = spyre.run(directory, [a, b], device=used)
        assert all(p.address_bytes % SEGMENT == 4096 for p in result.arguments)
        np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))

    def test_memory_is_given_back(self, bundle):
        used = Device(threads=1)
        free = used.allocate(128)
        used.free(free)
        for _ in range(2):
            spyre.run(bundle, inputs(), device=used)
            assert used.allocate(128) == free
            used.free(free)

    def test_memory_is_given_back_after_an_error(self, bundle, monkeypatch):
        used = Device(threads=1)
        monkeypatch.setattr(DmaEngine, "to_device", _fail)
        with pytest.raises(ZeroDivisionError):
            spyre.run(bundle, inputs(), device=used)
        assert used.allocate(128) % SEGMENT == 0


def _fail(*arguments):
    raise ZeroDivisionError


class TestReuse:
    @pytest.fixture
    def counted(self, monkeypatch):
        """Counts of plans made and programs linked."""
        counts = {"plan": 0, "link": 0, "load": 0}

        def counting(name, function):
            def call(*arguments, **options):
                counts[name] += 1
                return function(*arguments, **options)

            return call

        monkeypatch.setattr(linker, "plan_operation", counting("plan", linker.plan_operation))
        monkeypatch.setattr(Linker, "link", counting("link", Linker.link))
        monkeypatch.setattr(session_module, "load_source", counting("load", load_source))
        return counts

    @pytest.mark.parametrize("make", [bundles.abs_of_sum, bundles.scratch])
    def test_a_repeated_run_only_computes(self, tmp_path, counted, make):
        directory = make(tmp_path / "b")
        used = Device(threads=1)
        for seed in range(3):
            a, b = inputs(seed)
            result = spyre.run(str(directory), [a, b], device=used)
            np.testing.assert_array_equal(result.outputs[0], np.abs(a + b))
        assert counted == {"plan": 2, "link": 1, "load": 1}

    def test_changed_content_is_another_kernel(self, tmp_path, counted):
        directory = bundles.abs_of_sum(tmp_path / "b")
        used = Device(threads=1)
        spyre.run(directory, inputs(), device=used)
        sdsc = directory / "sdsc_1.json"
        sdsc.write_text(sdsc.read_text().replace('"abs"', '"neg"').replace("1_abs", "1_neg"))
        a, b = inputs()
        result = spyre.run(directory, [a, b], device=used)
        np.testing.assert_array_equal(result.outputs[0], -(a + b))
        assert counted["load"] == 2

    def test_old_kernels_go(self, tmp_path, monkeypatch):
        monkeypatch.setattr(session_module, "MAX_KERNELS", 1)
        used = Session(Device(threads=1))
        first = used.load(bundles.scratch(tmp_path / "a"))
        address = first.kernel.reserve_scratch()[0].address_bytes
        used.load(bundles.abs_of_sum(tmp_path / "b"))
        assert used.device.allocate(128, address // SEGMENT) == address

    def test_sessions_end_with_their_device(self, bundle):
        used = Device(threads=1)
        spyre.run(bundle, inputs(), device=used)
        alive = weakref.ref(used)
        del used
        gc.collect()
        assert alive() is None


class TestReports:
    def test_executes(self, bundle, device):
        result = spyre.run(bundle, inputs(), device=device, timed=True)
        add, absolute = result.executes
        assert (add.op, add.shape, add.cores, add.executions) == ("add", "mb 32, out 128", 4, 1)
        counts = add.counters
        assert counts.hbm_read_bytes == 2 * bundles.NBYTES
        assert counts.hbm_written_bytes == bundles.NBYTES
        assert (counts.lx_read_bytes, counts.lx_written_bytes, counts.multiply_adds) == (0, 0, 0)
        assert absolute.counters.hbm_read_bytes == bundles.NBYTES
        assert result.counters == add.counters + absolute.counters
        assert result.host_ns == add.host_ns + absolute.host_ns > 0

    def test_untimed(self, bundle, device):
        result = spyre.run(bundle, inputs(), device=device)
        assert result.host_ns is None

    def test_progress(self, bundle, device):
        seen = []
        options = RunOptions(timed=True, progress=lambda done, total: seen.append((done, total)))
        Session(device).run(bundle, inputs(), options)
        assert seen == [(1, 2), (2, 2)]

    def test_checked_first(self, bundle, device):
        text = (bundle / "bundle.mlir").read_text()
        (bundle / "bundle.mlir").write_text(
            text.replace('"symbol_ids"=[-1, ', '"symbol_ids"=[-77, ')
        )
        with pytest.raises(ValidationError):
            spyre.run(bundle, inputs(), device=device)

    def test_numerics(self, bundle):
        third = np.full(bundles.SHAPE, 0.3, np.float16)
        card = spyre.run(bundle, [third, third], numerics="dl16", threads=1).outputs[0][0, 0]
        half = spyre.run(bundle, [third, third], numerics="ieee", threads=1).outputs[0][0, 0]
        assert half == np.float32(2) * third[0, 0]
        assert card != half
        assert card == pytest.approx(0.6, rel=2**-9)


def test_a_run_is_corrected_only_where_its_command_stream_is_recorded():
    used = Device(threads=1)
    flex, example = flex_device_of(used), ROOT / "examples" / "softmax"
    plain = spyre.run(example, device=used)
    header = used.allocated_bytes[7]
    with flex.recording() as commands:
        recorded = spyre.run(example, device=used)
    assert header == 128 < used.allocated_bytes[7]
    assert [c.block.name for c in commands.host_operations] == ["correction of softmax"]
    np.testing.assert_array_equal(plain.outputs[0], recorded.outputs[0])
