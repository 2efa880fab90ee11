"""Kernels of generated code: loaded when they run, on tensors laid out as they were made for."""

from __future__ import annotations

import threading

import pytest
import torch

from spyre.cli.run import main
from spyre.errors import UnsupportedError
from spyre.layout import SpyreTensorLayout
from spyre.mlir.bundle import load_bundle
from spyre.torch_backend.device.cards import card_at
from spyre.torch_backend.inductor.bundles.kernels import InductorKernel, SpyreAsyncCompile
from spyre.torch_backend.inductor.bundles.op_spec_form import spec_text
from spyre.torch_backend.tensors.allocation import buffer_of
from tests.torch_backend import processes
from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of
from tests.torch_backend.inductor.bundles.spec_cases import default_arg as tensor, op, tiled_example
from tests.torch_backend.inductor.kernel_cases import ROWS, through

SHAPE = (100, 150)
SPACE = {"c0": (100, 4), "c1": (150, 3)}


def negate(dtype="float16"):
    args = [tensor(0, SHAPE, ROWS, dtype=dtype), tensor(1, SHAPE, ROWS, dtype=dtype, out=True)]
    return [op("neg", SPACE, args)]


def numbers(*shape):
    torch.manual_seed(0)
    return torch.randn(shape or SHAPE).half().to("spyre")


def columns_first():
    """A layout whose sticks run along the rows."""
    return SpyreTensorLayout.from_dim_order(SHAPE, (150, 1), "float16", [1, 0])


def test_generated_code_compiles_and_waits():
    compiler = SpyreAsyncCompile()
    kernel = compiler.sdsc("sdsc_fused_neg_0", kernel_of(negate()))
    assert compiler.wait(globals()) is None
    x, y = numbers(), torch.empty(SHAPE).half().to("spyre")
    assert kernel.run(x, y) is None
    assert torch.equal(y.cpu(), -x.cpu())
    assert not buffer_of(y).zero_padded


def test_kernels_are_loaded_when_they_run_and_once():
    kernel = SpyreAsyncCompile().sdsc("kernel", kernel_of(negate()))
    assert kernel._programs == {}
    x, y = numbers(), torch.empty(SHAPE).half().to("spyre")
    kernel.run(x, y)
    program = kernel.program_on(card_at(0))
    kernel.run(y, x)
    assert list(kernel._programs.values()) == [program]


@pytest.mark.parametrize("form", [{"symbolic": False}, {"unrolled": True}])
def test_other_forms_run_alike(form):
    specs = tiled_example(cores=16, full=(128, 512))
    a, b, c, z = (numbers(128, 512) for _ in range(4))
    kernel = SpyreAsyncCompile(**form).sdsc("kernel", kernel_of(specs))
    kernel.run(a, b, c, z)
    assert torch.equal(z.cpu(), ((a + b) * c).cpu())
    assert bool(kernel.bundle.module.function.parameters) == form.get("symbolic", True)


def test_inputs_in_other_layouts_are_copied():
    kernel = InductorKernel("kernel", kernel_of(negate()))
    x = torch.empty(SHAPE, dtype=torch.float16, device="spyre", device_layout=columns_first())
    x.copy_(numbers())
    y = torch.empty(SHAPE).half().to("spyre")
    for _ in range(2):
        kernel.run(x, y)
        assert torch.equal(y.cpu(), -x.cpu())
        y.zero_()
    assert buffer_of(x).base.layout == columns_first()


def misfit(kernel, *tensors):
    with pytest.raises(UnsupportedError) as caught:
        kernel.run(*tensors)
    assert caught.value.code == "SPY963"
    return str(caught.value)


def test_what_is_laid_out_otherwise():
    kernel = InductorKernel("kernel", kernel_of(negate()))
    x, y = numbers(), torch.empty(SHAPE).half().to("spyre")
    odd = torch.empty(SHAPE, dtype=torch.float16, device="spyre", device_layout=columns_first())
    assert "argument 1" in misfit(kernel, x, odd)
    assert "device size [3, 64, 64]" in misfit(kernel, numbers(64, 150), y)
    assert "of IEEE_FP32" in misfit(kernel, x.float(), y)
    base = numbers(200, 150)
    assert "argument 0" in misfit(kernel, base[100:], y)
    kernel.run(x, y)
    assert torch.equal(y.cpu(), -x.cpu())


def test_the_number_of_tensors():
    with pytest.raises(TypeError, match="kernel takes 2 tensors, not 1"):
        InductorKernel("kernel", kernel_of(negate())).run(numbers())


def test_several_cards():
    processes.run(
        """
        import pytest
        from spyre.torch_backend.inductor.bundles.kernels import InductorKernel
        from tests.torch_backend.inductor.bundles.op_spec_reader import kernel_of
        from tests.torch_backend.inductor.bundles.test_async_compile import SHAPE, negate
        kernel = InductorKernel("kernel", kernel_of(negate()))
        host = torch.ones(SHAPE).half()
        for k in (0, 1, 0):
            x, y = host.to(f"spyre:{k}"), torch.empty_like(host, device=f"spyre:{k}")
            kernel.run(x, y)
            assert torch.equal(y.cpu(), -host)
        assert len(kernel._programs) == 2
        with pytest.raises(RuntimeError, match="spyre:0 and spyre:1"):
            kernel.run(x, host.to("spyre:1"))
        """,
        AIU_WORLD_SIZE="2",
    )


def test_pools_are_scratch_memory():
    kernel = InductorKernel("kernel", kernel_of(through({"pool": 4096})))
    x, y = numbers(256, 512), numbers(256, 512)
    before = torch.spyre.memory_allocated()
    kernel.run(x, y)
    assert torch.spyre.memory_allocated() == before
    assert torch.equal(y.cpu(), x.cpu().abs())
    program = kernel.program_on(card_at(0))
    assert program.spans_bytes == (256 * 512 * 2, 256 * 512 * 2, 4096 + 256 * 512 * 2)


def test_memory_is_held_until_a_kernel_has_run():
    kernel = InductorKernel("kernel", kernel_of(negate()))
    y = torch.empty(SHAPE).half().to("spyre")
    expected = -numbers().cpu()
    for _ in range(20):
        kernel.run(numbers(), y)
    assert torch.equal(y.cpu(), expected)


def test_several_threads():
    kernel = InductorKernel("kernel", kernel_of(negate()))
    x = numbers()
    outputs = [torch.empty(SHAPE).half().to("spyre") for _ in range(8)]
    threads = [threading.Thread(target=kernel.run, args=(x, y)) for y in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.spyre.synchronize()
    assert all(torch.equal(y.cpu(), -x.cpu()) for y in outputs)
    assert len(kernel._programs) == 1


@pytest.mark.parametrize("form", [{}, {"symbolic": False}, {"unrolled": True}])
@pytest.mark.parametrize("specs", [negate(), through({"pool": 128})], ids=["neg", "pool"])
def test_kept_kernels_run_with_spyre_run(tmp_path, monkeypatch, capsys, form, specs):
    x = numbers(*((256, 512) if len(specs) > 1 else SHAPE))
    y = torch.empty_like(x)
    monkeypatch.setenv("SPYRE_KEEP", str(tmp_path))
    kernel = InductorKernel("sdsc_fused_neg_0", kernel_of(specs), **form)
    assert not list(tmp_path.iterdir())
    kernel.run(x, y)
    kernel.run(x, y)
    (place,) = tmp_path.iterdir()
    assert place.name == "0001-sdsc_fused_neg_0"
    assert (place / "operations.txt").read_text() == f"{spec_text(kernel.specs)}\n"
    assert load_bundle(place).check() == ()
    assert main([str(place), "--check"]) == 0
    assert capsys.readouterr().out == f"{place}: nothing found\n"
    assert main([str(place), "--sanitize"]) == 0
    assert "sanitizer: nothing found" in capsys.readouterr().out
