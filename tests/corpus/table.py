"""The corpus: all its cases, and the codes that have none."""

from __future__ import annotations

from tests.corpus import check, launch, parse, run, sanitize, tiles, windows
from tests.corpus.making import CorpusCase

CASES: tuple[CorpusCase, ...] = (
    *parse.CASES,
    *check.CASES,
    *launch.CASES,
    *run.CASES,
    *windows.CASES,
    *sanitize.CASES,
    *tiles.CASES,
)

WITHOUT_CASE: dict[str, str] = {
    **{
        f"SPY{number}": "jobs and streams are used from Python only: tests/runtime/flex"
        for number in (812, *range(870, 880), *range(881, 886), 888, 889)
    },
    **{
        f"SPY{number}": "the PyTorch device is used from Python only: tests/torch_backend"
        for number in (900, 901, 902, 903, 904, 907, 908, 930, 950, 951, 995, 996)
    },
    **{
        f"SPY{number}": "files beside the bundle: tests/hw/cost, tests/cli/test_profile.py"
        for number in (760, 761, 762)
    },
    **{
        f"SPY{number}": "estimates read no bundle: tests/cli/test_estimate.py"
        for number in range(763, 769)
    },
    **{
        f"SPY{number}": "files beside the bundle: tests/cli/test_profile.py"
        for number in (781, 782)
    },
    **{
        f"SPY{number}": "torch-spyre is used from Python only: tests/frontend"
        for number in (*range(990, 995), 997)
    },
    "SPY783": "the PyTorch device is used from Python only: tests/torch_backend",
    **{
        f"SPY{number}": "design-space runs have a separate entry point: tests/sweep"
        for number in range(740, 747)
    },
    **{
        f"SPY{number}": "torch.compile is used from Python only: tests/torch_backend/inductor"
        for number in (960, 961, *range(964, 979), 980, 981, 982, 985, 987)
    },
    "SPY156": "only inspect_module(strict=True) of Python asks for constant bounds",
    "SPY170": "the runtime finds a parameter without value first (SPY362)",
    "SPY172": "values given to the command line and in cases are integers already",
    "SPY174": "the runtime gives one address per allocation; for callers of LoopProgram.schedule",
    "SPY176": "needs gigabytes of addresses: tests/mlir/test_program.py lowers the limit",
    "SPY282": "the checker finds it first (SPY232, SPY234); for programs run with check=False",
    "SPY290": "raised by the SDSC builder of Python",
    "SPY291": "raised by the bundle builder of Python",
    "SPY301": "needs a file that this process may not read",
    "SPY321": "host sizes and dim orders are given in Python only",
    "SPY324": "buffers are given in Python only",
    "SPY360": "memory is freed in Python only",
    "SPY402": "needs a host that refuses address space",
    "SPY193": "a text with tiles as arguments: tests/mlir/tiles/test_checker.py",
    "SPY197": "tiles of more than two mebibytes: tests/hw/tiles/test_tiles.py",
    "SPY415": "deliveries between tiles: tests/hw/tiles/test_tiles.py",
    "SPY194": "a text that reads its indices: tests/hw/tiles/test_tiles.py",
    "SPY403": "device addresses are chosen in Python only; the runtime's lie in one region",
    "SPY405": "a warning about the cache, not the bundle: tests/test_trust.py",
    "SPY404": "needs a cache that this user may not delete: tests/cli/test_process.py",
    "SPY383": "raised for an option of spyre check, which spyre-run lacks: tests/cli/test_commands",
    "SPY620": "needs a bug in the engine: tests/cli/test_dump.py runs with a wrong twin",
    "SPY622": "needs torch: tests/diagnose/test_first_divergence.py",
    "SPY623": "needs torch: tests/diagnose/test_first_divergence.py",
    "SPY624": "only with --break: tests/diagnose/test_first_divergence.py",
    "SPY707": "reported if outputs are known to be wrong: tests/diagnose",
    "SPY708": "reported if outputs are known to be wrong: tests/diagnose",
    "SPY736": "the checker finds it first (SPY235); for programs run with check=False",
    "SPY737": "an SDSC has nine dims at most, which fit",
    "SPY738": "needs 67 million records: tests/sanitizer/test_sanitizer.py begins at the last one",
    "SPY800": "handles are used in Python only",
    "SPY801": "handles are used in Python only",
    "SPY802": "allocation directives are given in Python only",
    "SPY803": "spyre-run has a separate device, without FlexAllocator",
    "SPY804": "spyre-run has a separate device, without FlexAllocator",
    "SPY805": "spyre-run runs on one card and does not enumerate",
    "SPY806": "spyre-run runs on one card and does not enumerate",
    "SPY807": "sizes of the command line are checked earlier; capacities are given in Python only",
    "SPY809": "spyre-run runs on one card and does not enumerate",
    "SPY808": "interleaved memory is allocated in Python only",
    "SPY820": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY821": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY822": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY823": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY824": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY825": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY826": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY827": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY828": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY829": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY830": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY831": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY832": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY833": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY834": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY835": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY836": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY837": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY838": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY840": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY841": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY843": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY844": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY845": "raised by spyre-compile",
    "SPY846": "a warning of spyre-compile",
    "SPY847": "found in SpyreCode directories: tests/runtime/spyrecode",
    "SPY850": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY851": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY852": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY853": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY854": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY855": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY856": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY857": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY858": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY859": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY860": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY861": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY862": "tiled launches are made in Python: tests/runtime/tiling",
    "SPY811": "spyre-run copies to contiguous host tensors",
    "SPY952": "collectives are called in Python: tests/runtime/comms",
    "SPY953": "collectives are called in Python: tests/runtime/comms",
    "SPY954": "collectives are called in Python: tests/runtime/comms",
    "SPY955": "collectives are called in Python: tests/runtime/comms",
    "SPY956": "collectives are called in Python: tests/runtime/comms",
    "SPY957": "collectives are called in Python: tests/runtime/comms",
    "SPY958": "collectives are called in Python: tests/runtime/comms",
    "SPY959": "collectives are called in Python: tests/runtime/comms",
    "SPY905": "memory is freed in Python only: tests/torch_backend/tensors",
    "SPY906": "layouts are torch's: tests/torch_backend/registration",
    "SPY979": "DTensors are made in Python: tests/torch_backend/distributed",
}
"""Codes that no file and no command line provokes, or not here, with the reason."""
