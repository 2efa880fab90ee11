"""Run twelve models forward, backward and compiled on the device, and compare with the CPU.

Errors are root mean squares, relative to those of the CPU's float32 results; of gradients, over all
parameters. With ``--docs`` a second process runs them with SPYRE_NUMERICS=ieee. Exit codes: 0 when
results are as close as their format allows, 1 when one is not, 2 when a model could not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from spyre.torch_backend import autoload

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- models -->", "<!-- end -->"
FORWARD = 6 * 2.0**-9
"""Most error of results in DL16."""
GRADIENTS = 8
"""Multiple of `FORWARD` for gradients, which are rounded twice as often and whose sums cancel."""
IEEE = 1e-3
"""Most error with SPYRE_NUMERICS=ieee beyond the error of float16 on the CPU."""
KINDS = ("forward", "backward", "compiled")


@dataclass
class Outcome:
    """Results of one model. ``errors``: by kind; ``half``: error of float16 on the CPU.
    ``fallbacks``: calls and seconds on the CPU by kind and operation. ``seconds``: of a warm call
    by kind. ``fault``: reason why it could not run.
    """

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    half: float = 0.0
    fallbacks: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    fault: str = ""

    def is_close(self, bound: float) -> bool:
        """True if every error is within ``bound``; `GRADIENTS` times that for gradients."""
        bounds = {"backward": GRADIENTS * bound}
        return all(e <= bounds.get(kind, bound) for kind, e in self.errors.items())


def _relative(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    flat = torch.cat([t.detach().cpu().double().reshape(-1) for t in found])
    like = torch.cat([t.detach().cpu().double().reshape(-1) for t in wanted])
    return float((flat - like).norm() / like.norm())


def _gradients(model: nn.Module, call: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of all parameters that have one; the loss is the mean square output."""
    model.zero_grad()
    result = call()
    (result.float() * result.float()).mean().backward()
    torch.spyre.synchronize()
    return [p.grad for p in model.parameters() if p.grad is not None]


def run_model(case: object, kinds: tuple[str, ...] = KINDS) -> Outcome:
    """Run one model of `cases.CASES` on the CPU, then on the device."""
    outcome = Outcome(case.name)
    inputs = case.inputs()
    reference = case.build()
    torch.compiler.reset()  # else code that models share is compiled for eight of them only
    with torch.no_grad():
        logits = reference(**inputs).logits
        halves = {n: t.half() if t.is_floating_point() else t for n, t in inputs.items()}
        outcome.half = _relative([case.build().half()(**halves).logits], [logits])
    gradients = []
    if "backward" in kinds:
        gradients = _gradients(reference, lambda: reference(**inputs).logits)
    model = case.build().to("spyre", torch.float16)
    given = {
        name: t.to("spyre", torch.float16 if t.is_floating_point() else t.dtype)
        for name, t in inputs.items()
    }
    compiled = torch.compile(model)

    @torch.no_grad()
    def forward() -> list[torch.Tensor]:
        return [model(**given).logits]

    @torch.no_grad()
    def forward_compiled() -> list[torch.Tensor]:
        return [compiled(**given).logits]

    def backward() -> list[torch.Tensor]:
        return _gradients(model, lambda: model(**given).logits)

    calls = {"forward": forward, "backward": backward, "compiled": forward_compiled}
    for kind in kinds:
        wanted = gradients if kind == "backward" else [logits]
        _observe(outcome, kind, calls[kind], wanted)
    return outcome


def _observe(
    outcome: Outcome,
    kind: str,
    call: Callable[[], list[torch.Tensor]],
    wanted: list[torch.Tensor],
) -> None:
    outcome.errors[kind] = _relative(call(), wanted)
    torch.spyre.reset_fallbacks()
    start = time.perf_counter()
    call()
    torch.spyre.synchronize()
    outcome.seconds[kind] = time.perf_counter() - start
    counts, seconds = torch.spyre.fallbacks(), torch.spyre.fallback_seconds()
    outcome.fallbacks[kind] = {n: (count, seconds[n]) for n, count in counts.items()}


def table(outcomes: list[Outcome], in_ieee: Mapping[str, str] | None = None) -> str:
    """Return the outcomes as a Markdown table. ``in_ieee``: errors with IEEE numbers by model."""
    heads = ["model", "forward", "gradients", "compiled", "ieee", "float16 on the CPU"]
    heads.append("on the CPU, with its share of the time")
    rows = [heads, ["---"] * len(heads)]
    for outcome in outcomes:
        errors = [f"{outcome.errors[k]:.1e}" if k in outcome.errors else "" for k in KINDS]
        half = f"{outcome.half:.1e}" if outcome.half else ""
        ieee = (in_ieee or {}).get(outcome.name, "")
        rows.append([outcome.name, *errors, ieee, half, _stays(outcome)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _errors_in_ieee(names: list[str]) -> dict[str, str]:
    """Return the forward errors that another process with SPYRE_NUMERICS=ieee prints."""
    command = [sys.executable, "-m", "qa.models", "--kinds", "forward", "--only", *names]
    variables = {**os.environ, "SPYRE_NUMERICS": "ieee"}
    run = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True)
    rows = [line.split(" | ") for line in run.stdout.splitlines()[2:]]
    return {row[0].removeprefix("| "): row[1] for row in rows}


def _stays(outcome: Outcome) -> str:
    if outcome.fault:
        return outcome.fault
    texts = []
    for kind, calls in outcome.fallbacks.items():
        total = outcome.seconds[kind]
        names = [f"`{n}` {count} × {s / total:.0%}" for n, (count, s) in calls.items()]
        if names:
            texts.append(f"{kind}: {', '.join(names)}")
    return "; ".join(texts) or "nothing"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.models", description=__doc__)
    parser.add_argument("--only", metavar="NAME", nargs="*", help="models to run (default: all)")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--docs", action="store_true", help="write the table of docs/models.md")
    options = parser.parse_args(arguments)
    autoload()
    warnings.simplefilter("ignore")
    from qa.models.cases import CASES

    chosen = [c for c in CASES if not options.only or c.name in options.only]
    outcomes = []
    for case in chosen:
        print(case.name, file=sys.stderr, flush=True)
        try:
            outcomes.append(run_model(case, tuple(options.kinds)))
        except Exception as error:
            lines = str(error).splitlines() or [""]
            outcomes.append(Outcome(case.name, fault=f"{type(error).__name__}: {lines[0][:100]}"))
    in_ieee = _errors_in_ieee([case.name for case in chosen]) if options.docs else None
    text = table(outcomes, in_ieee)
    print(text)
    if options.docs:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")
    if any(o.fault for o in outcomes):
        return 2
    is_ieee = os.environ.get("SPYRE_NUMERICS", "").startswith("ieee")
    return 0 if all(o.is_close(o.half + IEEE if is_ieee else FORWARD) for o in outcomes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
