"""Shrinks a program to one without unneeded statements that fails in the same way."""

from __future__ import annotations

from qa.random_programs.comparison import Failure, first_failure
from qa.random_programs.programs import Program


def shrunk(program: Program, failure: Failure) -> tuple[Program, Failure]:
    """Drop statements, the last first, as long as a failure of the same signature remains."""
    shorter = True
    while shorter:
        shorter = False
        for statement in reversed(program.statements):
            smaller = program.without(statement)
            remaining = _failure(smaller)
            if remaining and remaining.signature == failure.signature:
                program, failure, shorter = smaller, remaining, True
                break
    return program, failure


def _failure(program: Program) -> Failure | None:
    try:
        return first_failure(program) if program.statements else None
    except Exception:
        # A program that no longer runs on the CPU shows nothing.
        return None
