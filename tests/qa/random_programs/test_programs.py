"""Random programs: the same for a seed, right where nothing is wrong, small where something is."""

from __future__ import annotations

import io

import pytest
import torch

from qa.random_programs import comparison, shrink
from qa.random_programs.__main__ import Progress
from qa.random_programs.comparison import Failure, difference, eager_failure, first_failure
from qa.random_programs.generate import random_program
from qa.random_programs.programs import (
    FLOAT,
    HALF,
    INT,
    Input,
    Program,
    Statement,
    input_tensors,
)
from qa.random_programs.runner import Outcome, batches

NEAR = Statement("t", "x", ("x",), "near")


def test_a_seed_is_one_program():
    programs = [str(random_program(seed)) for seed in range(8)]
    assert programs == [str(random_program(seed)) for seed in range(8)]
    assert len(set(programs)) == 8


def test_programs_run_on_the_cpu_and_use_many_forms():
    texts = ""
    for seed in range(300):
        program = random_program(seed)
        results = program.function()(*input_tensors(program, "cpu").values())
        assert len(results) == len(program.names)
        assert all(torch.isfinite(t).all() for t in results if t.is_floating_point())
        texts += program.source()
    for word in ("@", "sum(", "transpose", "cat(", "_(", "where(", "float32", "[..., ::2]"):
        assert word in texts, word


def test_results_do_not_depend_on_the_order_of_writes():
    """In-place writes of eager mode agree with a functional form. 4001497 added a tensor's diagonal
    to it, which failed before sources in the same memory were copied.
    """
    for seed in (4001497, *range(20)):
        program = random_program(seed)
        functional = torch.func.functionalize(program.function())
        found, expected = (
            run(*(x.clone() for x in input_tensors(program, "cpu").values()))
            for run in (program.function(), functional)
        )
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01, equal_nan=True)


def test_a_right_program_has_no_failure():
    inputs = (Input("x", (3, 70), HALF, 1), Input("y", (70,), HALF, 2))
    statements = (
        Statement("a", "x + y", ("x", "y"), "near"),
        Statement("", "a.narrow(1, 3, 60).mul_(2.0)", ("a",), "near"),
        Statement("b", "torch.softmax(a, -1)", ("a",), "sum"),
    )
    assert first_failure(Program(0, inputs, statements)) is None


def test_a_wrong_result_names_its_statement(monkeypatch: pytest.MonkeyPatch):
    run = comparison.execute

    def wrong(statement, scope):
        run(statement, scope)
        if statement.target == "b" and scope["b"].device.type == "spyre":
            scope["b"] = scope["b"] + 1

    monkeypatch.setattr(comparison, "execute", wrong)
    statements = tuple(Statement(name, "x * 2.0", ("x",), "near") for name in "abc")
    failure = eager_failure(Program(0, (Input("x", (4, 5), HALF, 1),), statements))
    assert failure is not None
    assert failure.kind == "different"
    assert failure.statement == statements[1]
    assert "20 of 20 differ" in failure.text


def test_roundings_are_no_difference():
    expected = torch.tensor([1.0, 100.0]).half()
    assert not difference(expected * (1 + 2.0**-9), expected, NEAR, [expected])
    assert difference(expected * 1.1, expected, NEAR, [expected])
    assert difference(expected.float(), expected, NEAR, [expected])


def test_the_log_of_a_rounded_number_is_as_far_off_as_that_was():
    values = (torch.arange(1, 65) / 640).half()
    inputs, found = [values], (values.float() * (1 + 2.0**-9) + 2.0**-10).half()
    assert difference(found, values, NEAR, inputs)
    assert not difference(found, values, Statement("t", "x", ("x",), "log"), inputs)
    assert difference(values + 0.1, values, Statement("t", "x", ("x",), "log"), inputs)


def test_the_card_is_right_where_torch_is_not():
    """torch's float32 gelu is 3e-4 off here."""
    statement = Statement("y", "F.gelu(x)", ("x",), "near")
    assert eager_failure(Program(0, (Input("x", (64, 65), FLOAT, 5),), (statement,))) is None
    x = torch.tensor([-3.6])
    right = torch.nn.functional.gelu(x.double()).float()
    assert torch.equal(comparison.computed_in_double(statement, [x]).float(), right)


def test_progress_is_told_on_a_terminal_alone():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, text in ((io.StringIO(), ""), (Terminal(), "\r2 of 3 programs, 1 find, ")):
        progress = Progress(3, stream)
        progress.note(Outcome(0, "dl16"))
        progress.note(Outcome(1, "dl16", "different", "t: wrong"))
        assert text in stream.getvalue()
        assert bool(text) == bool(stream.getvalue())


def test_seeds_run_in_batches():
    pieces = list(batches(range(7, 1007, 2), 200))
    assert [len(piece) for piece in pieces] == [200, 200, 100]
    assert [seed for piece in pieces for seed in piece] == list(range(7, 1007, 2))


def test_shrinking_keeps_what_fails(monkeypatch: pytest.MonkeyPatch):
    def fails_with_sum(program: Program) -> Failure | None:
        guilty = any("sum" in s.text for s in program.statements)
        return Failure("eager", "different", "t: wrong") if guilty else None

    monkeypatch.setattr(shrink, "first_failure", fails_with_sum)
    statements = (
        Statement("a", "x + 1", ("x",), "near"),
        Statement("b", "a * 2", ("a",), "near"),
        Statement("c", "b.sum()", ("b",), "sum"),
        Statement("d", "a - 3", ("a",), "near"),
    )
    program = Program(0, (Input("x", (2,), HALF, 1),), statements)
    smaller, failure = shrink.shrunk(program, Failure("eager", "different", "t: wrong"))
    assert [s.target for s in smaller.statements] == ["a", "b", "c"]
    assert failure.kind == "different"


def test_what_torch_cannot_trace_is_no_crash():
    """Its functionalization loses the strides of a transposed part that is written to."""
    statements = (
        Statement("a", "x[torch.tensor([0], device=x.device)]", ("x",), "exact"),
        Statement("", "a.mT.masked_fill_(a.mT > 1.0, 3.0)", ("a",), "near"),
        Statement("b", "a.reshape(-1)", ("a",), "view"),
    )
    failure = first_failure(Program(0, (Input("x", (1, 32, 5), FLOAT, 1),), statements))
    assert failure is not None
    assert (failure.mode, failure.kind) == ("compiled", "torch's")


def test_what_torch_computes_otherwise_itself_is_known():
    """Its sizes are symbols: it gives a view of an argument that is written to the old values."""
    inputs = (Input("x", (32,), HALF, 1), Input("y", (32,), HALF, 1, "x[1:]"))
    statements = (
        Statement("a", "y.movedim(-1, 0)", ("y",), "view"),
        Statement("b", "a.chunk(2, -1)[0]", ("a",), "view"),
        Statement("", "a.relu_()", ("a",), "near"),
    )
    program = Program(0, inputs, statements)
    assert comparison._fails_in_torch(program, "dynamic")
    assert comparison.compiled_failure(program, "dynamic") is None


def test_inputs_are_views_of_themselves_and_of_others():
    inputs = (Input("x", (4, 6), INT, 1), Input("y", (2,), INT, 2, "x[..., ::2]"))
    program = Program(0, inputs, (Statement("", "y.zero_()", ("y",), "exact"),))
    whole, part = program.function()(*input_tensors(program, "cpu").values())
    assert part.shape == (4, 3)
    assert not whole[:, ::2].any()
    assert "y: int64[2], as x[..., ::2]" in str(program)
    assert len(program.without(Statement("", "", (), "")).inputs) == 2
    texts = "".join(str(random_program(seed)) for seed in range(60))
    for word in (", as x0[", ", as x1[", "index_fill", "index_put", "[-"):
        assert word in texts, word


def test_results_that_the_card_refuses_are_no_crash():
    statements = tuple(Statement("", "x.add_(x)", ("x",), "exact") for _ in range(30))
    failure = eager_failure(Program(0, (Input("x", (3,), INT, 5),), statements))
    assert failure is not None
    assert (failure.kind, failure.text.split()[0]) == ("refused", "SPY901")
