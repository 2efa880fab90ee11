"""Changes to the files of a kernel; each returns False if it does not apply."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = (-65536, -8192, -1024, -256, -128, 128, 256, 1024, 8192, 65536)
FACTORS = (0, 0.5, 2, 3)
Tree = dict[str, Any]
Change = Callable[[random.Random, Path], bool]


def in_sdsc(change: Callable[[random.Random, Tree, Tree], bool]) -> Change:
    """Apply ``change`` to a random SDSC file; it gets the outer object and its DSC."""

    def apply(rng: random.Random, directory: Path) -> bool:
        file = rng.choice(sorted(directory.glob("sdsc_*.json")))
        tree: Tree = json.loads(file.read_text())
        (outer,) = tree.values()
        (dsc,) = outer["dscs_"][0].values()
        if not change(rng, outer, dsc):
            return False
        file.write_text(json.dumps(tree))
        return True

    return apply


def _starts(node: Tree) -> dict[str, str]:
    found: dict[str, str] = node["startAddressCoreCorelet_"]["data_"]
    return found


@in_sdsc
def literal_address(rng: random.Random, outer: Tree, dsc: Tree) -> bool:
    """Move one or all literal start addresses of a tensor (HBM or LX)."""
    nodes = [n for n in dsc["scheduleTree_"] if not n.get("isStartAddrSymbolic_")]
    if not nodes:
        return False
    starts, step = _starts(rng.choice(nodes)), rng.choice(STEPS)
    keys = list(starts) if rng.random() < 0.5 else [rng.choice(list(starts))]
    for key in keys:
        starts[key] = str(max(0, int(starts[key]) + step))
    return True


@in_sdsc
def symbol_order(rng: random.Random, outer: Tree, dsc: Tree) -> bool:
    """Exchange two symbols (or literal starts) of cores or tensors."""
    nodes = [n for n in dsc["scheduleTree_"] if n.get("component_") == "hbm"]
    if not nodes:
        return False
    a, b = _starts(rng.choice(nodes)), _starts(rng.choice(nodes))
    k, m = rng.choice(list(a)), rng.choice(list(b))
    if a[k] == b[m]:
        return False
    a[k], b[m] = b[m], a[k]
    return True


@in_sdsc
def gap(rng: random.Random, outer: Tree, dsc: Tree) -> bool:
    """Add, remove or change a gap."""
    node = rng.choice(dsc["scheduleTree_"])
    gaps = node.setdefault("backGapCore_", {})
    dim = rng.choice(node["layoutDimOrder_"])
    if dim in gaps and rng.random() < 0.5:
        del gaps[dim]
        return True
    keys = [key for key in gaps.get(dim, {"-1": 0})]
    value = rng.choice((1, 2, 4, 32, 64, 128))
    gaps[dim] = {key: str(value) for key in keys}
    return True


@in_sdsc
def extent(rng: random.Random, outer: Tree, dsc: Tree) -> bool:
    """Change an extent, in N_ alone or in the stages too."""
    dims = [key for key, value in dsc["N_"].items() if isinstance(value, int)]
    dim, factor = rng.choice(dims), rng.choice((0.5, 2))
    places = [dsc["N_"]]
    if rng.random() < 0.8:
        places += [s[k] for s in dsc["dataStageParam_"].values() for k in ("ss_", "el_") if k in s]
    for place in places:
        if isinstance(place.get(dim), int):
            place[dim] = max(1, int(place[dim] * factor))
    return True


@in_sdsc
def scale(rng: random.Random, outer: Tree, dsc: Tree) -> bool:
    """Change one scale of one tensor."""
    scales = rng.choice(dsc["labeledDs_"])["scale_"]
    if not scales:
        return False
    k = rng.randrange(len(scales))
    scales[k] = rng.choice([s for s in (1, -1, -2) if s != scales[k]])
    return True


@in_sdsc
def core_slices(rng: random.Random, outer: Tree, dsc: Tree) -> bool:
    """Exchange the work slices of two cores, or give one core the other's."""
    slices = outer["coreIdToWkSlice_"]
    if len(slices) < 2:
        return False
    a, b = rng.sample(list(slices), 2)
    if rng.random() < 0.5:
        slices[a] = dict(slices[b])
    else:
        slices[a], slices[b] = slices[b], slices[a]
    return True


@in_sdsc
def layout_order(rng: random.Random, outer: Tree, dsc: Tree) -> bool:
    """Exchange two dims of a tensor's order in memory, which changes its pitches."""
    info = rng.choice(list(dsc["primaryDsInfo_"].values()))
    order = info["layoutDimOrder_"]
    if len(order) < 2:
        return False
    old = list(order)
    i, j = rng.sample(range(len(order)), 2)
    order[i], order[j] = order[j], order[i]
    for node in dsc["scheduleTree_"]:
        if node["layoutDimOrder_"] == old:
            node["layoutDimOrder_"] = list(order)
    return True


def _replace_number(
    rng: random.Random, directory: Path, pattern: str, values: Callable[[int], int]
) -> bool:
    module = directory / "bundle.mlir"
    text = module.read_text()
    places = list(re.finditer(pattern, text))
    if not places:
        return False
    place = rng.choice(places)
    changed = values(int(place[1]))
    if changed == int(place[1]) or changed < 0:
        return False
    module.write_text(text[: place.start(1)] + str(changed) + text[place.end(1) :])
    return True


def map_stride(rng: random.Random, directory: Path) -> bool:
    """Change a coefficient of an affine map."""
    factor, step = rng.choice(FACTORS), rng.choice(STEPS)
    change = (lambda n: int(n * factor)) if rng.random() < 0.6 else (lambda n: n + step)
    return _replace_number(rng, directory, r"(\d+) ?\* ?d\d", change)


def constant(rng: random.Random, directory: Path) -> bool:
    """Change a constant of bundle.mlir: an offset of a core, a bound of a loop."""
    step = rng.choice((*STEPS, -1, 1))
    return _replace_number(rng, directory, r"arith\.constant (\d+) : index", lambda n: n + step)


def operand_order(rng: random.Random, directory: Path) -> bool:
    """Exchange two operands of an execute."""
    module = directory / "bundle.mlir"
    text = module.read_text()
    places = [m for m in re.finditer(r"sdsc_execute \(([^)]*)\)", text) if "," in m[1]]
    if not places:
        return False
    place = rng.choice(places)
    names = [name.strip() for name in place[1].split(",")]
    i, j = rng.sample(range(len(names)), 2)
    names[i], names[j] = names[j], names[i]
    module.write_text(text[: place.start(1)] + ", ".join(names) + text[place.end(1) :])
    return True


CHANGES: dict[str, Change] = {
    "literal address": literal_address,
    "symbol order": symbol_order,
    "gap": gap,
    "extent": extent,
    "scale": scale,
    "core slices": core_slices,
    "layout order": layout_order,
    "map stride": map_stride,
    "constant": constant,
    "operand order": operand_order,
}
