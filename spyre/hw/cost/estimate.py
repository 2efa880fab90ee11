"""Modelled times of rows of kernels, beside measured ones, and of whole decoder models.

A model is a list of kernels, each a row as in a CSV file of :mod:`.rows` and how often it runs;
weights are never made. Products are divided as the model finds fastest. Other operations run one
after another, with their results in HBM but for the softmax if it fits into LX. A token reads and
extends a cache of keys and values in the layout that products need.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from spyre.errors import EstimateError, JsonLocation
from spyre.files import read_regular
from spyre.hw.cost.collectives import fastest_time
from spyre.hw.cost.divisions import CLOSE
from spyre.hw.cost.machine import MachineSpec, default_machine
from spyre.hw.cost.models import (
    KernelTime,
    copy_out_ns,
    kernel_ns,
    mean_spread,
    measured_class,
)
from spyre.hw.cost.rows import KernelRow, counts_of, parse_rows, read_rows


@dataclass(frozen=True)
class Estimate:
    """A row and its modelled time. ``us``: None for a row with a finding.

    ``kind``, ``spread``: class, and its relative error: two of three rows are within it. ``split``:
    the fastest division of a product whose row names none.
    """

    row: KernelRow
    us: float | None = None
    kind: str = ""
    spread: float | None = None
    split: str = ""
    time: KernelTime | None = None

    @property
    def error(self) -> float | None:
        """Modelled over measured, less 1; None if one of them is unknown."""
        return self.us / self.row.us - 1.0 if self.us and self.row.us else None


@dataclass(frozen=True, slots=True)
class ClassError:
    """Relative errors of a class: median and 90th percentile of magnitudes (``tenth``: a tenth is
    larger), and the signed median.
    """

    name: str
    rows: int
    median: float
    tenth: float
    bias: float


@dataclass(frozen=True, slots=True)
class Choice:
    """One problem and its measured divisions. ``cost``: the measured time of the one that the model
    chooses over that of the fastest, less 1. ``pairs``: those more than `CLOSE` apart on the card,
    ``ordered``: alike in the model. ``is_close``: its two best are too close to call.
    """

    title: str
    rows: int
    chosen: str
    best: str
    cost: float
    ordered: int
    pairs: int
    is_close: bool


@dataclass(frozen=True)
class Estimates:
    """Modelled times of the rows of a file, in its order."""

    rows: tuple[Estimate, ...]

    @cached_property
    def compared(self) -> tuple[tuple[KernelRow, float, float], ...]:
        """Rows with both times, modelled and measured in microseconds, outliers left out."""
        rows = ((each.row, each.us, each.row.us) for each in self.rows)
        return tuple((row, a, b) for row, a, b in rows if a and b and "outlier" not in row.note)

    @property
    def errors(self) -> tuple[ClassError, ...]:
        """Errors by class of the file, then of all rows."""
        groups: dict[str, list[float]] = {}
        for row, us, measured_us in self.compared:
            name = row.cells.get("group") or row.kernel
            groups.setdefault(name, []).append(us / measured_us - 1.0)
        every = [error for errors in groups.values() for error in errors]
        groups |= {"all": every} if every else {}
        found = []
        for name, errors in groups.items():
            median, tenth = np.quantile(np.abs(errors), (0.5, 0.9)).tolist()
            found.append(ClassError(name, len(errors), median, tenth, float(np.median(errors))))
        return tuple(found)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Problems with more than one measured division."""
        problems: dict[object, list[tuple[KernelRow, float, float]]] = {}
        for each in (each for each in self.compared if each[0].split is not None):
            stated = (each[0].cells.get(name) for name in ("source", "shapes", "dtype"))
            key = ("3d2d" in each[0].kernel, each[0].lx_fraction, *stated)
            problems.setdefault(key, []).append(each)
        return tuple(choice(rows) for rows in problems.values() if len(rows) > 1)


def choice(rows: Sequence[tuple[KernelRow, float, float]]) -> Choice:
    """Return the division of one problem that the model finds fastest, among the measured ones."""
    modelled = sorted(rows, key=lambda each: each[1])
    best = min(rows, key=lambda each: each[2])
    apart = [
        (a[1] < b[1]) == (a[2] < b[2])
        for a, b in combinations(rows, 2)
        if max(a[2], b[2]) > (1 + CLOSE) * min(a[2], b[2])
    ]
    return Choice(
        f"{rows[0][0].kernel} {rows[0][0].cells['shapes']} {rows[0][0].cells['dtype']}",
        len(rows),
        modelled[0][0].title,
        best[0].title,
        modelled[0][2] / best[2] - 1.0,
        sum(apart),
        len(apart),
        modelled[1][1] < (1 + CLOSE) * modelled[0][1],
    )


def estimate_file(path: str | Path, machine: MachineSpec | None = None) -> Estimates:
    """Modelled times of all rows of a CSV file; EstimateError SPY763 if it cannot be read."""
    return estimate_rows(read_rows(path), machine)


def estimate_rows(rows: Iterable[KernelRow], machine: MachineSpec | None = None) -> Estimates:
    """Modelled times of rows, on the machine with the LX fraction that a row states."""
    shared = cache(partial(machine_with, machine or default_machine()))
    return Estimates(tuple(estimate(row, shared(row.lx_fraction)) for row in rows))


def machine_with(machine: MachineSpec, lx_fraction: float | None) -> MachineSpec:
    """The machine with another LX fraction, if there is one."""
    changed = {} if lx_fraction is None else {"hardware.lx_fraction": lx_fraction}
    return machine.with_values(changed, "stated by the row") if changed else machine


def estimate(row: KernelRow, machine: MachineSpec) -> Estimate:
    """The modelled time of a row."""
    if row.finding is not None:
        return Estimate(row)
    times = (
        (kernel_ns(counts, machine), split, measured_class(counts))
        for split, counts in counts_of(row)
    )
    time, split, kind = min(times, key=lambda each: each[0].total_ns)
    chosen = " ".join(f"{dim}{cores}" for dim, cores in (split or {}).items() if cores > 1)
    chosen = chosen if row.split is None else ""
    return Estimate(row, time.total_ns / 1e3, kind, time.spread, chosen, time)


# --- whole models --------------------------------------------------------------------------------

FAMILIES = ("granite", "llama", "mistral", "qwen2", "qwen3", "granitemoe", "mixtral", "gpt2")
OF_GPT2 = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}


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
    matrices: int
    experts: int
    chosen: int

    def of_card(self, cards: int) -> DecoderShape:
        """One card's part where heads, columns of MLPs and words are divided among ``cards``."""
        if self.heads % cards or self.inner % cards:
            _wrong(self.name, f"cards that divide {self.heads} heads", str(cards))
        kv_heads, vocabulary = -(-self.kv_heads // cards), -(-self.vocabulary // cards)
        part = replace(self, heads=self.heads // cards, inner=self.inner // cards)
        return replace(part, kv_heads=kv_heads, vocabulary=vocabulary)


def decoder_shape(model: str) -> DecoderShape:
    """The sizes of a model: a known name, a config.json, or a directory with one.

    EstimateError SPY768 for an unknown name or family, an unreadable file, or a missing key.
    """
    config = _named().get(model.lower())
    if config is None:
        path = Path(model)
        try:
            config = json.loads(read_regular(path / "config.json" if path.is_dir() else path))
        except (OSError, ValueError) as error:
            known = ", ".join(_named())
            _wrong(model, f"a config.json, a directory with one, or one of {known}", str(error))
    family = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(config, dict) or family not in FAMILIES:
        _wrong(model, f"model_type: one of {', '.join(FAMILIES)}", repr(family))
    return _shape_of(model, config)


@cache
def _named() -> Mapping[str, dict[str, Any]]:
    text = resources.files("spyre.hw.cost").joinpath("configurations.toml").read_text("utf-8")
    return tomllib.loads(text)


def _shape_of(model: str, config: Mapping[str, Any]) -> DecoderShape:
    def size(name: str, absent: int | None = None) -> int:
        value = config.get(name, config.get(OF_GPT2.get(name, "")))
        value = absent if value is None else value
        if not isinstance(value, int) or value < 1:
            _wrong(model, f"{name}: a number above 0", repr(value))
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    is_gpt2 = config["model_type"] == "gpt2"
    return DecoderShape(
        name=model,
        hidden=hidden,
        inner=size("intermediate_size", 4 * hidden if is_gpt2 else None),
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        depth=size("head_dim", hidden // heads),
        vocabulary=size("vocab_size"),
        matrices=2 if is_gpt2 else 3,
        experts=size("num_local_experts", 1),
        chosen=size("num_experts_per_tok", 1),
    )


def _wrong(model: str, expected: str, found: str) -> NoReturn:
    message = "the times of a model cannot be estimated"
    raise EstimateError("SPY768", message, JsonLocation(model), expected=expected, found=found)


# --- kernels ----------------------------------------------------------------------------------

LINEARS, ATTENTION, OTHERS = "linears", "attention", "other operations"
COPIES, LAUNCHES, COLLECTIVES = "copies", "launches", "collectives"
Kernel = tuple[str, int, str, str]
"""Part of the model, how often it runs, then kernel and shapes of its row."""


def kernels_of(shape: DecoderShape, batch: int, tokens: int, context: int) -> Iterator[Kernel]:
    """Yield the kernels of one forward pass of ``tokens`` new tokens per sequence, each of which
    attends to at most ``context`` tokens. The head computes the last token only.
    """
    rows, layers, hidden = batch * tokens, shape.layers, shape.hidden
    width, narrow = shape.heads * shape.depth, shape.kv_heads * shape.depth
    used = min(shape.experts, rows * shape.chosen)
    each = -(-rows * shape.chosen // used)
    for times, m, n, k in (
        (layers, rows, width, hidden),
        (2 * layers, rows, narrow, hidden),
        (layers, rows, hidden, width),
        (layers * used * (shape.matrices - 1), each, shape.inner, hidden),
        (layers * used, each, hidden, shape.inner),
        (1, batch, shape.vocabulary, hidden),
    ):
        yield LINEARS, times, "linear", f"M{m} N{n} K{k}"
    yield from _attention(shape, batch, tokens, context)
    for kernel in ("mul", "mean", "bcastcol", "bcast", "add"):  # two norms, two sums
        yield OTHERS, 2 * layers, kernel, f"{rows}x{hidden}"
    for kernel in ("silu", "mul")[: shape.matrices - 1]:
        yield OTHERS, layers, kernel, f"{each * used}x{shape.inner}"


def _attention(shape: DecoderShape, batch: int, tokens: int, context: int) -> Iterator[Kernel]:
    """Attention of all layers. Heads that share keys are rows of one product."""
    groups, rows = batch * shape.kv_heads, shape.heads // shape.kv_heads * tokens
    layers, scores = shape.layers, f"{groups * rows}x{context}"
    yield ATTENTION, layers, "scores", f"B{groups} M{rows} N{context} K{shape.depth}"
    yield ATTENTION, layers, "mul by 2.0", scores
    yield ATTENTION, layers, "softmax", scores
    yield ATTENTION, layers, "values", f"B{groups} M{rows} N{shape.depth} K{context}"
    queries, keys = (f"{batch * tokens}x{n * shape.depth}" for n in (shape.heads, shape.kv_heads))
    for kernel in ("cat1", "bcast", "bcast", "add"):  # rotations
        yield ATTENTION, layers, kernel, queries
        yield ATTENTION, layers, kernel, keys
    yield COPIES, 2 * layers, "transpose_outer", queries  # heads first, and back
    yield COPIES, layers, "transpose", keys  # keys and values into their cache
    yield COPIES, layers, "copy", keys


# --- times ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PassTime:
    """One forward pass. ``parts_us``: microseconds by part; ``spread``: error of the classes of its
    kernels, relative, weighted by their times.
    """

    parts_us: Mapping[str, float]
    spread: float

    @property
    def us(self) -> float:
        """All parts."""
        return sum(self.parts_us.values())


@dataclass(frozen=True, kw_only=True)
class ModelEstimate:
    """Modelled times of a model on ``cards`` cards: a prompt of ``prompt`` tokens for each of
    ``batch`` sequences, then one token more for each.
    """

    model: str
    cards: int
    batch: int
    prompt: int
    dtype: str
    lx_fraction: float
    prefill: PassTime
    token: PassTime

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
    prefill, token = (
        _pass_time(shape, cards, (batch, tokens, context), dtype, machine)
        for tokens, context in ((prompt, prompt), (1, prompt + 1))
    )
    lx = machine.hardware.lx_fraction
    return ModelEstimate(
        model=model, dtype=dtype, lx_fraction=lx, prefill=prefill, token=token, **numbers
    )


def _pass_time(
    shape: DecoderShape, cards: int, sizes: tuple[int, int, int], dtype: str, machine: MachineSpec
) -> PassTime:
    part, (batch, tokens, _) = shape.of_card(cards), sizes
    kernels = list(kernels_of(part, *sizes))
    linears = "fp8 relayout over LX" if dtype == "fp8" else dtype
    lines = ["kernel,shapes,dtype,split,cores,note"]
    for name, _, kernel, shapes in kernels:
        lines.append(f"{kernel},{shapes},{linears if name == LINEARS else ''},,,LX planning on")
    rows = parse_rows("\n".join(lines), shape.name)
    found = [estimate(row, machine) for row in rows]
    times = [count * (each.us or 0.0) for (_, count, *_), each in zip(kernels, found, strict=True)]
    parts = dict.fromkeys((LINEARS, ATTENTION, OTHERS, COPIES), 0.0)
    for (name, *_), us in zip(kernels, times, strict=True):
        parts[name] += us
    parts[COPIES] += copy_out_ns(2 * batch * part.vocabulary, machine) / 1e3
    parts[LAUNCHES] = machine.hardware.launch_us * (shape.layers + 2)
    if cards > 1:
        all_reduce = fastest_time("all_reduce", 2 * batch * tokens * shape.hidden, cards, machine)
        parts[COLLECTIVES] = 2 * shape.layers * all_reduce.total_ns / 1e3
    spreads = zip(times, (each.spread for each in found), strict=True)
    return PassTime(parts, mean_spread(spreads) or 0.0)
