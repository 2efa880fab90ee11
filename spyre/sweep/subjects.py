"""What a sweep is about: bundle directories, and functions with example sizes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from spyre.errors import SweepError

_DIM = re.compile(r"(?:([A-Za-z_]\w*)=)?([1-9]\d*)")
_DTYPE = re.compile(r"[a-z]+\w*")
FUNCTION_FORM = "MODULE:FUNCTION SIZES ..., with SIZES such as rows=1024x4096 or 64x64:float32"


@dataclass(frozen=True, slots=True)
class BundleSubject:
    """A bundle, by its directory; ``text`` is what the sweep calls it."""

    text: str
    directory: str


@dataclass(frozen=True, slots=True)
class TensorText:
    """An example tensor: host sizes, a name per dim ("" for none), torch dtype name."""

    sizes: tuple[int, ...]
    names: tuple[str, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class FunctionSubject:
    """A function of tensors. ``module``: a dotted name, or the path of a Python file."""

    text: str
    module: str
    function: str
    tensors: tuple[TensorText, ...]

    @property
    def is_file(self) -> bool:
        """Whether the module is given by its path."""
        return self.module.endswith(".py")


Subject = BundleSubject | FunctionSubject


def read_bundle_subject(text: str, base: Path) -> BundleSubject:
    """A bundle directory relative to ``base``. SweepError SPY744 if it has no bundle.mlir."""
    directory = (base / text).resolve()
    if not (directory / "bundle.mlir").is_file():
        raise SweepError(
            "SPY744", "a bundle of the sweep is not there", expected=f"{directory}/bundle.mlir"
        )
    return BundleSubject(text, str(directory))


def read_function_subject(text: str, base: Path) -> FunctionSubject:
    """``MODULE:FUNCTION SIZES ...``; files relative to ``base``. SweepError SPY744."""
    place, *sizes = text.split()
    module, _, function = place.rpartition(":")
    if not module or not function.isidentifier() or not sizes:
        raise SweepError(
            "SPY744", "a function of the sweep is not given right", expected=FUNCTION_FORM,
            found=text,
        )  # fmt: skip
    if module.endswith(".py"):
        path = (base / module).resolve()
        if not path.is_file():
            raise SweepError("SPY744", "a module of the sweep is not there", expected=str(path))
        module = str(path)
    return FunctionSubject(text, module, function, tuple(_tensor(one, text) for one in sizes))


def _tensor(text: str, whole: str) -> TensorText:
    sizes, _, dtype = text.partition(":")
    dims = [_DIM.fullmatch(dim) for dim in sizes.split("x")]
    if any(dim is None for dim in dims) or not _DTYPE.fullmatch(dtype or "float16"):
        raise SweepError(
            "SPY744", f"{text!r} are no sizes of a tensor", expected=FUNCTION_FORM, found=whole
        )
    found = [dim for dim in dims if dim is not None]
    return TensorText(
        tuple(int(dim[2]) for dim in found), tuple(dim[1] or "" for dim in found),
        dtype or "float16",
    )  # fmt: skip


def content_digest(subject: Subject) -> str:
    """SHA-256 of the files a subject consists of; of a dotted module its name only."""
    digest = hashlib.sha256()
    for path in _files(subject):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _files(subject: Subject) -> list[Path]:
    if isinstance(subject, BundleSubject):
        directory = Path(subject.directory)
        return [directory / "bundle.mlir", *sorted(directory.glob("*.json"))]
    return [Path(subject.module)] if subject.is_file else []
