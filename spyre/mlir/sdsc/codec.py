"""Bytes ↔ :class:`~spyre.mlir.sdsc.structs.Sdsc`: decoding with exact JSON paths, encoding back.

Fast path: one typed msgspec decode. To see that every key arrived, the result is encoded again and
the numbers of colons are compared; only a file that lost keys (unknown or duplicate ones), or does
not decode at all, is parsed a second time to find the JSON path. Raises :class:`SdscError` only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from spyre.errors import JsonLocation, SdscError
from spyre.mlir.sdsc.structs import Sdsc, SuperDsc, UnknownKey

_DECODER = msgspec.json.Decoder(dict[str, SuperDsc])
_ENCODER = msgspec.json.Encoder()
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_ERROR_PATH = re.compile(r"(?P<text>.*?)(?: - at `\$(?P<path>.*)`)?\Z", re.DOTALL)
_EXPECTED = re.compile(r"Expected (?P<expected>.+?)(?:, got (?P<found>.+))?\Z")
_PATH_STEP = re.compile(r"\.(?P<key>[A-Za-z0-9_]+)|\[(?P<index>\d+|\.\.\.)\]")

Token = str | int


def json_path(tokens: tuple[Token, ...]) -> str:
    """``("dscs_", 0, "[0, 0]")`` as ``$.dscs_[0]["[0, 0]"]``."""
    return "$" + "".join(_path_step(token) for token in tokens)


def _path_step(token: Token) -> str:
    if isinstance(token, int):
        return f"[{token}]"
    return f".{token}" if _PLAIN_KEY.match(token) else f"[{json.dumps(token)}]"


def decode_sdsc(data: bytes, file: str) -> Sdsc:
    """Reads one SDSC file. SdscError (SPY201-SPY204) names the JSON path, expected and found."""
    try:
        documents = _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _decode_error(data, file, error) from None
    if len(documents) != 1:
        message = "an SDSC file holds exactly one SDSC"
        expected = "an object with one key, the SDSC's name"
        found = f"{len(documents)} keys"
        raise SdscError("SPY204", message, JsonLocation(file), expected=expected, found=found)
    unknown: tuple[UnknownKey, ...] = ()
    if not _every_key_arrived(data, documents):
        kept = msgspec.to_builtins(documents)
        unknown = tuple(_unknown_keys(_parse_tree(data, file), kept, ()))
    name, body = next(iter(documents.items()))
    return Sdsc(name, body, unknown)


def encode_sdsc(sdsc: Sdsc, indent: int = 0) -> bytes:
    """Writes an SDSC; decoding gives an equal one. ``indent`` 0 is the compact form."""
    tree = msgspec.to_builtins({sdsc.name: sdsc.body})
    for tokens, value in sdsc.unknown:
        _lookup(tree, tokens[:-1])[tokens[-1]] = value
    # not msgspec: it wraps integers beyond 64 bits silently
    text = json.dumps(tree, indent=indent or None, allow_nan=False)
    return text.encode() + (b"\n" if indent else b"")


def _every_key_arrived(data: bytes, documents: dict[str, SuperDsc]) -> bool:
    """Cheap and safe: escapes may hide a colon, then the slow path decides."""
    # Every key and nothing else brings one colon: texts with colons (debug handles) are in both.
    return b"\\u" not in data and data.count(b":") == _ENCODER.encode(documents).count(b":")


# --- the slow path: lost keys and their paths -----------------------------------------------


class _Object(dict[str, Any]):
    """A JSON object that remembers the first key it saw twice."""

    duplicate: str | None = None


def _object_of_pairs(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object()
    for key, value in pairs:
        if key in result and result.duplicate is None:
            result.duplicate = key
        result[key] = value
    return result


def _parse_tree(data: bytes, file: str) -> Any:
    """The file as plain objects. SdscError when it is not JSON or repeats a key."""
    try:
        tree = json.loads(data.decode(), object_pairs_hook=_object_of_pairs)
        for tokens, key in _duplicates(tree, ()):
            message = f"key {json.dumps(key)} appears twice in one object"
            location = JsonLocation(file, json_path((*tokens, key)))
            raise SdscError("SPY202", message, location, expected="every key at most once")
    except (ValueError, RecursionError) as error:
        raise _syntax_error(file, str(error)) from None
    return tree


def _duplicates(tree: Any, tokens: tuple[Token, ...]) -> Iterator[tuple[tuple[Token, ...], str]]:
    if isinstance(tree, _Object) and tree.duplicate is not None:
        yield tokens, tree.duplicate
    for token, value in _members(tree):
        yield from _duplicates(value, (*tokens, token))


def _members(tree: Any) -> Iterator[tuple[Token, Any]]:
    if isinstance(tree, dict):
        yield from tree.items()
    elif isinstance(tree, list | tuple):
        yield from enumerate(tree)


def _unknown_keys(tree: Any, kept: Any, tokens: tuple[Token, ...]) -> Iterator[UnknownKey]:
    """Members of ``tree`` that its typed form ``kept`` does not have."""
    for token, value in _members(tree):
        here = (*tokens, token)
        if isinstance(kept, dict) and token not in kept:
            yield here, value
        elif isinstance(value, dict | list):
            yield from _unknown_keys(value, kept[token], here)


# --- errors ---------------------------------------------------------------------------------


def _syntax_error(file: str, detail: str) -> SdscError:
    return SdscError("SPY201", f"not readable as JSON: {detail}", JsonLocation(file))


def _decode_error(data: bytes, file: str, error: Exception) -> SdscError:
    # RecursionError and UnicodeDecodeError are no ValidationErrors: neither has a JSON path
    if not isinstance(error, msgspec.ValidationError):
        return _syntax_error(file, _not_utf8(data) or str(error))
    try:
        tree = _parse_tree(data, file)
    except SdscError as earlier:
        return earlier
    text, path = _split_message(str(error))
    tokens = _concrete_path(tree, _path_tokens(path), path)
    return _type_error(tree, tokens, text, file)


def _not_utf8(data: bytes) -> str:
    """Describe the position of the first byte that is not UTF-8; '' if there is none."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8 text ({error.reason})"
    return ""


def _split_message(message: str) -> tuple[str, str]:
    match = _ERROR_PATH.match(message)
    assert match is not None
    return match["text"], match["path"] or ""


def _path_tokens(path: str) -> list[Token]:
    """Split a path of msgspec's messages; the token ``...`` matches any key of an object."""
    steps = _PATH_STEP.finditer(path)
    return [s["key"] or (s["index"] if s["index"] == "..." else int(s["index"])) for s in steps]


def _concrete_path(tree: Any, tokens: list[Token], path: str) -> tuple[Token, ...]:
    """Replaces each ``...`` by the first key that alone still fails at the same path."""
    for position, token in enumerate(tokens):
        if token == "...":
            tokens[position] = _culprit(tree, tokens[:position], path)
    return tuple(tokens)


def _culprit(tree: Any, tokens: list[Token], path: str) -> str:
    parent = _lookup(tree, tokens)
    keys = list(parent)
    for key in keys:
        # msgspec names no key of a dict it decodes ("..."), so each is tried alone
        pruned = _replaced(tree, tokens, {key: parent[key]})
        if _failing_path(pruned) == path:
            return str(key)
    return str(keys[0])


def _lookup(tree: Any, tokens: Sequence[Token]) -> Any:
    for token in tokens:
        tree = tree[token]
    return tree


def _replaced(tree: Any, tokens: list[Token], value: Any) -> Any:
    """A copy of ``tree`` with another value at ``tokens``; shares everything else."""
    if not tokens:
        return value
    copy = tree.copy()
    copy[tokens[0]] = _replaced(tree[tokens[0]], tokens[1:], value)
    return copy


def _failing_path(tree: Any) -> str | None:
    try:
        _DECODER.decode(_ENCODER.encode(tree))
    except msgspec.ValidationError as error:
        return _split_message(str(error))[1]
    return None


def _type_error(tree: Any, tokens: tuple[Token, ...], text: str, file: str) -> SdscError:
    location = JsonLocation(file, json_path(tokens))
    match = _EXPECTED.match(text)
    if match is None:
        return SdscError("SPY203", text[0].lower() + text[1:], location)
    expected = match["expected"].replace("`", "")
    found = _shown(_lookup(tree, tokens))
    return SdscError("SPY203", "value of the wrong kind", location, expected=expected, found=found)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
