"""``spyrecode.json`` and the commands it spells; every failure names file and JSON path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from spyre.errors import BundleError, JsonLocation
from spyre.runtime.program import SymbolKind
from spyre.runtime.spyrecode.commands import (
    ComputeOnDevice,
    ComputeOnHost,
    DataTransfer,
    Direction,
    ExecutionCommand,
    FileRecord,
    Hcm,
    InitTransfer,
    SpyreCode,
    check_code,
)

_UNSIGNED = re.compile(r"[0-9]{1,20}")
_SIGNED = re.compile(r"-?[0-9]{1,19}")
MAX_NUMBER = 2**63 - 1


class JsonObject(msgspec.Struct, frozen=True):
    """The properties of the command ``name``; ``path``: their JSON path, for messages."""

    name: str
    properties: Mapping[str, Any]
    file: str
    path: str

    def error(
        self, code: str, message: str, key: str = "", expected: str = "", found: str = ""
    ) -> BundleError:
        """An error at a property, or at all properties."""
        location = JsonLocation(self.file, f"{self.path}.{key}" if key else self.path)
        return BundleError(code, message, location, expected=expected, found=found)

    def wrong(self, key: str, expected: str, what: str = "has an invalid value") -> BundleError:
        """SPY827."""
        found = shown(self.properties[key])
        return self.error("SPY827", f"{self.name} {key} {what}", key, expected, found)

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
            message = f"{self.name} command missing '{keys[0]}' property"
            found = ", ".join(self.properties) or "no properties"
            raise self.error("SPY826", message, "", keys[0], found)
        if any(self.properties[key] != self.properties[present[0]] for key in present):
            message = f"{self.name} command has two spellings of one property with different values"
            found = ", ".join(f"{key} {shown(self.properties[key])}" for key in present)
            raise self.error("SPY847", message, present[-1], f"one of {', '.join(present)}", found)
        return present[0]

    def text(self, *keys: str) -> str:
        key = self.spelling(*keys)
        value = self.properties[key]
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def number(self, *keys: str) -> int:
        """A number from 0 to 2⁶³ - 1, which the file spells as a decimal string."""
        key = self.spelling(*keys)
        value = self.properties[key]
        if not (isinstance(value, str) and _UNSIGNED.fullmatch(value)) or int(value) > MAX_NUMBER:
            what = "is not a decimal number"
            if isinstance(value, str) and value.lstrip().startswith("-"):
                what = "has a negative value not allowed for unsigned integer"
            raise self.wrong(key, 'a number as a decimal string, such as "128"', what)
        return int(value)

    def size(self, *keys: str) -> int:
        """A number of bytes, at least 1."""
        size = self.number(*keys)
        if size == 0:
            raise self.wrong(self.spelling(*keys), "at least 1 byte")
        return size


def shown(value: Any) -> str:
    """A JSON value in a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


SPYRECODE_FILE = "spyrecode.json"
PREPARATION_PLAN = "JobPreparationPlan"
EXECUTION_PLAN = "JobExecPlan"
FILES_KEY = "Files"
"""A key of our own: sizes and SHA-256 of the other files, written last."""
_DIRECTIONS = {
    "false": Direction.H2D,
    "0": Direction.H2D,
    "true": Direction.D2H,
    "1": Direction.D2H,
}


def spyrecode_path(directory: Path) -> Path:
    """The path of an existing spyrecode.json. BundleError SPY820, SPY821."""
    if not directory.exists():
        raise BundleError("SPY820", f"SpyreCode directory does not exist: {directory}")
    if not directory.is_dir():
        raise BundleError("SPY820", f"Path is not a directory: {directory}")
    if not (directory / SPYRECODE_FILE).is_file():
        message = f"Required file {SPYRECODE_FILE} not found in directory: {directory}"
        hint = "spyre-compile --bundle -d DIR writes DIR/spyreCodeDir"
        raise BundleError("SPY821", message, hint=hint)
    return directory / SPYRECODE_FILE


def parse_spyrecode(data: bytes, file: str = SPYRECODE_FILE) -> SpyreCode:
    """The text of a spyrecode.json, checked; ``file`` is how messages name it.

    BundleError SPY822-SPY838, SPY847 with the JSON path. Warnings are in ``findings``.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unparsable(str(error), file) from error
    if not isinstance(document, dict):
        raise _unparsable(f"the file holds {shown(document)}, not an object", file)
    preparation = _preparation_plan(_plan_array(document, PREPARATION_PLAN, file), file)
    execution = _execution_plan(_plan_array(document, EXECUTION_PLAN, file), file)
    code = SpyreCode(*preparation, execution, _file_records(document, file))
    return msgspec.structs.replace(code, findings=check_code(code, file))


def _unparsable(reason: str, file: str) -> BundleError:
    """SPY822."""
    message = f"Failed to parse {SPYRECODE_FILE}: {reason}"
    return BundleError("SPY822", message, JsonLocation(file))


def _plan_array(document: dict[str, Any], name: str, file: str) -> list[Any]:
    """A plan's commands; SPY823 when there is no such array."""
    plan = document.get(name)
    if not isinstance(plan, list):
        message = f"SpyreCode JSON missing '{name}' array"
        location = JsonLocation(file)
        raise BundleError("SPY823", message, location, found=", ".join(document) or "no keys")
    return plan


# --- commands ---------------------------------------------------------------------------------


def _preparation_plan(plan: list[Any], file: str) -> tuple[int, tuple[InitTransfer, ...]]:
    """Bytes of the allocation, and the transfers into it."""
    if len(plan) < 2:
        raise BundleError(
            "SPY824",
            f"{PREPARATION_PLAN} must be an array with at least 2 commands "
            "(1 Allocate and 1+ InitTransfer)",
            JsonLocation(file, f"$.{PREPARATION_PLAN}"),
            found=f"{len(plan)}",
        )
    size_bytes, transfers = 0, []
    for k, item in enumerate(plan):
        path = f"$.{PREPARATION_PLAN}[{k}]"
        name, command = _command(item, file, path)
        wanted = "InitTransfer" if k else "Allocate"
        if name != wanted:
            message = f"Expected '{wanted}' command, got: {name}"
            raise BundleError("SPY825", message, JsonLocation(file, f"{path}.command"))
        if k:
            transfers.append(_init_transfer(command))
        else:
            size_bytes = command.size("size")
    return size_bytes, tuple(transfers)


def _execution_plan(plan: list[Any], file: str) -> tuple[ExecutionCommand, ...]:
    commands: list[ExecutionCommand] = []
    for k, item in enumerate(plan):
        path = f"$.{EXECUTION_PLAN}[{k}]"
        name, command = _command(item, file, path)
        if name not in _EXECUTION_READERS:
            location = JsonLocation(file, f"{path}.command")
            expected = f"one of {', '.join(_EXECUTION_READERS)}"
            message = f"Unknown SpyreCode command type: {name}"
            raise BundleError("SPY835", message, location, expected=expected)
        commands.append(_EXECUTION_READERS[name](command))
    return tuple(commands)


def _command(item: Any, file: str, path: str) -> tuple[str, JsonObject]:
    """Name and properties of a command; SPY826 when it has none."""
    if not isinstance(item, dict) or not isinstance(item.get("command"), str):
        message = "SpyreCode command missing 'command' field"
        raise BundleError("SPY826", message, JsonLocation(file, path), found=shown(item))
    name, properties = item["command"], item.get("properties", {})
    if not isinstance(properties, dict):
        raise JsonObject(name, item, file, path).wrong("properties", "an object")
    return name, JsonObject(name, properties, file, f"{path}.properties")


def _init_transfer(command: JsonObject) -> InitTransfer:
    name = command.text("init_bin_file", "file_path")
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or "\0" in name:
        key = command.spelling("init_bin_file", "file_path")
        raise command.wrong(key, "the name of a file inside the directory")
    return InitTransfer(name, command.number("dev_ptr"), command.size("size"))


def _compute_on_host(command: JsonObject) -> ComputeOnHost:
    ohandle = command.text("ohandle")
    if not ohandle:
        raise command.wrong("ohandle", "the name of a new buffer")
    return ComputeOnHost(
        ihandle=command.text("ihandle"),
        ishape=_ishape(command),
        ohandle=ohandle,
        size_bytes=command.size("size"),
        hcm=_hcm(command, ohandle),
    )


def _ishape(command: JsonObject) -> tuple[int, ...]:
    """SPY833 when it is no array of decimal strings."""
    value = command.properties[command.spelling("ishape")]
    if not isinstance(value, list):
        raise _wrong_ishape(command, "must be an array", value)
    if not all(isinstance(entry, str) for entry in value):
        raise _wrong_ishape(command, "elements must be strings", value)
    if not all(_SIGNED.fullmatch(entry) and int(entry) >= 0 for entry in value):
        raise _wrong_ishape(command, "elements must be decimal numbers", value)
    return tuple(map(int, value))


def _wrong_ishape(command: JsonObject, what: str, value: Any) -> BundleError:
    """SPY833."""
    return command.error("SPY833", f"{command.name} 'ishape' {what}", "ishape", "", shown(value))


def _hcm(command: JsonObject, ohandle: str) -> Hcm:
    """Parse the hcm of a host compute. BundleError SPY834 for a known key of the wrong type."""
    value = command.properties[command.spelling("hcm")]
    if not isinstance(value, dict):
        raise _wrong_hcm(command, ohandle, "hcm is not an object", value)
    others = {k: v for k, v in value.items() if k not in ("vdci", "senConstants", "symbols")}
    vdci, constants = value.get("vdci", {}), value.get("senConstants", [])
    if not isinstance(vdci, dict):
        raise _wrong_hcm(command, ohandle, "the vdci field is not an object", vdci)
    if not isinstance(constants, list):
        raise _wrong_hcm(command, ohandle, "senConstants is not an array", constants)
    return Hcm(vdci, tuple(constants), _symbols(command, ohandle, value.get("symbols")), others)


def _symbols(command: JsonObject, ohandle: str, value: Any) -> tuple[SymbolKind, ...] | None:
    if value is None:
        return None
    try:
        return msgspec.convert(value, tuple[SymbolKind, ...])
    except (msgspec.ValidationError, RecursionError) as error:
        raise _wrong_hcm(command, ohandle, f"symbols: {error}", value) from error


def _wrong_hcm(command: JsonObject, ohandle: str, reason: str, value: Any) -> BundleError:
    """SPY834."""
    message = (
        f"Failed to parse SpyreCode command: Failed to import Hcm for ohandle '{ohandle}': {reason}"
    )
    return command.error("SPY834", message, "hcm", "", shown(value))


def _data_transfer(command: JsonObject) -> DataTransfer:
    key = "dirn" if command.holds("dirn") else command.spelling("dirn", "direction")
    directions = {
        k: _DIRECTIONS.get(v) if isinstance(v := command.properties[k], str) else None
        for k in ("dirn", "direction")
        if command.holds(k)
    }
    direction = directions[key]
    if direction is None:
        value = command.properties[key]
        message = f"Invalid DataTransfer direction: {value}"
        expected = '"false" (host to device) or "true" (device to host)'
        raise command.error("SPY838", message, key, expected, shown(value))
    if len(set(directions.values())) > 1:
        command.spelling("dirn", "direction")
    handle = command.text("host_handle")
    return DataTransfer(direction, handle, command.size("size"), command.number("dev_ptr"))


def _compute_on_device(command: JsonObject) -> ComputeOnDevice:
    name = command.text("name") if command.holds("name") else None
    return ComputeOnDevice(command.number("job_bin_ptr"), name)


_EXECUTION_READERS: dict[str, Callable[[JsonObject], ExecutionCommand]] = {
    "ComputeOnHost": _compute_on_host,
    "DataTransfer": _data_transfer,
    "ComputeOnDevice": _compute_on_device,
}


def _file_records(document: dict[str, Any], file: str) -> dict[str, FileRecord]:
    listed = document.get(FILES_KEY, {})
    if not isinstance(listed, dict):
        raise JsonObject(FILES_KEY, document, file, "$").wrong(FILES_KEY, "an object")
    records = {}
    for name, record in listed.items():
        if not isinstance(record, dict):
            inside = JsonObject(FILES_KEY, listed, file, f"$.{FILES_KEY}")
            raise inside.wrong(name, "an object with size and sha256")
        fields = JsonObject(FILES_KEY, record, file, f"$.{FILES_KEY}.{name}")
        records[name] = (fields.number("size"), fields.text("sha256"))
    return records


def format_spyrecode(code: SpyreCode) -> bytes:
    """The file's text, with the keys the runtime's code reads; findings are not part of it."""
    allocate = {"command": "Allocate", "properties": {"size": str(code.allocation_bytes)}}
    document: dict[str, Any] = {
        PREPARATION_PLAN: [allocate, *map(_command_object, code.init_transfers)],
        EXECUTION_PLAN: list(map(_command_object, code.execution)),
    }
    if code.files:
        document[FILES_KEY] = {
            name: {"size": str(size_bytes), "sha256": sha256}
            for name, (size_bytes, sha256) in code.files.items()
        }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _command_object(command: InitTransfer | ExecutionCommand) -> dict[str, Any]:
    return {"command": type(command).__name__, "properties": _properties(command)}


def _properties(command: InitTransfer | ExecutionCommand) -> dict[str, Any]:
    match command:
        case InitTransfer(name, address, size):
            return {"init_bin_file": name, "dev_ptr": str(address), "size": str(size)}
        case ComputeOnHost(ihandle, shape, ohandle, size, hcm):
            symbols = {} if hcm.symbols is None else {"symbols": msgspec.to_builtins(hcm.symbols)}
            constants = {"vdci": hcm.vdci, "senConstants": list(hcm.sen_constants)}
            return {
                "ihandle": ihandle,
                "ishape": [str(extent) for extent in shape],
                "ohandle": ohandle,
                "size": str(size),
                "hcm": {**constants, **hcm.others, **symbols},
            }
        case DataTransfer(direction, handle, size, address):
            return {
                "dirn": direction.value,
                "host_handle": handle,
                "size": str(size),
                "dev_ptr": str(address),
            }
        case ComputeOnDevice(address, name):
            properties = {"job_bin_ptr": str(address)}
            return properties if name is None else {**properties, "name": name}
