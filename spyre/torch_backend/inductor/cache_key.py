"""What compile caches do not see of a graph by themselves, put where they look.

Inductor's keys, and AOTAutograd's, hold a graph with its inputs and attributes, Inductor's settings
and the ``uuid`` of registered passes. What else decides about generated code is in `cache_key`,
the uuid of our passes, or in an attribute of the graph module (`mark_graph`); AOTAutograd leaves
out ``graph_module.meta``.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

import spyre
from spyre.cache import digest_of_sources
from spyre.torch_backend.inductor.observing import wants_notes
from spyre.torch_backend.inductor.settings import settings
from spyre.torch_backend.inductor.tiling.hints import hints_key

ATTRIBUTE = "spyre_key"


def cache_key() -> str | None:
    """A digest of this package's sources and of all settings that are in force.

    None, with which nothing is cached, if a setting is a function without a source file.
    Errors as of `settings`.
    """
    digest = hashlib.sha256(source_digest().encode())
    chosen = settings()
    for field in fields(chosen):
        value = getattr(chosen, field.name)
        text = _function_key(value) if callable(value) else repr(value)
        if text is None:
            return None
        digest.update(f"\0{field.name}={text}".encode())
    digest.update(f"\0notes={wants_notes()}".encode())
    return digest.hexdigest()


def mark_graph(graph_module: Any, names: Mapping[Any, Any], symbolic: bool = False) -> None:
    """Note hints and names of dims in an attribute of a graph, which keys contain.

    ``names``: of the dims of its inputs, by input. ``symbolic``: its sizes stay symbols.
    """
    if isinstance(graph_module, torch.fx.GraphModule):
        named = tuple((key, given) for key, given in names.items() if given is not None)
        setattr(graph_module, ATTRIBUTE, (hints_key(graph_module), named, symbolic))


SOURCES = (".py", ".lark", ".toml")


@cache
def source_digest() -> str:
    """A digest of all source files of this package."""
    found = []
    for directory, folders, files in os.walk(Path(spyre.__file__).parent):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [os.path.join(directory, name) for name in files if name.endswith(SOURCES)]
    return digest_of_sources(sorted(found))


def _function_key(function: Callable[..., Any]) -> str | None:
    """A function's name and the contents of its file."""
    try:
        path = inspect.getsourcefile(function)
        source = b"" if path is None else Path(path).read_bytes()
    except (OSError, TypeError):
        return None
    name = f"{function.__module__}.{function.__qualname__}"
    return f"{name} {hashlib.sha256(source).hexdigest()}" if source else None
