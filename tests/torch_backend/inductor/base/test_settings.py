"""Settings of compiled functions: config, environment, options, and their effects on kernels."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch._inductor import config as inductor_config

from spyre import config as environment
from spyre.errors import SpyreError
from spyre.mlir.text.printer import print_module
from spyre.torch_backend.inductor import config
from spyre.torch_backend.inductor.base.notes import observing
from spyre.torch_backend.inductor.base.settings import cache_key, settings
from spyre.torch_backend.inductor.bundles.op_spec_form import OpSpec
from spyre.torch_backend.inductor.hooks import registration  # noqa: F401
from tests.torch_backend.processes import run


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


def kernels(function, *args, **named):
    with observing() as found:
        torch.compile(function, **named)(*args)
    return [kernel for kernel in found if hasattr(kernel, "specs")]


def matrices(count=2, rows=128, columns=256):
    torch.manual_seed(0)
    return [torch.randn(rows, columns).half().to("spyre") for _ in range(count)]


def test_defaults():
    found = settings()
    assert found.sencores == 32
    assert found.lx_planning
    assert found.coarse_tiling
    assert found.bundle_symbolic_args
    assert not found.unroll_loops


def test_the_environment_and_what_is_set_over_it(monkeypatch):
    monkeypatch.setenv("SENCORES", "8")
    monkeypatch.setenv("LX_PLANNING", "off")
    monkeypatch.setenv("UNROLL_LOOPS", "1")
    found = settings()
    assert (found.sencores, found.lx_planning, found.unroll_loops) == (8, False, True)
    with config.patch(sencores=4, lx_planning=True, unroll_loops=False, lx_fraction_kept=1.0):
        found = settings()
    assert (found.sencores, found.lx_planning, found.unroll_loops) == (4, True, False)
    assert found.lx_capacity_bytes == 0


@pytest.mark.parametrize("name", environment.REMOVED)
def test_removed_variables_are_reported(name, monkeypatch):
    monkeypatch.setenv(name, "june")
    with pytest.warns(UserWarning, match=f"{name} was removed and is ignored"):
        settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sencores", 33),
        ("sencores", True),
        ("lx_planning", 1),
        ("lx_fraction_kept", 1.5),
        ("coarse_tiling_groups_fn", "f"),
    ],
)
def test_wrong_values(name, value):
    with config.patch({name: value}), pytest.raises(SpyreError) as caught:
        settings()
    assert caught.value.code == "SPY968"
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["UNROLL_LOOPS", "COARSE_TILING", "LX_PLANNING"])
def test_wrong_values_of_the_environment(name, monkeypatch):
    monkeypatch.setenv(name, "perhaps")
    with pytest.raises(SpyreError, match=name) as caught:
        settings()
    assert caught.value.code == "SPY968"


def test_a_groups_function_has_a_name():
    without_name = config.patch(coarse_tiling_groups_fn=lambda operations: [])
    with without_name, pytest.raises(SpyreError) as caught:
        settings()
    assert caught.value.code == "SPY978"


def no_groups(operations):
    return []


def test_the_key_holds_every_setting(monkeypatch):
    others = {
        "sencores": 8,
        "core_id_k_fast_emission": False,
        "lx_planning": False,
        "lx_fraction_kept": 0.5,
        "coarse_tiling": False,
        "coarse_tiling_groups_fn": no_groups,
        "auto_tile": True,
        "unroll_loops": True,
        "symbolic_sizes": True,
        "bundle_symbolic_args": False,
    }
    assert others.keys() == config.get_config_copy().keys()
    keys = {cache_key()}
    for name, value in others.items():
        with config.patch({name: value}):
            keys.add(cache_key())
    assert len(keys) == len(others) + 1
    monkeypatch.setenv("SPYRE_KEEP", "/nowhere")
    assert cache_key() not in keys


def test_a_function_without_a_file_is_never_cached():
    module = ModuleType("typed_in")
    exec("def groups(operations):\n    return []", vars(module))
    sys.modules["typed_in"] = module
    try:
        with config.patch(coarse_tiling_groups_fn=module.groups):
            assert cache_key() is None
    finally:
        del sys.modules["typed_in"]


def test_options_of_torch_compile():
    a, b = matrices()
    (kernel,) = kernels(lambda a, b: a + b, a, b, options={"spyre.sencores": 2})
    (spec,) = kernel.specs
    assert sorted(n for _, n in spec.iteration_space.values()) == [1, 2]
    assert config.sencores is None


def test_options_are_those_of_inductor_too():
    with inductor_config.patch({"spyre.sencores": 2}):
        assert config.sencores == 2
        assert inductor_config.spyre.sencores == 2
    assert inductor_config.spyre.sencores is None


def test_unknown_and_wrong_options():
    with pytest.raises(RuntimeError, match=r"Unexpected optimization option spyre\.tiles.*spyre\."):
        torch.compile(lambda a: a, options={"spyre.tiles": True})
    (a,) = matrices(1)
    with pytest.raises(Exception, match="SPY968"):
        torch.compile(lambda a: a + 1, options={"spyre.lx_planning": "x"})(a)


def test_options_before_inductor_is_loaded():
    run(
        """
        import sys
        assert "torch._inductor.config" not in sys.modules
        f = torch.compile(lambda a: a + 1, options={"spyre.sencores": 2})
        x = torch.ones(3, device="spyre")
        assert f(x).cpu().tolist() == [2, 2, 2]
        assert not any(type(f).__name__ == "_Finder" for f in sys.meta_path)
        """
    )


def test_lx_planning():
    def places(**options):
        (kernel,) = kernels(lambda a, b: (a + b) * b, *matrices(), **options)
        return {kind for spec in kernel.specs for arg in spec.args for kind in arg.allocation}

    assert places() == {"hbm", "lx"}
    torch.compiler.reset()
    assert places(options={"spyre.lx_planning": False}) == {"hbm", "pool"}


def test_the_form_of_bundles():
    (kernel,) = kernels(lambda a, b: a + b, *matrices())
    torch.compiler.reset()
    options = {"spyre.bundle_symbolic_args": False, "spyre.unroll_loops": True}
    (baked,) = kernels(lambda a, b: a + b, *matrices(), options=options)
    assert "%arg" in print_module(kernel.bundle.module)
    assert "%arg" not in print_module(baked.bundle.module)


def test_k_fast_numbering():
    a, b = matrices(1, 2, 8192)[0], matrices(1, 8192, 64)[0]

    def product(**options):
        (kernel,) = kernels(torch.mm, a, b, **options)
        return kernel

    fast = product()
    (spec,) = fast.specs
    assert isinstance(spec, OpSpec)
    torch.compiler.reset()
    slow = product(options={"spyre.core_id_k_fast_emission": False})
    assert slow.specs[0].op_info["k_fast"] is False
    *_, (_, k_cores) = spec.iteration_space.values()
    assert k_cores > 1
    assert fast.bundle.sdscs != slow.bundle.sdscs


def test_backward_graphs_have_the_settings_of_the_forward():
    x = matrices(1)[0].requires_grad_()
    with config.patch(sencores=2):
        loss = torch.compile(lambda x: (x * x).sum())(x)
    with observing() as found:
        loss.backward()
    assert all(
        n <= 2
        for kernel in found
        if hasattr(kernel, "specs")
        for spec in kernel.specs
        for _, n in spec.iteration_space.values()
    )
    assert torch.allclose(x.grad.cpu(), 2 * x.detach().cpu(), atol=1e-2)
