"""A pytest plugin for torch-spyre's tests: records copies and launches with their CPU seconds.

`qa.frontend.ratio` loads it; SPYRE_FRONTEND_RUN holds its settings, `folder` where to write.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # until the calls are wrapped

import msgspec
import torch

from spyre.frontend import autoload, extension
from spyre.frontend.tensors import record_of
from spyre.torch_backend.tensors import buffer_of

_FOLDER = Path(json.loads(os.environ["SPYRE_FRONTEND_RUN"])["folder"])
_rows: list[dict[str, Any]] = []


def _timed(function: Callable[..., Any], describe: Callable[..., dict[str, Any]]) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.process_time()
        result = function(*args, **kwargs)
        _rows.append({**describe(result, *args), "seconds": time.process_time() - begin})
        return result

    return call


def _layout(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return the fields of the layout of a contiguous tensor that is all of its memory."""
    if tensor.device.type != "spyre":
        return None
    record = record_of(tensor)
    whole = tuple(tensor.size()) == record.sizes and not tensor.storage_offset()
    return msgspec.structs.astuple(record.layout) if whole and tensor.is_contiguous() else None


def _copy(result: Any, source: torch.Tensor, target: torch.Tensor, *_: Any) -> dict[str, Any]:
    tensors = [
        {"device": t.device.type, "size": [*t.size()], "stride": [*t.stride()],
         "dtype": str(t.dtype).removeprefix("torch."), "layout": _layout(t)}
        for t in (source, target)
    ]  # fmt: skip
    return {"kind": "copy", "tensors": tensors}


def _preparation(plan: Any, directory: str, *_: Any) -> dict[str, Any]:
    kept = _FOLDER / f"code{len(_rows)}"
    shutil.copytree(directory, kept)
    plan.timed_as = str(kept)
    return {"kind": "preparation", "code": str(kept)}


def _launch(_: Any, plan: Any, tensors: Any) -> dict[str, Any]:
    sizes = [buffer_of(tensor).host_bytes for tensor in tensors]
    return {"kind": "launch", "code": plan.timed_as, "bytes": sizes}


for _name, _describe in (
    ("copy_tensor", _copy), ("prepare_kernel", _preparation), ("launch_jobplan", _launch)
):  # fmt: skip
    extension.EXPORTS[_name] = _timed(extension.EXPORTS[_name], _describe)
autoload()


def pytest_sessionfinish() -> None:
    (_FOLDER / "calls.json").write_text(json.dumps(_rows))
