"""The functions of the real bundles, compiled here: right values, and bundles without findings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from spyre.torch_backend.inductor.compiled_kernel import CompiledKernel
from tests.conftest import SHARED
from tests.torch_backend.inductor.compiled_code import collected
from tests.torch_backend.inductor.emitted_kernels import KernelChecks
from tests.torch_backend.inductor.real_functions import RealFunction, read_function

BUNDLES = SHARED / "bundles"
NAMES = sorted(path.parent.name for path in BUNDLES.glob("*/case.json"))
FALL_BACK = {"up_test_fallback_with_restickify", "up_test_pointwise_unary_op_fp32_ceil_256"}
"""Cases with operations that eager mode has no kernel for either."""
CORES = (1, 2, 4, 8, 16, 32)
SAME_BITS = (
    *("bmm_4x64x128x64", "block_rope", "chunk_swiglu", "cores1_chain", "cores1_softmax"),
    *("layer_norm_4x32x128", "linear_relu", "mlp_gelu", "permute_4d_0213"),
    *("pw_add_pad_1d_100", "red_sum_3d_12", "rms_norm_64x256", "sdpa_gqa", "to_f32_1d"),
    "up_test_reduce_multidim_keepdim0_amin_pad_5d_dim_234",
)
"""Functions that give the same bits however many cores share the work."""

SPLIT_SUMS = ("mm_1x128x256", "mm_67x100x70", "up_test_mm_mm_67x255_255x128")
"""Products whose K is divided among cores, there being more than rows and columns to share."""

MANY_ARGUMENTS = ("sdpa_gqa",)
"""Kernels with more arguments than segments, which baked addresses are not for (SPY291)."""

pytestmark = pytest.mark.skipif(not NAMES, reason="the real bundles (../shared) are not here")


@dataclass(frozen=True)
class Compiled:
    """A compiled function and the kernels it was made of at its first call."""

    call: Any
    kernels: tuple[CompiledKernel, ...]


class Compiler:
    """Compiles functions, each once per sizes of its inputs."""

    def __init__(self) -> None:
        self._known: dict[Any, Compiled] = {}

    def compiled(self, function: RealFunction) -> tuple[Compiled, bool]:
        """The compiled function, and whether it is new."""
        if function.key in self._known:
            return self._known[function.key], False
        torch._dynamo.reset()
        call = torch.compile(function.call, dynamic=False, fullgraph=True)
        with collected() as kernels:
            call(*function.on_card())
        self._known[function.key] = Compiled(call, tuple(kernels))
        return self._known[function.key], True


@pytest.fixture(scope="module")
def compiler():
    return Compiler()


@pytest.fixture(scope="module")
def checks():
    return KernelChecks()


def results(found: Any) -> list[torch.Tensor]:
    tensors = [found] if isinstance(found, torch.Tensor) else list(found)
    # Reading bfloat16 from the card truncates.
    return [t.float() if t.dtype is torch.bfloat16 else t for t in tensors]


def agrees(function: RealFunction, found: list[torch.Tensor]) -> None:
    assert len(found) == len(function.expected)
    limits = function.tolerance
    for one, other in zip(found, function.expected, strict=True):
        assert one.device.type == "spyre"
        assert one.shape == other.shape
        if other.is_floating_point():
            limit = limits["atol"] + limits["rtol"] * other.float().abs()
            error = (one.cpu().float() - other.float()).abs()
            assert bool((error <= limit).all()), f"{(error / limit).max():.3f} of what is allowed"
        else:
            assert torch.equal(one.cpu().to(other.dtype), other)


@pytest.mark.parametrize("name", NAMES)
def test_a_real_function(name, compiler, checks, monkeypatch, tmp_path):
    function = read_function(BUNDLES / name)
    monkeypatch.setenv("SENCORES", str(function.cores))
    torch.spyre.reset_fallbacks()
    compiled, is_new = compiler.compiled(function)
    agrees(function, results(compiled.call(*function.on_card())))
    assert bool(torch.spyre.fallbacks()) == (name in FALL_BACK)
    if is_new:
        for number, kernel in enumerate(compiled.kernels):
            assert checks.findings(kernel, tmp_path / str(number)) == []


def bits(tensors: list[torch.Tensor]) -> list[bytes]:
    return [t.cpu().contiguous().numpy().tobytes() for t in tensors]


@pytest.mark.parametrize("name", SAME_BITS)
def test_cores_do_not_change_bits(name, compiler, checks, monkeypatch, tmp_path):
    function = read_function(BUNDLES / name)
    known = None
    for cores in CORES:
        monkeypatch.setenv("SENCORES", str(cores))
        compiled, _ = compiler.compiled(replace(function, cores=cores))
        found = results(compiled.call(*function.on_card()))
        known = known or bits(found)
        assert bits(found) == known
        for number, kernel in enumerate(compiled.kernels):
            assert checks.findings(kernel, tmp_path / f"{cores}-{number}") == []


@pytest.mark.parametrize("name", SPLIT_SUMS)
def test_sums_divided_among_cores_differ_by_rounding(name, compiler, monkeypatch):
    function = read_function(BUNDLES / name)
    for cores in CORES:
        monkeypatch.setenv("SENCORES", str(cores))
        compiled, _ = compiler.compiled(replace(function, cores=cores))
        agrees(function, results(compiled.call(*function.on_card())))


@pytest.mark.parametrize("name", [name for name in SAME_BITS if name not in MANY_ARGUMENTS])
def test_baked_addresses_give_the_same_bits(name, compiler, checks, monkeypatch, tmp_path):
    function = read_function(BUNDLES / name)
    monkeypatch.setenv("SENCORES", "32")
    compiled, _ = compiler.compiled(replace(function, cores=32))
    assert compiled.kernels
    for number, kernel in enumerate(compiled.kernels):
        symbolic = checks.run(kernel, tmp_path / f"symbolic-{number}")
        baked = checks.run(kernel, tmp_path / f"baked-{number}", symbolic=False)
        assert baked[0] == symbolic[0] == []
        for one, other in zip(symbolic[1], baked[1], strict=True):
            np.testing.assert_array_equal(one, other)
