"""`python -m tests.hw.make_golden [NAME …]`: writes the golden vectors anew.

Per case an npz holds the codes of every input (``<case>.in0`` …), of the output (``<case>.out``),
and the case as JSON (``<case>.json``: extents, work slices, constants, formats).
"""

from __future__ import annotations

import json
import sys
import zlib

import numpy as np

from tests.hw.golden_cases import GOLDEN, VECTORS, Row
from tests.hw.golden_formulas import FORMULAS, Given, decode, encode, half_constant, permuted
from tests.hw.golden_inputs import Array
from tests.hw.golden_shapes import Case


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
    codes = [
        encode(row.draw(k)(rng, case.shape(k)), case.operands[k].data_format) for k in range(last)
    ]
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


def _given(case: Case, codes: list[Array]) -> Given:
    last = len(case.operands) - 1
    inputs = [
        _spread(case, k, decode(array, case.operands[k].data_format))
        for k, array in enumerate(codes)
    ]
    held = case.held(last)
    lacking = tuple(i for i, dim in enumerate(case.spec.extents) if dim not in held)
    constants = {name: half_constant(bits) for name, bits in case.spec.constants.items()}
    return Given(inputs, constants, lacking, case.shape(last))


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
    }


def main(names: list[str]) -> None:
    """Write the files of ``names``, by default of all operations."""
    VECTORS.mkdir(parents=True, exist_ok=True)
    for name in names or GOLDEN:
        np.savez_compressed(VECTORS / f"{name}.npz", **make_vectors(name))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(sys.argv[1:])
