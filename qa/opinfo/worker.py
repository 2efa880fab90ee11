"""A worker process: reads operators from standard input, a JSON line each, and answers in JSON.

Answers go to the original standard output, the output of operators to standard error. Lines:
``{"event": "ready"}`` once, then per request ``{"event": "sample", …}`` before each sample and
``{"event": "result", …}`` at the end.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import warnings
from typing import IO, Any

from qa.opinfo.outcome import RAISED, OpResult, SampleResult, summarised
from qa.opinfo.run_op import run_op
from qa.opinfo.samples import DATABASE, load_database
from qa.opinfo.target import Target


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    faulthandler.enable()
    warnings.filterwarnings("ignore")
    target = Target(options.device)
    database = load_database(options.database)
    _say(answers, event="ready")
    for line in sys.stdin:
        request = json.loads(line)
        result = _answer(database[request["op"]], request, target, options.limit, answers)
        _say(answers, event="result", result=result.as_json())
    return 0


def _answer(
    op: Any, request: dict[str, str], target: Target, limit: int | None, answers: IO[str]
) -> OpResult:
    """Return the result of one operator; an error in making its samples becomes ``raised``."""

    def progress(index: int, sample: str) -> None:
        _say(answers, event="sample", index=index, sample=sample)

    try:
        return run_op(op, request["dtype"], target, limit, progress, request["way"])
    except Exception as error:
        reason = f"the runner failed: {type(error).__name__}: {error}"
        failure = SampleResult(-1, RAISED, reason)
        return summarised(request["op"], request["dtype"], [failure], {}, 0.0, request["way"])


def _say(answers: IO[str], **message: Any) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m qa.opinfo.worker", description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--database", default=DATABASE)
    parser.add_argument("--limit", type=int, default=None)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
