"""Programs that torch-spyre emits for its tests, against their torch functions.

`../shared/bundles-refused`: programs, some with the layouts of their buffers, without expected
values; each was refused once. The upstream test of a program defines its function. The rest stays
refused: according to upstream, the card does not run these either.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

import spyre
from spyre.errors import SpyreError
from spyre.layout import SpyreTensorLayout, contiguous_strides

pytestmark = pytest.mark.shared

Array = npt.NDArray[Any]
POOL_BYTES = 1 << 24
STICK = 64


class Argument(msgspec.Struct, frozen=True):
    """An argument of a program: ``values`` of an input, None for the output.

    ``index``: its number, by default the position; ``written``: an input that is written, too.
    """

    shape: tuple[int, ...]
    layout: SpyreTensorLayout | None = None
    dtype: str = "float16"
    values: Array | None = None
    index: int | None = None
    written: bool = False

    @property
    def role(self) -> str:
        if self.values is None:
            return "output"
        return "input_output" if self.written else "input"


@lru_cache(maxsize=1)
def device() -> spyre.Device:
    return spyre.Device(threads=2)


def random(shape: Sequence[int], seed: int = 0) -> Array:
    """Exact in DL16, and few enough bits that sums of them are."""
    rng = np.random.default_rng(seed)
    return (rng.integers(-512, 512, shape) / 256).astype(np.float16)


def given(values: Array, layout: SpyreTensorLayout | None = None, dtype: str = "") -> Argument:
    return Argument(values.shape, layout, dtype or values.dtype.name, values)


def run(
    program: Path, copy: Path, arguments: Sequence[Argument], pool_bytes: int = POOL_BYTES
) -> Array:
    """The last output of a copy of ``program`` with a launch spec for ``arguments``."""
    shutil.copytree(program, copy, ignore=shutil.ignore_patterns("case.json", "*.npz"))
    rows = []
    for k, argument in enumerate(arguments):
        layout = argument.layout or SpyreTensorLayout.from_host(argument.shape, argument.dtype)
        fields = ("device_size", "stride_map", "device_dtype", "element_arrangement")
        rows.append({
            "arg_index": k if argument.index is None else argument.index,
            "role": argument.role,
            "shape": argument.shape,
            "dtype": argument.dtype,
            "layout": {name: getattr(layout, name) for name in fields},
        })  # fmt: skip
    spec = {"version": 1, "kernel_name": "k", "pool_size": pool_bytes, "args": rows}
    (copy / "launch_spec.json").write_text(json.dumps(spec | {"bundle_symbolic_args": True}))
    inputs = [a.values for a in arguments if a.values is not None]
    return np.asarray(spyre.run(copy, inputs, device=device()).outputs[-1])


class Descriptor(msgspec.Struct, frozen=True):
    """Data of an SDSC that tests need: extents by dim, and the nodes of its tensors."""

    extents: dict[str, int]
    nodes: list[dict[str, Any]]

    @classmethod
    def of(cls, program: Path, number: int) -> Descriptor:
        (body,) = json.loads((program / f"sdsc_{number}.json").read_bytes()).values()
        (dsc,) = body["dscs_"][0].values()
        sizes = {k.removesuffix("_"): n for k, n in dsc["N_"].items() if isinstance(n, int)}
        return cls(sizes, dsc["scheduleTree_"])

    def shape(self) -> tuple[int, ...]:
        return tuple(self.extents[d] for d in ("mb", "x", "y", "out") if d in self.extents)

    def layout(self, tensor: int, dims: Sequence[str]) -> SpyreTensorLayout:
        """Layout of a float16 tensor whose host dims are ``dims``, outermost first."""
        steps = dict(zip(dims, contiguous_strides([self.extents[d] for d in dims]), strict=True))
        order = self.nodes[tensor]["layoutDimOrder_"][::-1]
        sizes = [self.extents[d] // (STICK if d == "out" else 1) for d in order]
        strides = [STICK if d == "out" else steps[d] for d in order]
        return SpyreTensorLayout((*sizes, STICK), (*strides, 1), "SEN169_FP16")


# --- gathers and scatters ---------------------------------------------------------------------

GATHERS = {
    "1683ef69e440": "data", "18128aa53dc4": "int64", "1c393415e777": "int64",
    "2f21dba71a1e": "exp", "40322640e85f": "data", "46f398df1671": "data", "4d7f999ea746": "exp",
    "5148aec275f5": "data", "5619d7929eb1": "data", "5f2495d74317": "scaled",
    "5f78410e7962": "exp tanh", "9c4b22e7f95e": "data", "b73dc18cd42e": "data",
    "b7ea098797af": "data", "bbadbe3dbc20": "data", "bc38a9850e5d": "tanh",
    "da1d668def50": "int64", "e4136e86a562": "data", "e8e5468a81b6": "data", "f460e8a0dffe": "sum",
}  # fmt: skip
"""Operations on the rows of a table, by program."""


@pytest.mark.parametrize("name", GATHERS)
def test_gathers(shared_dir: Path, tmp_path: Path, name: str) -> None:
    program, kind = shared_dir / "bundles-refused" / name, GATHERS[name]
    gather = Descriptor.of(program, 1)
    table = random(Descriptor.of(program, 0).shape())
    (picking,) = gather.nodes[0]["layoutDimOrder_"]
    count = gather.extents[picking]
    index = np.random.default_rng(1).integers(0, len(table), count)
    words = given(index.astype(np.int64 if kind == "int64" else np.int32))
    expected = table.astype(np.float32)[index]
    if kind == "sum":
        expected = expected.sum(1)
    for step in kind.split():
        expected = {"exp": np.exp, "tanh": np.tanh}.get(step, lambda x: x)(expected)
    factor = [given(np.array(1.5, np.float16))] if kind == "scaled" else []
    expected = expected * 1.5 if factor else expected
    dims = [picking, *(d for d in ("mb", "x", "y", "out") if d in gather.extents and d != picking)]
    layout = gather.layout(2, dims) if count == 1 else None
    output = Argument(expected.shape, layout)
    found = run(program, tmp_path / "copy", [given(table), words, *factor, output])
    if kind in ("data", "int64"):
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=2e-3, atol=2e-3)


def test_a_page_of_a_cache_is_replaced(shared_dir: Path, tmp_path: Path) -> None:
    program = shared_dir / "bundles-refused/fe34b1cf4215"
    cache, page = random((576, 8, 128)), random((1, 8, 128), seed=1)
    paged = SpyreTensorLayout((576, 8, 2, STICK), (1024, 128, STICK, 1), "SEN169_FP16")
    source = SpyreTensorLayout((8, 2, 1, STICK), (128, STICK, -1, 1), "SEN169_FP16")
    index = given(np.array([417], np.int64))
    arguments = [given(cache, paged), index, given(page, source), Argument(cache.shape, paged)]
    found = run(program, tmp_path / "copy", arguments)
    cache[417] = page[0]
    np.testing.assert_array_equal(found, cache)


@pytest.mark.parametrize("name", ["a84a282fb58d", "d9269ce12014"])
def test_masked_rows(shared_dir: Path, tmp_path: Path, name: str) -> None:
    """masked_scatter of whole rows: a gather of 855 rows, and a choice."""
    program = shared_dir / "bundles-refused" / name
    rows, columns, chosen = 855, 5120, 266
    source, target = random((chosen, columns)), random((rows, columns), seed=1)
    mask = np.zeros((rows, 1), np.bool_)
    mask[np.random.default_rng(2).permutation(rows)[:chosen]] = True
    index = np.maximum(np.cumsum(mask) - 1, 0).astype(np.int32)
    by_rows = SpyreTensorLayout((rows, columns // STICK, STICK), (columns, STICK, 1), "SEN169_FP16")
    sparse = SpyreTensorLayout((1, rows, STICK), (-1, 1, -1), "SEN169_FP16")
    arguments = [
        given(source), given(index), given(mask, sparse), given(target, by_rows),
        Argument(target.shape, by_rows),
    ]  # fmt: skip
    found = run(program, tmp_path / "copy", arguments)
    np.testing.assert_array_equal(found, np.where(mask, source[index], target))


def test_a_slice_of_sticks_is_replaced(shared_dir: Path, tmp_path: Path) -> None:
    """y + (x[:, :, 32:96] = y), which leaves x with other sticks; there is no argument 2."""
    program = shared_dir / "bundles-refused/430594b78995"
    y, x = random((128, 192, 64)), random((128, 192, 256), seed=1)
    by_rows = SpyreTensorLayout((64, 2, 192, STICK), (1, 786432, 64, 12288), "SEN169_FP16")
    changed = Argument(x.shape, None, "float16", x, written=True)
    arguments = [given(y), changed, Argument(y.shape, by_rows, index=3)]
    found = run(program, tmp_path / "copy", arguments, 1 << 25)
    np.testing.assert_array_equal(found, 2 * y)


# --- with the layouts of their buffers --------------------------------------------------------


def described(program: Path) -> tuple[list[Argument], int]:
    """Arguments as case.json describes them, without values; bytes of the pool."""
    buffers = json.loads((program / "case.json").read_bytes())["buffers"]
    pool = buffers.pop("pool", {"nbytes": 0})
    return [
        Argument(tuple(b["shape"]), SpyreTensorLayout(**b["layout"]), b["dtype"])
        for b in buffers.values()
    ], pool["nbytes"]


def dequantized(x: Array) -> Array:
    """Through fp8 and back."""
    from spyre.dtypes import decode_device, encode_device

    codes = encode_device(np.clip(x.astype(np.float32), -448, 448), "SEN143_FP8")
    return np.asarray(decode_device(codes, "SEN143_FP8"))


def rescaled(scale: Array, x: Array) -> Array:
    return dequantized(x.astype(np.float32) / scale) * scale


Meaning = Callable[..., Array]
DESCRIBED: dict[str, Meaning] = {
    "9257f1359d94": lambda x: -np.sort(-x, axis=1)[:, :3],
    "1912d061a71e": lambda x: x.max((0, 1, 3)),
    "f443ab65d7df": lambda x: x.min((0, 1, 3)),
    "36e434211d97": lambda x, scale: dequantized(x) * scale,
    "76dd22f0bd71": lambda x, scale: dequantized(x) * scale,
    "3f6e91c2d70f": rescaled,
}
"""Top-k of three over three cores, reductions of split dims, fp8 with one stick per row."""


@pytest.mark.parametrize("name", DESCRIBED)
def test_described_programs(shared_dir: Path, tmp_path: Path, name: str) -> None:
    program = shared_dir / "bundles-refused" / name
    (*inputs, output), pool_bytes = described(program)
    values = [random(a.shape, seed) for seed, a in enumerate(inputs)]
    if name == "3f6e91c2d70f":
        values[0] = np.full(inputs[0].shape, 0.5, np.float16)
    filled = [Argument(a.shape, a.layout, a.dtype, v) for a, v in zip(inputs, values, strict=True)]
    found = run(program, tmp_path / "copy", [*filled, output], pool_bytes)
    np.testing.assert_array_equal(found, DESCRIBED[name](*values))


# --- programs that the card does not run either -------------------------------------------------

SCATTERS = (
    "2ffae2fc451d", "34c80e23bfe3", "7228849d1cf5", "754389f8aa50", "b370f9f3a930", "bf90c7cf684f",
    "f838afc7462b",
)  # fmt: skip
"""Rows into a layout of sticks outermost, which the SDSC does not tell: upstream's tests say that
the card's compiler aborts on them or diverges."""
CONVERSIONS = (
    "1a0df57f2796", "20855fd767b0", "643c25137140", "802ef1c40ac1", "85942dc7e9e0", "ac8be2bff7aa",
    "beeec2166438", "c1a8f2223862",
)  # fmt: skip
"""Between float32 and 16 bits, of rows that are no pairs of sticks: expected failures upstream.

Their SDSCs go beyond their arguments, or their layouts have no place for the last columns."""
CODES = {"bfloat16": "uint16"}
REFUSED = re.compile(r"SPY(262|232|411|322|323)")


def run_on_zeros(program: Path, copy: Path) -> None:
    """Launch with the layouts of case.json, or those that are derived."""
    if not (program / "case.json").is_file():
        spyre.run(program, device=device())
        return
    (*inputs, output), pool_bytes = described(program)
    zeros = [np.zeros(a.shape, CODES.get(a.dtype, a.dtype)) for a in inputs]
    pairs = zip(inputs, zeros, strict=True)
    run(program, copy, [*(replace(a, values=v) for a, v in pairs), output], pool_bytes)


@pytest.mark.parametrize("name", [*SCATTERS, *CONVERSIONS])
def test_refused(shared_dir: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(SpyreError) as caught:
        run_on_zeros(shared_dir / "bundles-refused" / name, tmp_path / "copy")
    assert REFUSED.search(str(caught.value)), caught.value


def test_every_program_has_its_place(shared_dir: Path) -> None:
    single = {"fe34b1cf4215", "a84a282fb58d", "d9269ce12014", "430594b78995"}
    programs = {p.name for p in (shared_dir / "bundles-refused").iterdir() if p.is_dir()}
    assert programs == {*GATHERS, *single, *DESCRIBED, *SCATTERS, *CONVERSIONS}
