"""Several clients at once ask a server of vLLM; its tokens are compared with the CPU's float16.

    python examples/serving/ask.py models/granite --tokens 8

It waits for the server. Each client reads its answer as a stream, then asks again and reads it
whole. The server has to run in number mode ieee (SPYRE_NUMERICS=ieee) for equal tokens. Exit code
1 if an answer differs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = (
    "What are IBM's main businesses?",
    "Hello, my name is",
    "x",
    "The capital of France is a city on a river, and its name is known to all who read this. " * 2,
)


@dataclass
class Answer:
    """Tokens of an answer, and the seconds from the question to each of them."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def wait_for(address: str, seconds: float) -> None:
    """Until the server answers; SystemExit after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection = http.client.HTTPConnection(address)
        with suppress(ConnectionError):  # while it loads the model
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        time.sleep(1)
    raise SystemExit(f"{address}: no server after {seconds:.0f} s")


def ask(address: str, model: str, prompt: str, count: int, *, stream: bool) -> Answer:
    """One completion: piece by piece as the server sends it, or whole."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 0.0,
        "stream": stream,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    begin, answer = time.monotonic(), Answer()
    connection = http.client.HTTPConnection(address)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{address}: {response.status} {response.read().decode()}")
    for line in response:  # a whole answer is one line
        text = line.decode().removeprefix("data: ").strip()
        if text and text != "[DONE]":
            (choice,) = json.loads(text)["choices"]
            answer.tokens += choice.get("token_ids") or []
            answer.seconds.append(time.monotonic() - begin)
    return answer


def on_the_cpu(model: str, prompt: str, count: int) -> list[int]:
    """What transformers generates in float16."""
    tokens = AutoTokenizer.from_pretrained(model)(prompt, return_tensors="pt").input_ids
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float16)
    network.generation_config.eos_token_id = None  # as ignore_eos
    found = network.generate(tokens, do_sample=False, max_new_tokens=count)
    return list(found[0, tokens.shape[1] :].tolist())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="its folder, which is its name at the server too")
    parser.add_argument("--address", default="localhost:8000")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--wait", type=float, default=900, help="seconds until the server answers")
    options = parser.parse_args()
    wait_for(options.address, options.wait)
    expected = [on_the_cpu(options.model, prompt, options.tokens) for prompt in PROMPTS]
    wrong = 0
    for stream in (True, False):
        print("streamed:" if stream else "whole:")
        question = partial(ask, options.address, options.model, count=options.tokens, stream=stream)
        with ThreadPoolExecutor(len(PROMPTS)) as clients:
            answers = list(clients.map(question, PROMPTS))
        for prompt, answer, tokens in zip(PROMPTS, answers, expected, strict=True):
            times = f"first after {answer.seconds[0]:.2f} s, all after {answer.seconds[-1]:.2f} s"
            print(f"{len(prompt):>4} characters: {answer.tokens}, {times}")
            if answer.tokens != tokens:
                wrong += 1
                print(f"{'':>10} the CPU has {tokens}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
