"""Texts of KTIR with one thing wrong: the example programs, spoiled."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.corpus.making import BUNDLE, CorpusCase, Stage, write

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "ktir"
FILE = f"{BUNDLE}/kernel.ktir"


def case(
    name: str, code: str, stage: Stage, *edits: tuple[str, str], of: str = "add"
) -> CorpusCase:
    """The example ``of`` with texts replaced, each once; ``--check`` finds ``code``."""
    text = (EXAMPLES / f"{of}.ktir").read_text()
    for old, new in edits:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    words = (FILE, "--check")
    return CorpusCase(f"ktir_{name}", stage, code, None, (write("kernel.ktir", text),), words)


SUM = "%sum = arith.addf %a, %b : tensor<512xf16>"
LOAD = "%a = ktdp.load %x_tile : !ktdp.access_tile<512xindex> -> tensor<512xf16>"
STORE = "ktdp.store %sum, %z_tile"
DELIVERY = """
    %f = ktdp.inter_tile_produce producer_tiles_per_group = affine_set<(i)[g] : (i == g)>
      -> !ktdp.tile_future<(tensor<512xf16>), groups = affine_set<(g) : (g >= 0, -g + 7 >= 0)>> {
      ^bb0(%group: index):
        ktdp.yield_partial %sum : tensor<512xf16>
    }
"""
PAIR = ("x=4096@fp16", "y=4096@fp16")
Z_VIEW = "%z_view = ktdp.construct_memory_view %z, sizes: [4096], strides: [1]"
FALLING = (("%x, sizes: [4096], strides: [1]", "%x, sizes: [4096], strides: [-1]"),)
BAKED = ((Z_VIEW, Z_VIEW.replace("%z,", "%length,")),)
LAST = "memory_space = #ktdp.memory_space<global>\n    } : memref<4096xf16>\n    %x_tile"
SCRATCHPAD = (
    ("%length = arith", "%high = arith.constant 1048000 : index\n    %length = arith"),
    (Z_VIEW, Z_VIEW.replace("%z,", "%high,")),
    (LAST, LAST.replace("global", "ct_local")),
)
SPOILED = (
    ("character", "SPY101", "%sum =", "%sum ;"),
    ("bracket", "SPY102", "%x_view[%first]", "%x_view[%first"),
    ("no_dialect", "SPY110", "arith.addf", "gpu.addf"),
    ("unknown_operation", "SPY110", "arith.addf", "arith.adff"),
    ("generic_form", "SPY111", SUM, '%sum = "arith.addf"(%a, %b) : () -> ()'),
    ("gather", "SPY180", "arith.addf %a, %b", "ktdp.inter_tile_gather(%a)"),
    ("no_type", "SPY186", "%x: index", "%x: tensor<4xf17>"),
    ("undefined", "SPY130", "arith.addf %a, %b", "arith.addf %a, %c"),
    ("early_use", "SPY131", LOAD, f"%q = arith.negf %b : tensor<512xf16>\n    {LOAD}"),
    ("twice", "SPY133", "%b = ktdp.load", "%a = ktdp.load"),
    ("no_alias", "SPY134", "#part,", "#parts,"),
    ("other_type", "SPY181", SUM, SUM.replace("512", "256")),
    ("integers", "SPY182", "arith.addf", "arith.addi"),
    ("indices", "SPY183", "%x_view[%first]", "%x_view[%first, %first]"),
    ("shapes", "SPY184", LOAD, LOAD.replace("tensor<512xf16>", "tensor<256xf16>")),
    ("large_set", "SPY185", "-d0 + 511", "-d0 + 512"),
    ("memory_space", "SPY187", "memory_space<global>", "memory_space<card>"),
    ("grid", "SPY188", "grid = [8]", "grid = [8, 2]"),
    ("empty", "SPY189", LOAD, "%a = tensor.empty() : tensor<512xf16>"),
    ("outside", "SPY190", STORE, f"{DELIVERY.replace('-g + 7', '-g + 9')}    {STORE}"),
    ("undelivered", "SPY191", STORE, f"{DELIVERY}    {STORE}"),
    ("aliasing", "SPY192", "%z, sizes: [4096], strides: [1]", "%z, sizes: [4096], strides: [0]"),
    ("coordinates", "SPY195", "-d0 + 4095", "-d0 + 4096"),
)
"""Name, code, text of the example and its replacement."""
LAST_OF_PARSING = "no_type"
_PARSED = [name for name, *_ in SPOILED].index(LAST_OF_PARSING)
CASES = (
    *(
        case(name, code, Stage.PARSE if k <= _PARSED else Stage.CHECK, (old, new))
        for k, (name, code, old, new) in enumerate(SPOILED)
    ),
    *(
        replace(case(name, code, Stage.LAUNCH, *edits), words=(FILE, *words))
        for name, code, edits, words in (
            ("function", "SPY340", (), ("--function", "sub")),
            ("argument_missing", "SPY342", (), ("-i", "x=4096@fp16")),
            ("argument_unknown", "SPY342", (), ("-i", *PAIR, "w=4096@fp16")),
            ("argument_small", "SPY343", (), ("-i", "x=4096@fp16", "y=4000@fp16")),
            ("argument_type", "SPY344", (), ("-i", "x=4096@fp16", "y=4096@fp32")),
            ("leaves_view", "SPY414", (("constant 512 ", "constant 513 "),), ("-i", *PAIR)),
            ("falling_stride", "SPY557", FALLING, ("-i", *PAIR)),
            ("no_memory", "SPY342", BAKED, ("-i", *PAIR, "--value", "z=0")),
            ("scratchpad", "SPY410", SCRATCHPAD, ("-i", *PAIR, "--value", "z=0")),
        )
    ),
    CorpusCase("ktir_missing", Stage.PARSE, "SPY341", None, (), ("none.ktir", "--check")),
)
