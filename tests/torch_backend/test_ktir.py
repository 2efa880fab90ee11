"""KTIR functions launched on tensors of the device."""

from __future__ import annotations

import numpy as np
import pytest

from spyre.errors import LaunchError, ValidationError
from tests.mlir.tiles.corpus import EXAMPLES

torch = pytest.importorskip("torch")


def function(name, *edits):
    text = (EXAMPLES / f"{name}.ktir").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return torch.spyre.ktir(text)


def halves(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def test_rows_and_columns_in_memory_of_sticks():
    """Tensors of two dims are not row by row in device memory: copied there, and back."""
    x, y = halves(64, 256).to("spyre"), torch.zeros(64, 256, dtype=torch.float16, device="spyre")
    function("softmax")(x, y)
    expected = x.cpu().float().softmax(-1)
    torch.testing.assert_close(y.cpu().float(), expected, rtol=0.01, atol=1e-3)


def test_a_number_among_the_arguments():
    a, b = halves(64, 512), halves(512, 256, seed=1)
    c = torch.zeros(64, 256, dtype=torch.float16, device="spyre")
    product = torch.spyre.ktir(EXAMPLES / "product.ktir")
    product(a.to("spyre"), b.to("spyre"), c, 256)
    expected = a[:, :256].float() @ b[:256].float()
    torch.testing.assert_close(c.cpu().float(), expected, rtol=0.02, atol=0.2)


def test_a_product_into_the_memory_of_a_factor():
    """It is stored once all of it is computed."""
    box = "affine_set<(a, b) : (a >= 0, -a + 63 >= 0, b >= 0, -b + 63 >= 0)>"
    lines = ["%c = arith.constant 0 : index", "%e = tensor.empty() : tensor<64x64xf16>"]
    for name in "xyz":
        lines += [
            f"%v{name} = ktdp.construct_memory_view %{name}, sizes: [64, 64], strides: [64, 1] "
            "{memory_space = #ktdp.memory_space<global>} : memref<64x64xf16>",
            f"%t{name} = ktdp.construct_access_tile %v{name}[%c, %c] {{access_tile_set = {box}}} "
            ": memref<64x64xf16> -> !ktdp.access_tile<64x64xindex>",
        ]
    tile = "tensor<64x64xf16>"
    lines += [f"%{n}0 = ktdp.load %t{n} : !ktdp.access_tile<64x64xindex> -> {tile}" for n in "xy"]
    lines += [
        f"%r = linalg.matmul ins(%x0, %y0 : {tile}, {tile}) outs(%e : {tile}) -> {tile}",
        f"ktdp.store %r, %tz : {tile}, !ktdp.access_tile<64x64xindex>",
        "return",
    ]
    body = "\n".join(lines)
    text = f"func.func @f(%x: index, %y: index, %z: index) {{\n{body}\n}}\n"
    x, y = halves(64, 64), halves(64, 64, seed=1)
    for target in (torch.zeros(64, 64).half(), None):
        given = [x.to("spyre"), y.to("spyre")]
        z = target.to("spyre") if target is not None else given[0]
        torch.spyre.ktir(text)(*given, z)
        torch.testing.assert_close(z.cpu().float(), x.float() @ y.float(), rtol=0.02, atol=0.2)


def test_device_memory_as_it_is():
    """A view of the shape of device memory sees the sticks, as an emitter's text does."""
    bounds = ", ".join(f"d{k} >= 0, -d{k} + {n - 1} >= 0" for k, n in enumerate((4, 8, 64)))
    box = f"affine_set<(d0, d1, d2) : ({bounds})>"
    view = (
        "ktdp.construct_memory_view %{0}, sizes: [4, 8, 64], strides: [512, 64, 1] "
        f"{{{{coordinate_set = {box}, memory_space = #ktdp.memory_space<global>}}}} "
        ": memref<4x8x64xf16>"
    )
    tile = (
        f"ktdp.construct_access_tile %v{{0}}[%c, %c, %c] {{{{access_tile_set = {box}}}}} "
        ": memref<4x8x64xf16> -> !ktdp.access_tile<4x8x64xindex>"
    )
    lines = ["%c = arith.constant 0 : index"]
    for name in ("x", "y"):
        lines += [f"%v{name} = {view.format(name)}", f"%t{name} = {tile.format(name)}"]
    lines += [
        "%a = ktdp.load %tx : !ktdp.access_tile<4x8x64xindex> -> tensor<4x8x64xf16>",
        "%b = arith.addf %a, %a : tensor<4x8x64xf16>",
        "ktdp.store %b, %ty : tensor<4x8x64xf16>, !ktdp.access_tile<4x8x64xindex>",
        "return",
    ]
    text = "func.func @f(%x: index, %y: index) {\n" + "\n".join(lines) + "\n}\n"
    x, y = halves(8, 256), torch.zeros(8, 256, dtype=torch.float16, device="spyre")
    torch.spyre.ktir(text)(x.to("spyre"), y)
    torch.testing.assert_close(y.cpu(), x + x, rtol=2**-9, atol=0)


def test_on_the_current_stream_between_other_operations():
    add, stream = function("add"), torch.spyre.Stream()
    x, y = halves(4096), halves(4096, seed=1)
    with torch.spyre.stream(stream):
        a, b = x.to("spyre"), y.to("spyre")
        z = torch.empty(4096, dtype=torch.float16, device="spyre")
        add(a, b, z)
        add(z, b, z)
        found = (z + z).cpu()
    np.testing.assert_allclose(found, 2 * (x + 2 * y.float()), rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    ("values", "code", "said"),
    [
        (lambda x, z: (x, z), "SPY342", "3 arguments"),
        (lambda x, z: (x.cpu(), x, z), "SPY342", "a tensor on the device spyre"),
        (lambda x, z: (x, 3, z), "SPY342", "argument y is a pointer"),
        (lambda x, z: (x, x.float(), z), "SPY344", "other elements"),
        (lambda x, z: (x, x[:64], z), "SPY343", "too small"),
    ],
)
def test_wrong_values(values, code, said):
    x, z = halves(4096).to("spyre"), torch.zeros(4096, dtype=torch.float16, device="spyre")
    with pytest.raises(LaunchError) as raised:
        function("add")(*values(x, z))
    assert raised.value.code == code
    assert said in str(raised.value)
    assert not z.cpu().any()


def test_a_text_with_errors():
    with pytest.raises(ValidationError):
        function("add", ("arith.addf %a", "arith.addf %c"))


def test_a_number_given_as_a_tensor():
    c = torch.zeros(64, 256, dtype=torch.float16, device="spyre")
    with pytest.raises(LaunchError, match="SPY342"):
        function("product")(c, c, c, c)
