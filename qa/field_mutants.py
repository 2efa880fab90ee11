"""Mutants of SDSC fields without effect, to test that every contradiction is found.

`python -m qa.field_mutants [DIR] [--count N] [--seed S]` changes one such field in an SDSC of a
real case and checks the file. A mutant must be refused, warned about, or mean the same as the
original; any other is printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from qa import BUNDLES, directory
from spyre.errors import Severity, SpyreError
from spyre.mlir.sdsc.codec import decode_sdsc
from spyre.mlir.sdsc.inspection import inspect_sdsc

Tree = dict[str, Any]
Change = Callable[[random.Random, Tree], bool]
"""Changes a DSC; False if it has nothing to change."""


def _set(node: Tree, key: str, values: list[Any], rng: random.Random) -> bool:
    """Set an existing field to another value."""
    if key not in node:
        return False
    node[key] = rng.choice([v for v in values if v != node[key]])
    return True


def unit(rng: random.Random, dsc: Tree) -> bool:
    return _set(dsc["computeOp_"][0], "exUnit", ["pt", "sfp", "pe"], rng)


def execution_format(rng: random.Random, dsc: Tree) -> bool:
    used = {tensor["dataFormat_"] for tensor in dsc["labeledDs_"]}
    formats = {"SEN169_FP16", "IEEE_FP32", "SENINT8", "IEEE_INT32", "x"} - used
    attributes = dsc["computeOp_"][0].get("attributes_", {})
    return _set(attributes, "dataFormat_", sorted(formats), rng)


def fidelity(rng: random.Random, dsc: Tree) -> bool:
    return _set(dsc["computeOp_"][0].get("attributes_", {}), "fidelity_", ["best", ""], rng)


def location(rng: random.Random, dsc: Tree) -> bool:
    return _set(dsc["computeOp_"][0], "location", ["Outer", "inner", ""], rng)


def max_dim_sizes(rng: random.Random, dsc: Tree) -> bool:
    node = rng.choice(dsc["scheduleTree_"])
    sizes = node.get("maxDimSizes_")
    if not sizes or node.get("indirectAllocType_") != "no_indirection":
        return False
    sizes[rng.randrange(len(sizes))] = rng.choice((3, 64, 4096))
    return True


def _coordinates(rng: random.Random, dsc: Tree) -> Tree | None:
    node = rng.choice(dsc["scheduleTree_"])
    infos = node.get("coordinates_", {}).get("coordInfo", {})
    if not infos or node.get("indirectAllocType_") == "index_tensor":
        return None
    info: Tree = infos[rng.choice(list(infos))]
    return info


def alpha(rng: random.Random, dsc: Tree) -> bool:
    """Change the step of a fold with more than one part; the others have no step."""
    info = _coordinates(rng, dsc)
    folds = [] if info is None else list(_folds(info))
    steps = [affine for affine, fold in folds if int(fold["factor_"]) > 1]
    return bool(steps) and _change(rng, rng.choice(steps), "alpha_")


def beta(rng: random.Random, dsc: Tree) -> bool:
    info = _coordinates(rng, dsc)
    return info is not None and _change(rng, rng.choice(list(_folds(info)))[0], "beta_")


def _folds(info: Tree) -> Iterator[tuple[Tree, Tree]]:
    folds = info["folds"]
    for function, fold in zip(folds["dim_prop_func"], folds["dim_prop_attr"], strict=True):
        yield function["Affine"], fold


def _change(rng: random.Random, node: Tree, key: str) -> bool:
    node[key] = int(node[key]) + rng.choice((1, 2, 64, -3))
    return True


def core_fold(rng: random.Random, dsc: Tree) -> bool:
    """Change the number of cores of a coordinate, but not to 1, which documents write for HBM."""
    info = _coordinates(rng, dsc)
    if info is None:
        return False
    fold = next(_folds(info))[1]
    return _change(rng, fold, "factor_") and int(fold["factor_"]) != 1


def fold_counts(rng: random.Random, dsc: Tree) -> bool:
    info = _coordinates(rng, dsc)
    return info is not None and _change(rng, info, rng.choice(("spatial", "temporal", "elemArr")))


def padding(rng: random.Random, dsc: Tree) -> bool:
    info = _coordinates(rng, dsc)
    values = ["nopad", "padded_wzeropad", "x"]
    return info is not None and _set(info, "padding", values, rng)


def memories(rng: random.Random, dsc: Tree) -> bool:
    """Remove the memory of a tensor from its table, or mark it as not present."""
    node = rng.choice(dsc["scheduleTree_"])
    table = dsc["labeledDs_"][int(node["ldsIdx_"])].get("memOrg_", {})
    if node["component_"] not in table:
        return False
    if rng.random() < 0.5:
        del table[node["component_"]]
    else:
        table[node["component_"]]["isPresent"] = 0
    return True


def start_factor(rng: random.Random, dsc: Tree) -> bool:
    folds = rng.choice(dsc["scheduleTree_"])["startAddressCoreCorelet_"]["dim_prop_attr"]
    return _change(rng, rng.choice(folds), "factor_")


def start_function(rng: random.Random, dsc: Tree) -> bool:
    functions = rng.choice(dsc["scheduleTree_"])["startAddressCoreCorelet_"]["dim_prop_func"]
    functions[rng.randrange(1, len(functions))] = rng.choice(
        ({"Map": {}}, {"Affine": {"alpha_": 1, "beta_": 0}})
    )
    return True


def mask_constant(rng: random.Random, dsc: Tree) -> bool:
    if any(dsc.get("coordinateMasking_", {}).values()):
        return False
    dsc["maskingConstId_"] = rng.choice((0, 1, 7))
    return True


def splits(rng: random.Random, dsc: Tree) -> bool:
    """Add a window or a split within a core to N_ or to a stage."""
    stages = list(dsc.get("dataStageParam_", {}).values())
    extents = rng.choice([dsc["N_"], *(stage[k] for stage in stages for k in ("ss_", "el_"))])
    key = rng.choice(("paddingSizes_", "coreletSplit_", "rowSplit_", "peSfpSplit_"))
    if extents.get(key):
        return False
    dim = next(name for name in extents if name != "name_")
    window = {"totalSize_": 9, "stride_": 1, "windowDim_": dim}
    extents[key] = {dim: window if key == "paddingSizes_" else 2}
    return True


CHANGES: dict[str, Change] = {
    function.__name__: function
    for function in (
        *(unit, execution_format, fidelity, location, max_dim_sizes, alpha, beta, core_fold),
        *(fold_counts, padding, memories, start_factor, start_function, mask_constant, splits),
    )
}


def mutants(root: Path, count: int, seed: int) -> Iterator[tuple[str, Path, str]]:
    """Yield (kind, file, outcome) of each mutant; the outcome is a code, or "" without finding."""
    rng = random.Random(seed)
    files = sorted(path for path in root.glob("**/sdsc_*.json"))
    made = 0
    while made < count:
        file, kind = rng.choice(files), rng.choice(list(CHANGES))
        tree: Tree = json.loads(file.read_bytes())
        (outer,) = tree.values()
        (dsc,) = outer["dscs_"][0].values()
        if not CHANGES[kind](rng, dsc):
            continue
        made += 1
        found = set(findings(json.dumps(tree).encode())) - set(original_findings(file))
        errors_first = sorted(found, key=lambda finding: finding[0] != Severity.ERROR)
        yield kind, file, errors_first[0][1] if found else ""


@cache
def original_findings(file: Path) -> tuple[tuple[str, str, str], ...]:
    return findings(file.read_bytes())


def findings(content: bytes) -> tuple[tuple[str, str, str], ...]:
    """Return severity, code and text of every finding about a file."""
    try:
        found = inspect_sdsc(decode_sdsc(content, "f"), "f").findings
    except SpyreError as error:
        return ((Severity.ERROR, error.code, str(error)),)
    return tuple((finding.severity, finding.code, str(finding)) for finding in found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m qa.field_mutants", description=__doc__)
    parser.add_argument("directory", nargs="?", type=directory, default=str(BUNDLES), metavar="DIR")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for kind, file, code in mutants(options.directory, options.count, options.seed):
        counts[kind, code] += 1
        if not code:
            print(f"{kind}: {file}: nothing is said", flush=True)
    for (kind, code), number in sorted(counts.items()):
        print(f"{kind:20}{code or 'MISSED':8}{number:6}")
    return 1 if any(not code for _, code in counts) else 0


if __name__ == "__main__":
    raise SystemExit(main())
