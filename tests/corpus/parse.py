"""Files that cannot be read: bundle.mlir texts of ``tests/mlir/bad_mlir``, and missing files."""

from __future__ import annotations

import re
from pathlib import Path

from spyre.mlir.sdsc.codec import encode_sdsc
from tests.corpus.making import CorpusCase, Edit, Stage, delete, folder, patch, text, write
from tests.mlir.sample_bundles import SAMPLES

MODULES = Path(__file__).resolve().parents[1] / "mlir" / "bad_mlir"
CODE = re.compile(r"SPY\d{3}")
FILE_NAME = re.compile(r'sdsc_filename"?\s*=\s*"([\w.]+)"')
SYMBOLIC = SAMPLES["symbolic_add"]
NODE = "/0_add/dscs_/0/add/scheduleTree_/0"
LITERAL = patch(
    "sdsc_0.json",
    {
        f"{NODE}/isStartAddrSymbolic_": 0,
        f"{NODE}/startAddressCoreCorelet_/data_": {"[0, 0, 0]": "0", "[1, 0, 0]": "2048"},
    },
)
"""The first operand's address is 0, where no argument lies."""


def module_case(path: Path) -> CorpusCase:
    """A bad bundle.mlir; the SDSC files it names are good ones."""
    content = path.read_text()
    code = CODE.findall(path.with_suffix(".txt").read_text())[0]
    stage = Stage.PARSE if code < "SPY130" else Stage.CHECK
    (sdsc,) = SAMPLES["add"]().sdscs.values()
    names = dict.fromkeys(FILE_NAME.findall(content))
    files: list[Edit] = [write(name, encode_sdsc(sdsc)) for name in names]
    edits = (write("bundle.mlir", content), *files)
    return CorpusCase(f"mlir_{path.stem}", stage, code, None, edits)


CASES = (
    *map(module_case, sorted(MODULES.glob("*.mlir"))),
    CorpusCase("no_directory", Stage.PARSE, "SPY270", None, (), ("nowhere", "--check")),
    CorpusCase("no_module", Stage.PARSE, "SPY271", SYMBOLIC, (delete("bundle.mlir"),)),
    CorpusCase("no_sdsc", Stage.PARSE, "SPY272", SYMBOLIC, (delete("sdsc_0.json"),)),
    CorpusCase("no_utf8", Stage.PARSE, "SPY274", SYMBOLIC, (write("bundle.mlir", b"module \xff"),)),
    CorpusCase(
        "sdsc_is_a_directory",
        Stage.PARSE,
        "SPY272",
        SYMBOLIC,
        (delete("sdsc_0.json"), folder("sdsc_0.json")),
    ),
    CorpusCase(
        "not_executed", Stage.CHECK, "SPY277", SYMBOLIC, (write("sdsc_7.json", "not read"),)
    ),
    CorpusCase(
        "symbol_not_bound",
        Stage.CHECK,
        "SPY275",
        SYMBOLIC,
        (text("bundle.mlir", "-3, -4", "-3, -9"),),
    ),
    CorpusCase(
        "literal_address_beside_parameters",
        Stage.CHECK,
        "SPY298",
        SYMBOLIC,
        (LITERAL,),
    ),
    CorpusCase(
        "symbol_not_used",
        Stage.CHECK,
        "SPY276",
        SYMBOLIC,
        (text("sdsc_0.json", '"-4"', '"-3"'),),
    ),
)
