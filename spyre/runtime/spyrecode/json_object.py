"""Located access to the JSON of a spyrecode.json: every failure names file and JSON path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spyre.errors import BundleError, JsonLocation

_UNSIGNED = re.compile(r"[0-9]{1,20}")
_SIGNED = re.compile(r"-?[0-9]{1,19}")
MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class JsonObject:
    """The properties of one command.

    ``command``: its name, for messages. ``path``: JSON path of the properties.
    """

    command: str
    properties: Mapping[str, Any]
    file: str
    path: str

    def place(self, key: str = "") -> JsonLocation:
        """Where a property stands, or all of them."""
        return JsonLocation(self.file, f"{self.path}.{key}" if key else self.path)

    def holds(self, *keys: str) -> bool:
        """True if one of the spellings of a property is there."""
        return any(key in self.properties for key in keys)

    def spelling(self, *keys: str) -> str:
        """The spelling of a property that is there; SPY826 for none, SPY847 for two that differ.

        The first of ``keys`` is the one the runtime's code reads, the others are the
        specification's.
        """
        present = [key for key in keys if key in self.properties]
        if not present:
            raise missing_property(self, keys[0])
        if any(self.properties[key] != self.properties[present[0]] for key in present):
            raise ambiguous_property(self, present)
        return present[0]

    def text(self, *keys: str) -> str:
        """A string property."""
        key = self.spelling(*keys)
        value = self.properties[key]
        if not isinstance(value, str):
            raise wrong_property(self, key, "a string")
        return value

    def number(self, *keys: str) -> int:
        """A number from 0 to 2⁶³ - 1, which the file spells as a decimal string."""
        key = self.spelling(*keys)
        value = self.properties[key]
        if not (isinstance(value, str) and _UNSIGNED.fullmatch(value)) or int(value) > MAX_NUMBER:
            raise wrong_property(self, key, 'a number as a decimal string, such as "128"')
        return int(value)

    def size(self, *keys: str) -> int:
        """A number of bytes, at least 1."""
        size = self.number(*keys)
        if size == 0:
            raise wrong_property(self, self.spelling(*keys), "at least 1 byte")
        return size


def signed_number(text: str) -> int | None:
    """The integer a decimal string spells; None when it spells none."""
    return int(text) if _SIGNED.fullmatch(text) else None


def missing_property(given: JsonObject, key: str) -> BundleError:
    """SPY826."""
    return BundleError(
        "SPY826",
        f"{given.command} command missing '{key}' property",
        given.place(),
        expected=f"{key}",
        found=", ".join(given.properties) or "no properties",
    )


def ambiguous_property(given: JsonObject, keys: list[str]) -> BundleError:
    """SPY847."""
    return BundleError(
        "SPY847",
        f"{given.command} command says one thing in two ways that differ",
        given.place(keys[-1]),
        expected=f"one of {', '.join(keys)}",
        found=", ".join(f"{key} {shown(given.properties[key])}" for key in keys),
    )


def wrong_property(given: JsonObject, key: str, expected: str) -> BundleError:
    """SPY827."""
    return BundleError(
        "SPY827",
        f"{given.command} {key} is not what it has to be",
        given.place(key),
        expected=expected,
        found=shown(given.properties[key]),
    )


def shown(value: Any) -> str:
    """A JSON value in a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
