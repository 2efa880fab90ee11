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
from functools import cache, partial
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import msgspec
import numpy as np

from spyre.errors import EstimateError, JsonLocation
from spyre.files import FieldError, convert_fields, read_regular
from spyre.hw.cost.collectives import fastest_time
from spyre.hw.cost.divisions import CLOSE
from spyre.hw.cost.machine import MachineSpec, default_machine
from spyre.hw.cost.models import KernelTime, copy_out_ns, kernel_ns, mean_spread, measured_class
from spyre.hw.cost.rows import KernelRow, counts_of, parse_rows, read_rows


class Estimate(msgspec.Struct, frozen=True):
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


class ClassError(msgspec.Struct, frozen=True):
    """Relative errors of a class: median and 90th percentile of magnitudes (``tenth``: a tenth is
    larger), and the signed median.
    """

    name: str
    rows: int
    median: float
    tenth: float
    bias: float


class Choice(msgspec.Struct, frozen=True):
    """One problem and its measured divisions. ``cost``: the measured time of the one that the model
    chooses over that of the fastest, less 1. ``pairs``: those whose times on the card differ by
    more than `CLOSE`; ``ordered``: those of them that the model puts in the same order.
    ``is_close``: its two best are too close to call.
    """

    title: str
    rows: int
    chosen: str
    best: str
    cost: float
    ordered: int
    pairs: int
    is_close: bool


class Estimates(msgspec.Struct, frozen=True):
    """Modelled times of the rows of a file, in its order."""

    rows: tuple[Estimate, ...]

    @property
    def compared(self) -> list[Estimate]:
        """Rows with both times, outliers left out."""
        return [e for e in self.rows if e.error is not None and "outlier" not in e.row.note]

    @property
    def errors(self) -> tuple[ClassError, ...]:
        """Errors by class of the file, then of all rows."""
        groups: dict[str, list[float]] = {}
        for each in self.compared:
            for name in (each.row.cells.get("group") or each.row.kernel, "all"):
                groups.setdefault(name, []).append(each.error or 0.0)
        every = groups.pop("all", None)
        groups |= {"all": every} if every else {}
        found = []
        for name, errors in groups.items():
            median, tenth = np.quantile(np.abs(errors), (0.5, 0.9)).tolist()
            found.append(ClassError(name, len(errors), median, tenth, float(np.median(errors))))
        return tuple(found)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Problems with more than one measured division."""
        problems: dict[object, list[Estimate]] = {}
        for each in self.compared:
            if (row := each.row).split is not None:
                stated = (row.cells.get(name) for name in ("source", "shapes", "dtype"))
                key = ("3d2d" in row.kernel, row.lx_fraction, *stated)
                problems.setdefault(key, []).append(each)
        return tuple(choice(rows) for rows in problems.values() if len(rows) > 1)


def choice(rows: Sequence[Estimate]) -> Choice:
    """Return the division of one problem that the model finds fastest, among the measured ones."""
    times = [(each.us or 0.0, each.row.us or 0.0) for each in rows]
    chosen, second = sorted(range(len(rows)), key=lambda k: times[k][0])[:2]
    best = min(range(len(rows)), key=lambda k: times[k][1])
    apart = [
        (a[0] < b[0]) == (a[1] < b[1])
        for a, b in combinations(times, 2)
        if max(a[1], b[1]) > (1 + CLOSE) * min(a[1], b[1])
    ]
    row = rows[0].row
    return Choice(
        f"{row.kernel} {row.cells['shapes']} {row.cells['dtype']}",
        len(rows),
        rows[chosen].row.title,
        rows[best].row.title,
        times[chosen][1] / times[best][1] - 1.0,
        sum(apart),
        len(apart),
        times[second][0] < (1 + CLOSE) * times[chosen][0],
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

Family = Literal[
    "granite", "llama", "mistral", "qwen2", "qwen3", "granitemoe", "mixtral", "qwen3_moe", "gpt2"
]
OTHER_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "num_experts": "num_local_experts",
    "moe_intermediate_size": "intermediate_size",
}
"""Sizes in a config.json under the names of some families."""
Size = Annotated[int, msgspec.Meta(ge=1)]


class DecoderShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a decoder as its config.json has them. ``num_local_experts``: MLPs per layer, of
    which a token takes ``num_experts_per_tok``.
    """

    model_type: Family
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size
    vocab_size: Size
    intermediate_size: Size | None = None
    head_dim: Size | None = None
    num_local_experts: Size = 1
    num_experts_per_tok: Size = 1

    @property
    def depth(self) -> int:
        """Elements of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def inner(self) -> int:
        """Columns of an MLP."""
        return self.intermediate_size or 4 * self.hidden_size

    def of_card(self, name: str, cards: int) -> DecoderShape:
        """One card's part where heads, columns of MLPs and words are divided among ``cards``."""
        heads = self.num_attention_heads
        if heads % cards or self.inner % cards:
            _wrong(name, f"cards that divide {heads} heads", str(cards))
        return msgspec.structs.replace(
            self,
            num_attention_heads=heads // cards,
            num_key_value_heads=-(-self.num_key_value_heads // cards),
            head_dim=self.depth,
            intermediate_size=self.inner // cards,
            vocab_size=-(-self.vocab_size // cards),
        )


def decoder_shape(model: str) -> DecoderShape:
    """The sizes of a model: a known name, a config.json, or a directory with one.

    EstimateError SPY768 for an unknown name or family, an unreadable file, or a missing key.
    """
    text = resources.files("spyre.hw.cost").joinpath("configurations.toml").read_text("utf-8")
    named = tomllib.loads(text)
    config = named.get(model.lower())
    if config is None:
        path = Path(model)
        try:
            config = json.loads(read_regular(path / "config.json" if path.is_dir() else path))
        except (OSError, ValueError) as error:
            known = ", ".join(named)
            _wrong(model, f"a config.json, a directory with one, or one of {known}", str(error))
    if isinstance(config, dict):
        config |= {OTHER_NAMES[name]: size for name, size in config.items() if name in OTHER_NAMES}
        config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    try:
        return convert_fields(config, DecoderShape)
    except FieldError as error:
        path_to = error.path.removeprefix(".") or "the file"
        _wrong(model, f"{path_to}: {error.expected}", repr(error.found))


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
    rows, layers, hidden = batch * tokens, shape.num_hidden_layers, shape.hidden_size
    width, narrow = (
        n * shape.depth for n in (shape.num_attention_heads, shape.num_key_value_heads)
    )
    matrices = 2 if shape.model_type == "gpt2" else 3
    chosen = rows * shape.num_experts_per_tok
    used = min(shape.num_local_experts, chosen)
    each = -(-chosen // used)
    for times, m, n, k in (
        (layers, rows, width, hidden),
        (2 * layers, rows, narrow, hidden),
        (layers, rows, hidden, width),
        (layers * used * (matrices - 1), each, shape.inner, hidden),
        (layers * used, each, hidden, shape.inner),
        (1, batch, shape.vocab_size, hidden),
    ):
        yield LINEARS, times, "linear", f"M{m} N{n} K{k}"
    yield from _attention(shape, batch, tokens, context)
    for kernel in ("mul", "mean", "bcastcol", "bcast", "add"):  # two norms, two sums
        yield OTHERS, 2 * layers, kernel, f"{rows}x{hidden}"
    for kernel in ("silu", "mul")[: matrices - 1]:
        yield OTHERS, layers, kernel, f"{each * used}x{shape.inner}"


def _attention(shape: DecoderShape, batch: int, tokens: int, context: int) -> Iterator[Kernel]:
    """Attention of all layers. Heads that share keys are rows of one product."""
    heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
    layers = shape.num_hidden_layers
    groups, rows = batch * kv_heads, heads // kv_heads * tokens
    scores = f"{groups * rows}x{context}"
    yield ATTENTION, layers, "scores", f"B{groups} M{rows} N{context} K{shape.depth}"
    yield ATTENTION, layers, "mul by 2.0", scores
    yield ATTENTION, layers, "softmax", scores
    yield ATTENTION, layers, "values", f"B{groups} M{rows} N{shape.depth} K{context}"
    queries, keys = (f"{batch * tokens}x{n * shape.depth}" for n in (heads, kv_heads))
    for kernel in ("cat1", "bcast", "bcast", "add"):  # rotations
        yield ATTENTION, layers, kernel, queries
        yield ATTENTION, layers, kernel, keys
    yield COPIES, 2 * layers, "transpose_outer", queries  # heads first, and back
    yield COPIES, layers, "transpose", keys  # keys and values into their cache
    yield COPIES, layers, "copy", keys


# --- times ------------------------------------------------------------------------------------


class PassTime(msgspec.Struct, frozen=True):
    """One forward pass. ``parts_us``: microseconds by part; ``spread``: error of the classes of its
    kernels, relative, weighted by their times.
    """

    parts_us: Mapping[str, float]
    spread: float

    @property
    def us(self) -> float:
        """All parts."""
        return sum(self.parts_us.values())


class ModelEstimate(msgspec.Struct, frozen=True, kw_only=True):
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
    shape = decoder_shape(model).of_card(model, cards)
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
    """The time of one card's part of the model. ``sizes``: batch, tokens, context."""
    (batch, tokens, _), kernels = sizes, list(kernels_of(shape, *sizes))
    linears = "fp8 relayout over LX" if dtype == "fp8" else dtype
    lines = ["kernel,shapes,dtype,split,cores,note"]
    for name, _, kernel, shapes in kernels:
        lines.append(f"{kernel},{shapes},{linears if name == LINEARS else ''},,,LX planning on")
    found = [estimate(row, machine) for row in parse_rows("\n".join(lines), "")]
    times = [count * (each.us or 0.0) for (_, count, *_), each in zip(kernels, found, strict=True)]
    parts = dict.fromkeys((LINEARS, ATTENTION, OTHERS, COPIES), 0.0)
    for (name, *_), us in zip(kernels, times, strict=True):
        parts[name] += us
    parts[COPIES] += copy_out_ns(2 * batch * shape.vocab_size, machine) / 1e3
    parts[LAUNCHES] = machine.hardware.launch_us * (shape.num_hidden_layers + 2)
    if cards > 1:
        size_bytes = 2 * batch * tokens * shape.hidden_size
        all_reduce_ns = fastest_time("all_reduce", size_bytes, cards, machine).total_ns
        parts[COLLECTIVES] = 2 * shape.num_hidden_layers * all_reduce_ns / 1e3
    spreads = zip(times, (each.spread for each in found), strict=True)
    return PassTime(parts, mean_spread(spreads) or 0.0)
