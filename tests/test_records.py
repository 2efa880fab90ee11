"""Structs of which equality, hash and text ignore some fields."""

from __future__ import annotations

import pytest

from spyre.records import PartlyCompared


class Word(PartlyCompared, frozen=True):
    uncompared = frozenset({"place"})

    text: str
    place: int = -1


class Number(Word, frozen=True):
    uncompared = Word.uncompared | {"spelling"}

    value: float = 0.0
    spelling: str = ""


def test_ignored_fields_are_neither_compared_nor_hashed_nor_shown() -> None:
    assert Word("a", 1) == Word("a", 2)
    assert len({Word("a", 1), Word("a", 2), Word("b")}) == 2
    assert repr(Word("a", 1)) == "Word(text='a')"


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        (Number("1", 3, 1.0, "1.0"), True),
        (Number("1", 2, 2.0, "1e0"), False),
        (Number("2", 2, 1.0, "1e0"), False),
        (Word("1", 2), False),
        ("1", False),
    ],
)
def test_a_derived_struct_ignores_further_fields(other: object, is_equal: bool) -> None:
    number = Number("1", 2, 1.0, "1e0")
    assert ((number == other), (number != other)) == (is_equal, not is_equal)


def test_structs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Word("a").text = "b"  # type: ignore[misc]
