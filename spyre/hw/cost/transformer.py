"""Modelled times of whole decoder models from their configurations.

A model is a list of kernels, each a row as in a CSV file of :mod:`.rows` and how often it runs;
weights are never made. Products are divided as the model finds fastest. Other operations run one
after another, with their results in HBM but for the softmax if it fits into LX. A token reads and
extends a cache of keys and values in the layout that products need.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from spyre.errors import EstimateError, JsonLocation
from spyre.files import read_regular
from spyre.hw.cost.collectives import fastest_time
from spyre.hw.cost.estimate import Estimate, estimate, machine_with
from spyre.hw.cost.machine import MachineSpec, default_machine
from spyre.hw.cost.models import mean_spread, size_us
from spyre.hw.cost.rows import parse_rows

FAMILIES = ("granite", "llama", "mistral", "qwen2", "qwen3", "granitemoe", "mixtral", "gpt2")
OTHER_NAMES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
"""What gpt2 calls them."""
HEAD = "kernel,shapes,dtype,split,cores,note\n"


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of a decoder. ``matrices``: of an MLP; ``experts``: MLPs per layer, of which a token
    takes ``chosen``.
    """

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    depth: int
    vocabulary: int
    matrices: int = 3
    experts: int = 1
    chosen: int = 1

    def of_card(self, cards: int) -> DecoderShape:
        """One card's part where heads, columns of MLPs and words are divided among ``cards``."""
        if self.heads % cards or self.inner % cards:
            _wrong(self.name, f"cards that divide {self.heads} heads", str(cards))
        return replace(
            self,
            heads=self.heads // cards,
            kv_heads=-(-self.kv_heads // cards),
            inner=self.inner // cards,
            vocabulary=-(-self.vocabulary // cards),
        )


def decoder_shape(model: str) -> DecoderShape:
    """The sizes of a model: a known name, a config.json, or a directory with one.

    EstimateError SPY768 for an unknown name or family, an unreadable file, or a missing key.
    """
    config = _named().get(model.lower())
    if config is None:
        path = Path(model)
        path = path / "config.json" if path.is_dir() else path
        try:
            config = json.loads(read_regular(path))
        except (OSError, ValueError) as error:
            known = ", ".join(_named())
            _wrong(model, f"a config.json, a directory with one, or one of {known}", str(error))
    return _shape_of(model, config)


@cache
def _named() -> Mapping[str, Mapping[str, Any]]:
    text = resources.files("spyre.hw.cost").joinpath("configurations.toml").read_text("utf-8")
    return tomllib.loads(text)


def _shape_of(model: str, config: object) -> DecoderShape:
    family = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(config, dict) or family not in FAMILIES:
        _wrong(model, f"model_type: one of {', '.join(FAMILIES)}", repr(family))

    def size(name: str, absent: int | None = None) -> int:
        value = config.get(name, config.get(OTHER_NAMES.get(name, ""), absent))
        value = absent if value is None else value
        if not isinstance(value, int) or value < 1:
            _wrong(model, f"{name}: a number above 0", repr(value))
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return DecoderShape(
        name=model,
        hidden=hidden,
        inner=size("intermediate_size", 4 * hidden if family == "gpt2" else None),
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        depth=size("head_dim", hidden // heads),
        vocabulary=size("vocab_size"),
        matrices=2 if family == "gpt2" else 3,
        experts=size("num_local_experts", 1),
        chosen=size("num_experts_per_tok", 1),
    )


def _wrong(model: str, expected: str, found: str) -> NoReturn:
    message = "the times of a model cannot be estimated"
    raise EstimateError("SPY768", message, JsonLocation(model), expected=expected, found=found)


# --- kernels ----------------------------------------------------------------------------------

LINEARS, ATTENTION, OTHERS = "linears", "attention", "other operations"
COPIES, LAUNCHES, COLLECTIVES = "copies", "launches", "collectives"
Kernel = tuple[str, int, str, str, str]
"""Part of the model, how often it runs, then kernel, shapes and note of its row."""


def kernels_of(shape: DecoderShape, batch: int, tokens: int, context: int) -> Iterator[Kernel]:
    """The kernels of one forward pass of ``tokens`` new ones per sequence, of which each sees
    ``context`` at most. The head computes the last token only.
    """
    rows, layers, width = batch * tokens, shape.layers, shape.heads * shape.depth
    narrow = shape.kv_heads * shape.depth
    linears = [
        (rows, width, shape.hidden),
        (rows, narrow, shape.hidden),
        (rows, narrow, shape.hidden),
    ]
    linears.append((rows, shape.hidden, width))
    for m, n, k in linears:
        yield LINEARS, layers, "linear", f"M{m} N{n} K{k}", ""
    used = min(shape.experts, rows * shape.chosen)
    each = -(-rows * shape.chosen // used)
    for n, k, times in (
        (shape.inner, shape.hidden, shape.matrices - 1),
        (shape.hidden, shape.inner, 1),
    ):
        yield LINEARS, layers * used * times, "linear", f"M{each} N{n} K{k}", ""
    yield LINEARS, 1, "linear", f"M{batch} N{shape.vocabulary} K{shape.hidden}", ""
    yield from _attention(shape, batch, tokens, context)
    for kernel in ("mul", "mean", "bcastcol", "bcast", "add"):  # two norms, two sums
        yield OTHERS, 2 * layers, kernel, f"{rows}x{shape.hidden}", ""
    for kernel in ("silu", "mul")[: shape.matrices - 1]:
        yield OTHERS, layers, kernel, f"{each * used}x{shape.inner}", ""


def _attention(shape: DecoderShape, batch: int, tokens: int, context: int) -> Iterator[Kernel]:
    """Attention of all layers, over heads of one batch. Heads that share keys are rows of one
    product.
    """
    groups, rows = batch * shape.kv_heads, shape.heads // shape.kv_heads * tokens
    sizes = f"B{groups} M{rows}", f"{groups * rows}x{context}"
    yield ATTENTION, shape.layers, "scores", f"{sizes[0]} N{context} K{shape.depth}", ""
    yield ATTENTION, shape.layers, "mul by 2.0", sizes[1], ""
    yield ATTENTION, shape.layers, "softmax", sizes[1], "LX planning on"
    yield ATTENTION, shape.layers, "values", f"{sizes[0]} N{shape.depth} K{context}", ""
    queries = f"{batch * tokens}x{shape.heads * shape.depth}"
    keys = f"{batch * tokens}x{shape.kv_heads * shape.depth}"
    # a rotation of queries and keys: two products and their sum, over parts that are exchanged
    for kernel in ("cat1", "bcast", "bcast", "add"):
        yield ATTENTION, shape.layers, kernel, queries, ""
        yield ATTENTION, shape.layers, kernel, keys, ""
    yield COPIES, 2 * shape.layers, "transpose_outer", queries, ""  # heads first, and back
    yield COPIES, shape.layers, "transpose", keys, ""  # keys and values into their cache
    yield COPIES, shape.layers, "copy", keys, ""


# --- times ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassTime:
    """One forward pass. ``parts_us``: microseconds by part; ``kernels``: how often, and each.
    ``spread``: error of the classes, relative, of what has one.
    """

    parts_us: Mapping[str, float]
    kernels: tuple[tuple[int, Estimate], ...]

    @property
    def us(self) -> float:
        """All parts."""
        return sum(self.parts_us.values())

    @cached_property
    def spread(self) -> float:
        """Error of the classes of its kernels, weighted by their times, relative."""
        return mean_spread((times * (e.us or 0.0), e.spread) for times, e in self.kernels) or 0.0


@dataclass(frozen=True, kw_only=True)
class ModelEstimate:
    """Modelled times of a model on ``cards`` cards: a prompt of ``prompt`` tokens for each of
    ``batch`` sequences, then one token more for each.
    """

    shape: DecoderShape
    cards: int
    batch: int
    prompt: int
    dtype: str
    lx_fraction: float
    prefill: PassTime = field(repr=False)
    token: PassTime = field(repr=False)

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all sequences."""
        return self.batch * 1e6 / self.token.us


def estimate_model(
    model: str,
    *,
    cards: int = 1,
    batch: int = 1,
    prompt: int = 512,
    dtype: str = "fp16",
    machine: MachineSpec | None = None,
) -> ModelEstimate:
    """Modelled times of a model; ``dtype``: of the linears, fp16 or fp8. EstimateError SPY768 for a
    model, or numbers, that cannot be estimated.
    """
    machine = machine or default_machine()
    numbers = {"cards": cards, "batch": batch, "prompt": prompt}
    for name, value in numbers.items():
        if value < 1:
            _wrong(model, f"{name}: a number above 0", str(value))
    shape = decoder_shape(model)
    passes = [
        _pass_time(shape, cards, (batch, tokens, context), dtype, machine)
        for tokens, context in ((prompt, prompt), (1, prompt + 1))
    ]
    return ModelEstimate(
        shape=shape,
        dtype=dtype,
        lx_fraction=machine.hardware.lx_fraction,
        prefill=passes[0],
        token=passes[1],
        **numbers,
    )


def _pass_time(
    shape: DecoderShape, cards: int, sizes: tuple[int, int, int], dtype: str, machine: MachineSpec
) -> PassTime:
    part = shape.of_card(cards)
    kernels = list(kernels_of(part, *sizes))
    formats = {"fp8": "fp8 relayout over LX"}
    lines = (
        f"{kernel},{shapes},{formats.get(dtype, dtype) if name == LINEARS else 'fp16'},,32,{note}"
        for name, _, kernel, shapes, note in kernels
    )
    rows = parse_rows(HEAD + "\n".join(lines), shape.name)
    found = [estimate(row, machine_with(machine, row.lx_fraction)) for row in rows]
    parts: dict[str, float] = {}
    for (name, times, *_), each in zip(kernels, found, strict=True):
        parts[name] = parts.get(name, 0.0) + times * (each.us or 0.0)
    batch, tokens, _ = sizes
    logits = size_us(machine.calibration.copy_out_us, 2 * batch * part.vocabulary)
    parts[COPIES] += logits
    parts[LAUNCHES] = machine.hardware.launch_us * (shape.layers + 2)
    if cards > 1:
        sums_bytes = 2 * batch * tokens * shape.hidden
        once = fastest_time("all_reduce", sums_bytes, cards, machine).total_ns / 1e3
        parts[COLLECTIVES] = 2 * shape.layers * once
    return PassTime(
        parts, tuple((times, e) for (_, times, *_), e in zip(kernels, found, strict=True))
    )
