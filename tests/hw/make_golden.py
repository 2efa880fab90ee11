"""`python -m tests.hw.make_golden [NAME …]`: writes the golden vectors anew.

Per case an npz holds the codes of every input (``<case>.in0`` …), of the output (``<case>.out``),
and the case as JSON (``<case>.json``: extents, work slices, constants, formats).
"""

from __future__ import annotations

import json
import sys
import zlib

import msgspec
import numpy as np

from spyre.mlir.operation.operation import Padding
from tests.hw import golden_formulas, golden_packed_formulas
from tests.hw.golden_case import Case
from tests.hw.golden_cases import GOLDEN, VECTORS, Row
from tests.hw.golden_formats import Array, decode, encode, half_constant
from tests.hw.golden_formulas import Given, Slide, permuted

FORMULAS = {**golden_formulas.FORMULAS, **golden_packed_formulas.FORMULAS}


def make_vectors(name: str) -> dict[str, Array]:
    """All arrays of one operation."""
    row = GOLDEN[name]
    arrays = {}
    for case in row.cases:
        for key, array in _case_arrays(name, row, case).items():
            arrays[f"{case.name}.{key}"] = array
    return arrays


def _case_arrays(name: str, row: Row, case: Case) -> dict[str, Array]:
    rng = np.random.default_rng(zlib.crc32(f"{name} {case.name}".encode()))
    last = len(case.operands) - 1
    drawn = [_with_zeros(case, k, row.draw(k)(rng, case.shape(k))) for k in range(last)]
    codes = [encode(drawn[k], case.operands[k].data_format) for k in range(last)]
    found = FORMULAS[name](_given(case, codes))
    target = case.operands[last]
    values = np.broadcast_to(found, _broadcast_shape(case, found)).reshape(case.shape(last))
    if case.tags:
        values = permuted(values, case.tags[last])
    arrays = {f"in{k}": array for k, array in enumerate(codes)}
    return {
        **arrays,
        "out": encode(values, target.data_format),
        "json": np.array(json.dumps(_description(name, case))),
    }


def _with_zeros(case: Case, operand: int, values: Array) -> Array:
    """``values`` with zeros where the operand's memory holds a window's padding."""
    for dim, kind in case.operands[operand].padding.items():
        window, axis = case.spec.windows[dim], case.held(operand).index(dim)
        if kind is Padding.STORED_ZEROS:
            place = np.arange(values.shape[axis])
            outside = (place < window.pad_front) | (place >= window.total - window.pad_back)
            values = np.where(np.expand_dims(outside, _others(values.ndim, axis)), 0, values)
    return values


def _others(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(k for k in range(rank) if k != axis)


def _slides(case: Case) -> list[Slide]:
    slides = []
    for dim, window in case.spec.windows.items():
        implied = case.operands[0].padding.get(dim) is Padding.IMPLIED
        pads = (window.pad_front, window.pad_back) if implied else (0, 0)
        places = case.spec.extents[window.window_dim]
        slides.append(Slide(places, window.stride, window.dilation, pads))
    return slides


def _given(case: Case, codes: list[Array]) -> Given:
    last = len(case.operands) - 1
    inputs = [
        _spread(case, k, decode(array, case.operands[k].data_format))
        for k, array in enumerate(codes)
    ]
    held = case.held(last)
    lacking = tuple(i for i, dim in enumerate(case.spec.extents) if dim not in held)
    constants = {name: half_constant(bits) for name, bits in case.spec.constants.items()}
    return Given(inputs, constants, lacking, case.shape(last), _slides(case))


def _spread(case: Case, operand: int, values: Array) -> Array:
    """One axis per dim of the operation, then the lanes where there are several."""
    held = case.held(operand)
    shape = [case.size(operand, dim) if dim in held else 1 for dim in case.spec.extents]
    lanes = case.lanes.get(operand, 1)
    return values.reshape([*shape, lanes] if lanes > 1 else shape)


def _broadcast_shape(case: Case, found: Array) -> tuple[int, ...]:
    """The output over all dims, or as it is where the formula gave its own shape."""
    last = len(case.operands) - 1
    if found.shape == case.shape(last):
        return found.shape
    held = case.held(last)
    return tuple(case.logical[d] if d in held else 1 for d in case.spec.extents)


def _description(name: str, case: Case) -> dict[str, object]:
    return {
        "operation": case.spec.name,
        "of": name,
        "extents": dict(case.spec.extents),
        "logical": dict(case.logical),
        "work_slices": dict(case.spec.splits),
        "constants": dict(case.spec.constants),
        "masks": {dim: list(map(list, spans)) for dim, spans in case.spec.masks.items()},
        "formats": [operand.data_format for operand in case.operands],
        "arrangements": list(case.tags),
        **_packed_or_windowed(case),
    }


def _packed_or_windowed(case: Case) -> dict[str, object]:
    windows = {
        dim: [w.window_dim, w.total, w.stride, w.dilation, w.pad_front, w.pad_back]
        for dim, w in case.spec.windows.items()
    }
    packings = {str(k): msgspec.structs.asdict(packed) for k, packed in case.packings.items()}
    return {
        **({"windows": windows} if windows else {}),
        **({"packings": packings} if packings else {}),
    }


def main(names: list[str]) -> None:
    """Write the files of ``names``, by default of all operations."""
    VECTORS.mkdir(parents=True, exist_ok=True)
    for name in names or GOLDEN:
        np.savez_compressed(VECTORS / f"{name}.npz", **make_vectors(name))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1:])
