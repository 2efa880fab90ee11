"""How the stages of the parser say no: a diagnosis with a text offset, not yet a file.

Tree building and diagnosis know offsets only; ``parser.parse_module`` knows file and text and
turns a :class:`Rejection` into an :class:`~spyre.errors.MlirSyntaxError`.
"""

from __future__ import annotations


class Rejection(Exception):
    """The text breaks rule ``code`` at ``position`` (offset in characters)."""

    def __init__(
        self,
        code: str,
        message: str,
        position: int,
        *,
        expected: str = "",
        found: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.position = position
        self.expected = expected
        self.found = found
        self.hint = hint
