"""Built operations and bundles run without files; here they are written, read and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from spyre.mlir.builder.bundles import BuiltBundle, BundleBuilder
from spyre.mlir.builder.operations import BuiltOperation
from spyre.mlir.sdsc.codec import decode_sdsc, encode_sdsc
from spyre.mlir.sdsc.inspection import inspect_sdsc
from spyre.mlir.text.lowering import inspect_module
from spyre.mlir.text.parser import parse_module
from spyre.mlir.text.printer import print_module


def check_operation(built: BuiltOperation) -> None:
    """The JSON of an operation is read back as that operation, with the same findings."""
    sdsc = decode_sdsc(encode_sdsc(built.sdsc), built.described.file)
    assert sdsc == built.sdsc
    assert inspect_sdsc(sdsc, built.described.file) == built.inspection


def check_bundle(bundle: BuiltBundle) -> None:
    """The text of a bundle is lowered to its program; its JSON is read back as its operations."""
    inspection = inspect_module(parse_module(print_module(bundle.module)))
    assert inspection.program == bundle.program
    for built in bundle.built.values():
        check_operation(built)


@contextmanager
def checked_bundles(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BuiltBundle]]:
    """Every bundle that is built inside is checked; gives the list of them."""
    bundles: list[BuiltBundle] = []
    build: Callable[[BundleBuilder], BuiltBundle] = BundleBuilder.build

    def checked(builder: BundleBuilder) -> BuiltBundle:
        bundles.append(build(builder))
        check_bundle(bundles[-1])
        return bundles[-1]

    with monkeypatch.context() as patch:
        patch.setattr(BundleBuilder, "build", checked)
        yield bundles
