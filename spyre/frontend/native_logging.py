"""``torch_spyre._C._logging``: levels by component, and lines to stderr or to a file.

torch-spyre configures it from Python when its runtime starts, with the same levels its Python
loggers have. Components are dotted; one without a level has that of the part before its last dot.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from spyre.frontend.formats import EXTENSION, ExtensionEnum, named_as_extension

MODULE = f"{EXTENSION}._logging"


@named_as_extension("LogLevel")
class LogLevel(ExtensionEnum):
    """Severities, numbered as Python's."""

    NOTSET = 0
    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


LogLevel.__module__ = MODULE


@named_as_extension("LoggingConfig")
class LoggingConfig:
    """Levels and the file of the one configuration there is. Any thread."""

    _instance: LoggingConfig | None = None

    def __init__(self) -> None:
        self._levels: dict[str, LogLevel] = {}
        self._file: Path | None = None
        self._lock = threading.Lock()

    @staticmethod
    def instance() -> LoggingConfig:
        """The configuration."""
        if LoggingConfig._instance is None:
            LoggingConfig._instance = LoggingConfig()
        return LoggingConfig._instance

    def initialize_from_python(self, config: Iterable[tuple[str, int]]) -> None:
        """Take these levels and no others."""
        levels = {component: LogLevel(int(level)) for component, level in config}
        with self._lock:
            self._levels = levels

    def get_log_level(self, component: str) -> LogLevel:
        """Its own level, or that of the nearest part it belongs to; WARNING without any."""
        part = component
        while part:
            if (level := self._levels.get(part)) is not None:
                return level
            part = part.rpartition(".")[0]
        return LogLevel.WARNING

    def set_log_level(self, component: str, level: LogLevel) -> None:
        with self._lock:
            self._levels = {**self._levels, component: level}

    def is_enabled(self, component: str, level: LogLevel) -> bool:
        """Whether lines of ``level`` are written."""
        return int(self.get_log_level(component)) <= int(level)

    def get_components(self) -> list[str]:
        """Components whose level is set."""
        return list(self._levels)

    def set_log_file(self, path: str) -> None:
        """Append lines to a file; "": to stderr. A file that cannot be opened changes nothing."""
        if path and not os.access(Path(path).absolute().parent, os.W_OK):
            print(f"spyre: no log is written to {path}", file=sys.stderr)
            return
        with self._lock:
            self._file = Path(path) if path else None

    def write(self, component: str, level: LogLevel, message: str) -> None:
        """A line, if the component's level lets it through."""
        if not message or not self.is_enabled(component, level):
            return
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"[{level.name}] [{component}] {now} {message}\n"
        with self._lock:
            if self._file is None:
                sys.stderr.write(line)
                sys.stderr.flush()
                return
            with self._file.open("a") as file:
                file.write(line)


LoggingConfig.__module__ = MODULE


def log_level_to_string(level: LogLevel) -> str:
    return level.name


def string_to_log_level(level_str: str) -> LogLevel:
    """The level of that name in capitals; NOTSET for other texts."""
    known: Any = LogLevel.__members__.get(level_str, LogLevel.NOTSET)
    return LogLevel.NOTSET if known is LogLevel.NOTSET else known


def log_message(component: str, level: LogLevel, message: str) -> None:
    """A line of a component; nothing at NOTSET."""
    if level is not LogLevel.NOTSET:
        LoggingConfig.instance().write(component, level, message)


def emit_test_log(component: str, level: int, message: str) -> None:
    """A line at a level given as a number; WARNING for numbers that are none."""
    known = {int(each): each for each in LogLevel if each is not LogLevel.NOTSET}
    LoggingConfig.instance().write(component, known.get(int(level), LogLevel.WARNING), message)


def make_module() -> ModuleType:
    """The module, with the levels in it."""
    module = ModuleType(MODULE, "C++ logging interface")
    offered: tuple[Any, ...] = (
        *(LogLevel, LoggingConfig, log_level_to_string, string_to_log_level),
        *(log_message, emit_test_log),
    )
    vars(module).update({each.__name__: each for each in offered})
    vars(module).update(LogLevel.__members__)
    return module
