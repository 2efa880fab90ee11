"""A decoder that generates tokens one by one: `python -m benchmarks decode`.

A Llama of transformers with random weights and a static cache: the step of one token and the
prefill of a prompt, eager and compiled, on the card in float16 and on the CPU in float32; the step
on the card replayed too (`torch.spyre.graph`). Also the numbers of launches and of operations on
the CPU in an eager step on the card, and a recurrent cell over a sequence.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.results import Measurement, ratio
from benchmarks.sampling import progress, reference, sweeps
from benchmarks.suite import SectionError
from spyre.torch_backend import autoload
from spyre.torch_backend.inductor.design_point import forget_compiled

HIDDEN, LAYERS, CACHE, PROMPT = 512, 8, 256, 128
QUICK_HIDDEN, QUICK_LAYERS = 128, 1
ROUNDS, QUICK_ROUNDS, PREFILLS = 16, 5, 5
PAUSE_SECONDS = 0.02
SEQUENCE, FEATURES = 32, 64
Call = Callable[[], object]
CARD, CPU = "spyre", "cpu"


def configuration(hidden: int, layers: int) -> Any:
    """Return the model's configuration: heads of 64, half as many of keys and values."""
    try:
        from transformers import LlamaConfig
    except ImportError as error:
        raise SectionError("decode needs transformers (extra test)") from error
    heads = hidden // 64
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        num_hidden_layers=layers,
        vocab_size=1024,
        max_position_embeddings=2 * CACHE,
    )


class Decoder:
    """A model with its cache, on the device of its weights."""

    def __init__(self, model: Any, is_compiled: bool) -> None:
        from transformers import StaticCache

        config, weight = model.config, next(model.parameters())
        self.device = weight.device
        self.call = torch.compile(model, dynamic=False, fullgraph=True) if is_compiled else model
        self.cache = StaticCache(config=config, max_cache_len=CACHE)
        heads, depth = config.num_key_value_heads, config.head_dim
        self.cache.early_initialization(1, heads, depth, weight.dtype, self.device)
        self.prompt = self._inputs(list(range(PROMPT)), list(range(PROMPT)))
        self.token = self._inputs([5], [PROMPT])

    def _inputs(self, tokens: list[int], positions: list[int]) -> Mapping[str, torch.Tensor]:
        given = {"input_ids": tokens, "position_ids": positions}
        return {name: torch.tensor([values]).to(self.device) for name, values in given.items()}

    def rewind(self, tokens: int) -> None:
        """Set the length of the cache to ``tokens``."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(tokens)
        self.wait()

    def wait(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == CARD:
            torch.spyre.synchronize()

    @torch.no_grad()
    def logits(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the logits of all positions of ``inputs``."""
        found: torch.Tensor = self.call(**inputs, past_key_values=self.cache, use_cache=True).logits
        return found

    def step(self) -> None:
        """Run the step of one token and wait for it."""
        self.logits(self.token)
        self.wait()

    def prefill(self) -> None:
        """Run the prompt into the empty cache and wait for it."""
        self.rewind(0)
        self.logits(self.prompt)
        self.wait()

    def replayed(self) -> Call:
        """Return a function that replays a recorded step."""
        with torch.spyre.graph() as graph:
            self.logits(self.token)

        def replay() -> None:
            graph.replay()
            self.wait()

        return replay


def measure(quick: bool) -> Iterator[Measurement]:
    """Measure the decoder in all forms, then the cell."""
    autoload()
    torch.manual_seed(0)
    from transformers import LlamaForCausalLM

    size = (QUICK_HIDDEN, QUICK_LAYERS) if quick else (HIDDEN, LAYERS)
    on_cpu = LlamaForCausalLM(configuration(*size)).eval()
    models = {CPU: on_cpu, CARD: copy.deepcopy(on_cpu).half().to(CARD)}
    decoders = {
        f"{device}, {form}": Decoder(model, form == "compiled")
        for form in ("eager", "compiled")
        for device, model in models.items()
    }
    rounds = QUICK_ROUNDS if quick else ROUNDS
    yield from _first_calls(decoders)
    steps: dict[str, Call] = {name: decoder.step for name, decoder in decoders.items()}
    for form in ("eager", "compiled"):
        steps[f"{CARD}, {form}, replayed"] = decoders[f"{CARD}, {form}"].replayed()
    times = sweeps({"step": steps}, rounds, PAUSE_SECONDS, 0.0)
    prefills: dict[str, Call] = {name: decoder.prefill for name, decoder in decoders.items()}
    few = min(rounds, PREFILLS)
    times |= sweeps({"prefill": prefills}, few, PAUSE_SECONDS, 0.0)
    for what, found in times.items():
        for name, seconds in found.items():
            milliseconds = tuple(s * 1e3 for s in seconds)
            compared = name.startswith(CARD)
            yield Measurement(f"{what}: {name}", "ms", milliseconds, compared=compared)
            if compared:
                others = found[f"{CPU}, {name.split(', ')[1]}"]
                yield ratio(f"{what}: {name}: against {CPU}", others, seconds)
    yield from _parts(decoders[f"{CARD}, eager"])
    yield from _cell(rounds)
    forget_compiled()


def _first_calls(decoders: Mapping[str, Decoder]) -> Iterator[Measurement]:
    """Measure first calls, which compile, and the logits' errors against the first decoder."""
    expected: list[torch.Tensor] = []
    for name, decoder in decoders.items():
        progress.at(f"{name}: first prefill and step")
        begin = time.perf_counter()
        decoder.rewind(0)
        found = [decoder.logits(inputs).float().cpu() for inputs in (decoder.prompt, decoder.token)]
        elapsed = time.perf_counter() - begin
        expected = expected or found
        pairs = zip(found, expected, strict=True)
        error = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        yield Measurement(f"{name}: first prefill and step", "s", (elapsed,), compared=False)
        yield Measurement(f"{name}: worst error", "", (error,), exact=True, target=0.05)
        reference.tick()


def _parts(decoder: Decoder) -> Iterator[Measurement]:
    """Count launches and operations on the CPU in an eager step."""
    torch.spyre.reset_fallbacks()
    decoder.rewind(PROMPT)
    with torch.spyre.counting() as counted:
        decoder.logits(decoder.token)
        decoder.wait()
    fallbacks = sum(torch.spyre.fallbacks().values())
    yield Measurement("eager step: launches", "", (counted.launches,), exact=True)
    yield Measurement("eager step: operations on the CPU", "", (fallbacks,), exact=True, target=0)


def _cell(rounds: int) -> Iterator[Measurement]:
    """Measure an LSTM over a sequence of one row."""
    on_cpu = torch.nn.LSTM(FEATURES, FEATURES).eval()
    on_card = copy.deepcopy(on_cpu).half().to(CARD)
    x = torch.randn(SEQUENCE, 1, FEATURES)
    sides: dict[str, Call] = {
        CARD: partial(_cell_call, on_card, x.half().to(CARD)),
        CPU: partial(_cell_call, on_cpu, x),
    }
    name = f"LSTM, {SEQUENCE} steps of {FEATURES}"
    for side, seconds in sweeps({name: sides}, rounds, PAUSE_SECONDS)[name].items():
        milliseconds = tuple(s * 1e3 for s in seconds)
        yield Measurement(f"{name}: {side}", "ms", milliseconds, compared=side == CARD)
    with torch.spyre.counting() as counted:
        sides[CARD]()
    yield Measurement(f"{name}: launches", "", (counted.launches,), exact=True)


@torch.no_grad()
def _cell_call(cell: torch.nn.Module, x: torch.Tensor) -> None:
    cell(x)
    if x.device.type == CARD:
        torch.spyre.synchronize()
