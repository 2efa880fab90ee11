"""Seeded damage to the files of a bundle: cut, garbled, renumbered, reordered, pieces missing.

Text mutations work on any file, tree mutations on JSON. Each takes a random generator and the
content and returns changed content; equal seeds give equal mutants.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

NUMBER = re.compile(rb"-?\d+")
HUGE = (2**31 - 1, 2**31, 2**34, 2**37, 2**62, 2**63 - 1, 2**63, 2**64, 10**19, 10**40)
VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "-1", "0", "1e3", [], {}, 0, 1, -1, -2, 7, 1.5, 1e300, [[]],
    {"": 0}, [0, 0, 0], "[0, 0, 0]", "hbm", "lx", "out", "mb", "IEEE_FP32", "SENUINT32",
    "SEN143_FP8", "sum", "batchmatmul", "identity", "\u0000", "é",
)  # fmt: skip


def truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def garble(rng: random.Random, content: bytes) -> bytes:
    """Replace, insert or remove a few bytes."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
    return bytes(data)


def renumber(rng: random.Random, content: bytes) -> bytes:
    """Change one to three numbers, often only a little."""
    for _ in range(rng.randint(1, 3)):
        found = list(NUMBER.finditer(content))
        if not found:
            return content
        chosen = rng.choice(found)
        text = str(changed(rng, int(chosen[0]))).encode()
        content = content[: chosen.start()] + text + content[chosen.end() :]
    return content


def changed(rng: random.Random, value: int) -> int | float:
    """Another number: near, scaled, negative, zero, or far beyond any range."""
    kind = rng.randrange(9)
    near = (value + 1, value - 1, value * 10, value * 2, value // 2, -value, 0, value + 128)
    if kind < len(near):
        return near[kind]
    return rng.choice((*HUGE, -(2**63), 0.5, 1e308))


def delete_lines(rng: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at = rng.randrange(len(lines))
    del lines[at : at + rng.choice((1, 1, 1, 2, 5))]
    return b"".join(lines)


def duplicate_line(rng: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
    return b"".join(lines)


def swap_lines(rng: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return content
    a, b = rng.sample(range(len(lines)), 2)
    lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def repeat_piece(rng: random.Random, content: bytes) -> bytes:
    """Repeat a piece many times, for deep nesting, long names, many digits."""
    at = rng.randrange(len(content) + 1)
    piece = content[at : at + rng.choice((1, 1, 2, 8, 40))]
    return content[:at] + piece * rng.choice((2, 20, 500, 5000)) + content[at:]


TEXT: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    truncate, garble, renumber, renumber, renumber, delete_lines, duplicate_line, swap_lines,
    repeat_piece,
)  # fmt: skip


# --- JSON trees -------------------------------------------------------------------------------

Place = tuple[Any, Any]
"""A container and the key or index of one of its members."""


def places(tree: Any) -> list[Place]:
    """Every member of every object and array."""
    found: list[Place] = []
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        found += [(node, key) for key in keys]
        stack += [node[key] for key in keys if isinstance(node[key], dict | list)]
    return found


def remove_member(rng: random.Random, found: list[Place]) -> None:
    node, key = rng.choice(found)
    del node[key]


def replace_value(rng: random.Random, found: list[Place]) -> None:
    node, key = rng.choice(found)
    node[key] = rng.choice(VALUES)


def change_number(rng: random.Random, found: list[Place]) -> None:
    """Change a number, or a decimal string, which is the format's form of addresses."""
    numbers = [p for p in found if _integer(p[0][p[1]]) is not None]
    if numbers:
        node, key = rng.choice(numbers)
        other = changed(rng, _integer(node[key]) or 0)
        node[key] = str(other) if isinstance(node[key], str) else other


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?\d{1,30}", value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def swap_values(rng: random.Random, found: list[Place]) -> None:
    """Exchange two values, preferably of the same key."""
    (a, key), (b, other) = rng.choice(found), rng.choice(found)
    same = [p for p in found if p[1] == key]
    if rng.random() < 0.7:
        b, other = rng.choice(same)
    if _holds(a[key], b) or _holds(b[other], a):
        return
    a[key], b[other] = b[other], a[key]


def _holds(value: Any, container: Any) -> bool:
    """True if ``container`` is ``value`` or within it: a swap would make a cycle."""
    if value is container:
        return True
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return any(_holds(member, container) for member in members)
    return False


def duplicate_member(rng: random.Random, found: list[Place]) -> None:
    node, key = rng.choice(found)
    if isinstance(node, list):
        node.insert(rng.randrange(len(node) + 1), json.loads(json.dumps(node[key])))
    else:
        node[rng.choice((f"{key}x", "out", "mb_", "40", ""))] = json.loads(json.dumps(node[key]))


def rename_key(rng: random.Random, found: list[Place]) -> None:
    node, key = rng.choice(found)
    if isinstance(node, dict):
        node[rng.choice([str(p[1]) for p in found])] = node.pop(key)


TREE: tuple[Callable[[random.Random, list[Place]], None], ...] = (
    remove_member, replace_value, change_number, change_number, change_number, change_number,
    swap_values, swap_values, duplicate_member, rename_key,
)  # fmt: skip


def mutate(rng: random.Random, name: str, content: bytes) -> bytes:
    """Return a file's content after one to three mutations."""
    if name.endswith(".json") and rng.random() < 0.75:
        return _mutate_tree(rng, content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(TEXT)(rng, content)
    return content


def _mutate_tree(rng: random.Random, content: bytes) -> bytes:
    tree = json.loads(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = places(tree)
        if found:
            rng.choice(TREE)(rng, found)
    return json.dumps(tree).encode()
