"""A set of integers that answers "the smallest one not below x" at a fixed small cost.

Three levels of bitmaps, 512 bits a word: bit ``v & 511`` of low word ``v >> 9`` says that ``v`` is
in the set, one level up a bit says that a word is not zero. Every operation looks at three words at
most, whatever the set holds. Only words that are not zero are stored.
"""

from __future__ import annotations

_WORD_BITS = 9
_MASK = (1 << _WORD_BITS) - 1
_BIT = tuple(1 << k for k in range(1 << _WORD_BITS))


class IntegerSet:
    """Integers from 0 on; meant for values below 2**27 and right for larger ones. Not locked."""

    __slots__ = ("_low", "_middle", "_top")

    def __init__(self) -> None:
        self._low: dict[int, int] = {}
        self._middle: dict[int, int] = {}
        self._top = 0

    def add(self, value: int) -> None:
        """Put ``value`` in; it may be there already."""
        low, bit = value >> _WORD_BITS, _BIT[value & _MASK]
        if low in self._low:
            self._low[low] |= bit
            return
        self._low[low] = bit
        middle, bit = low >> _WORD_BITS, _BIT[low & _MASK]
        if middle in self._middle:
            self._middle[middle] |= bit
            return
        self._middle[middle] = bit
        self._top |= 1 << middle

    def remove(self, value: int) -> None:
        """Take ``value`` out, which must be there (KeyError or a wrong set otherwise)."""
        low = value >> _WORD_BITS
        word = self._low[low] ^ _BIT[value & _MASK]
        if word:
            self._low[low] = word
            return
        del self._low[low]
        middle = low >> _WORD_BITS
        word = self._middle[middle] ^ _BIT[low & _MASK]
        if word:
            self._middle[middle] = word
            return
        del self._middle[middle]
        self._top ^= 1 << middle

    def at_least(self, value: int) -> int | None:
        """The smallest member that is not below ``value``, None when there is none."""
        low = value >> _WORD_BITS
        word = self._low.get(low, 0) >> (value & _MASK)
        if word:
            return value + (word & -word).bit_length() - 1
        middle = low >> _WORD_BITS
        word = self._middle.get(middle, 0) >> (low & _MASK) >> 1
        if word:
            low += 1 + _lowest(word)
        else:
            word = self._top >> middle >> 1
            if not word:
                return None
            middle += 1 + _lowest(word)
            low = middle << _WORD_BITS | _lowest(self._middle[middle])
        return low << _WORD_BITS | _lowest(self._low[low])

    def largest(self) -> int | None:
        """The largest member, None of an empty set."""
        if not self._top:
            return None
        middle = self._top.bit_length() - 1
        low = middle << _WORD_BITS | self._middle[middle].bit_length() - 1
        return low << _WORD_BITS | self._low[low].bit_length() - 1


def _lowest(word: int) -> int:
    """Position of the lowest bit that is set."""
    return (word & -word).bit_length() - 1
