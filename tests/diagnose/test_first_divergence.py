"""The first execute that deviates from a function: of wrong programs the right one, of right ones
none; breakpoints.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import spyre
from qa.conformance.cases import find_cases
from qa.conformance_compiled.real_functions import read_function
from spyre.cli.run import main
from spyre.diagnose import map_lines
from spyre.diagnose.first_divergence import Deviation
from spyre.diagnose.tiles import (
    ReferenceValue,
    find_paths,
    match_outputs,
    tile_layouts,
)
from spyre.errors import DeviceLocation
from spyre.hw.device.device import Device
from spyre.mlir.builder.bundles import BundleBuilder
from spyre.mlir.builder.recipes import HostOperand, pointwise
from spyre.mlir.bundle import load_bundle, write_bundle
from spyre.mlir.operation import Origin
from spyre.runtime.cases import read_case
from tests.examples import sample
from tests.sanitizer import programs
from tests.sanitizer.programs import ROW, lx

FIRST = {
    "j_ct_bmm_nested_B_K": (1, "input0"),
    "j_ct_cols_abs_64x512": (1, "input0"),
    "j_ct_flash_attention_1x4x128x64": (22, "input0"),
    "j_ct_full_no_dim": (3, "input0"),
    "j_ct_mm_rows_256x128x64": (0, "input0"),
    "j_ct_nested_addmul_64x512_lx": (0, "input0"),
    "j_ct_red_sum_d0_tiled": (1, "input0"),
}
EXAMPLES = Path(__file__).parents[2] / "examples"
TILED = ("abs", "neg")
ROLES = (programs.READ, programs.WRITTEN)


@pytest.mark.shared
@pytest.mark.parametrize("name", FIRST)
def test_wrong_programs(name: str, shared_dir: Path):
    path = shared_dir / "bundles-wrong" / name
    found = spyre.first_wrong(path, read_function(path).call)
    assert found is not None
    assert (found.number, found.value) == FIRST[name]
    assert found.to_finding().code == "SPY622"
    assert 0 < max(found.by_core.values()) <= 1


@pytest.mark.shared
@pytest.mark.slow
def test_right_programs(shared_dir: Path):
    """Every third, and all in the long form."""
    device = Device()
    for path in sample(find_cases(shared_dir / "bundles"), 3):
        real = read_function(path)
        buffers = read_case(path).spec.buffers.values()
        inputs = [each for each in buffers if each.kind == "input" and each.value is not None]
        if len(inputs) == len(real.inputs):  # else raw device bytes
            assert spyre.first_wrong(path, real.call, device=device) is None, path.name


def tiled(directory: Path, step: int = 8 * ROW, read: int = 0, written: int = 8 * ROW) -> Path:
    """-|x| in four tiles of eight rows through LX; arguments change one step each."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    with builder.loop(4) as tile:
        source = HostOperand(x.at(0, {tile: step}), gap={"mb": 24})
        target = HostOperand(y.at(0, {tile: written}), gap={"mb": 24})
        builder.add(pointwise(TILED[0], (8, 128), [source], lx(0), {"mb": 2}))
        builder.add(pointwise(TILED[1], (8, 128), [lx(read)], target, {"mb": 2}))
    return programs.write(builder, directory, [programs.READ, programs.WRITTEN])


def function(x: torch.Tensor) -> torch.Tensor:
    return -torch.abs(x)


def test_a_right_loop(tmp_path: Path):
    assert spyre.first_wrong(tiled(tmp_path), function) is None


def test_a_tile_that_is_read_at_the_wrong_step(tmp_path: Path):
    found = spyre.first_wrong(tiled(tmp_path, step=4 * ROW), function)
    assert found is not None
    assert found.is_read
    assert (found.number, found.location.loop_indices) == (0, (1,))
    assert found.by_core == {0: pytest.approx(1, abs=0.05), 1: pytest.approx(1, abs=0.05)}


def test_a_tile_that_is_written_at_the_wrong_step(tmp_path: Path):
    found = spyre.first_wrong(tiled(tmp_path, written=4 * ROW), function)
    assert found is not None
    assert not found.is_read
    assert (found.operation, found.location.tensor) == ("neg", "arg_1")


def test_a_tile_in_a_layout_of_the_tile_s(tmp_path: Path):
    """Each half of the memory, taken for a tensor, is right, but no tile of x."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    half = programs.NBYTES // 2
    for k, name in enumerate(("abs", "neg")):
        source, target = HostOperand(x.at(k * half)), HostOperand(y.at(k * half))
        builder.add(pointwise(name, (16, 128), [source], target, {}))
    programs.write(builder, tmp_path, ROLES)
    found = spyre.first_wrong(tmp_path, torch.abs)
    assert found is not None
    assert (found.number, found.operation, found.is_of_output) == (1, "neg", True)


def softmax_with(directory: Path, sdsc: int, change: dict[str, str]) -> Path:
    """The example, words of one SDSC exchanged."""
    wrong = shutil.copytree(EXAMPLES / "softmax", directory / "wrong")
    file = wrong / f"sdsc_{sdsc}.json"
    text = file.read_text()
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    return wrong


@pytest.mark.parametrize(
    ("sdsc", "change", "value"),
    [
        (1, {'"sub"': '"mul"'}, "aten.sub"),
        (2, {'"exp"': '"abs"'}, "aten.exp"),
        (3, {'"sum"': '"max"'}, "aten.sum"),  # of equal numbers: the maximum is 1 in every row
    ],
)
def test_an_operation_inside_of_torch_s(sdsc: int, change: dict[str, str], value: str, tmp_path):
    """Decompositions have the values inside of softmax."""
    found = spyre.first_wrong(softmax_with(tmp_path, sdsc, change), lambda x: torch.softmax(x, -1))
    assert found is not None
    assert (found.number, found.value, found.is_of_output) == (sdsc, value, False)


def softmax_exchanged(directory: Path, sdsc: int) -> Path:
    """The example, an execute exchanged with the one behind it."""
    wrong = softmax_with(directory, sdsc, {})
    module = wrong / "bundle.mlir"
    lines = module.read_text().splitlines(keepends=True)
    (at,) = (k for k, line in enumerate(lines) if f'"sdsc_{sdsc}.json"' in line)
    lines[at : at + 2] = lines[at + 1], lines[at]
    module.write_text("".join(lines))
    return wrong


def test_executes_in_another_order(tmp_path: Path):
    found = spyre.first_wrong(softmax_exchanged(tmp_path, 1), lambda x: torch.softmax(x, -1))
    assert found is not None
    assert found.number == 1
    assert "exp reads sticks of Tensor0 that have not been written" in found.to_finding().message


def test_an_execute_without_an_origin_is_known_by_its_operation(tmp_path: Path):
    """The sum before the exponential, which writes to the memory that both read."""
    found = spyre.first_wrong(softmax_exchanged(tmp_path, 2), lambda x: torch.softmax(x, -1))
    assert found is not None
    assert (found.number, found.operation, found.value) == (2, "sum", "aten.sum")


def test_a_later_execute_of_a_node_that_runs_too_early(tmp_path: Path):
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    p, q = (HostOperand(builder.temporary(programs.NBYTES).at()) for _ in range(2))
    for name, source, target in (
        ("neg", HostOperand(x.at()), p),
        ("neg", q, HostOperand(y.at())),
        ("floor", p, q),
    ):
        builder.add(pointwise(name, programs.SHAPE, [source], target))
    bundle = builder.build().with_origins([Origin(k, "aten.ceil.default") for k in "ack"])
    write_bundle(bundle, programs.write(builder, tmp_path, ROLES))
    found = spyre.first_wrong(tmp_path, torch.ceil)
    assert found is not None
    assert "neg reads sticks of Tensor0 that have not been" in found.to_finding().message
    assert found.to_finding().location.execute == 1


def exchange(starts: dict[str, str]) -> None:
    """Start addresses of two cores."""
    one, other = list(starts)[:2]
    starts[one], starts[other] = starts[other], starts[one]


def test_a_result_that_is_written_elsewhere(tmp_path: Path):
    """Two cores of the sum write each other's slice, and the next execute reads what is due."""
    programs.change_starts(programs.right(tmp_path), 0, 2, exchange)
    found = spyre.first_wrong(tmp_path, lambda a, b: torch.abs(a + b))
    assert found is not None
    finding = found.to_finding()
    assert (finding.location.execute, finding.location.tensor) == (0, "Tensor2")
    assert "add: core 0 starts at" in finding.message


def test_a_later_execute_of_a_node_that_writes_elsewhere(tmp_path: Path):
    """The function has values of the first execute's operand and of the last one's result only."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    p, q = (HostOperand(builder.temporary(programs.NBYTES).at()) for _ in range(2))
    for name, source, target in (
        ("neg", HostOperand(x.at()), p),
        ("floor", p, q),
        ("neg", q, HostOperand(y.at())),
    ):
        builder.add(pointwise(name, programs.SHAPE, [source], target, programs.SPLIT))
    bundle = builder.build().with_origins([Origin(k, "aten.ceil.default") for k in "abc"])
    write_bundle(bundle, programs.write(builder, tmp_path, ROLES))
    programs.change_starts(tmp_path, 1, 1, exchange)
    found = spyre.first_wrong(tmp_path, torch.ceil)
    assert found is not None
    assert "floor: core 0 starts at" in found.to_finding().message


def test_the_operation_of_an_execute_may_be_the_wrong_one(tmp_path: Path):
    """Its name is that of another value; its operands say which value is due."""
    builder = BundleBuilder()
    a, b, y = programs.arguments(builder, 3)
    total = HostOperand(builder.temporary(programs.NBYTES).at())
    inputs = [HostOperand(a.at()), HostOperand(b.at())]
    builder.add(pointwise("add", programs.SHAPE, inputs, total))
    builder.add(pointwise("add", programs.SHAPE, [total, inputs[0]], total))
    builder.add(pointwise("abs", programs.SHAPE, [total], HostOperand(y.at())))
    programs.write(builder, tmp_path, [programs.READ, programs.READ, programs.WRITTEN])
    found = spyre.first_wrong(tmp_path, lambda a, b: torch.abs((a + b) * a))
    assert found is not None
    assert (found.number, found.value) == (1, "aten.mul")


def test_a_value_of_another_shape_than_the_result(tmp_path: Path):
    """A sum of the known rows is due by its name; what it writes here is no tile of any."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    p = HostOperand(builder.temporary(programs.NBYTES).at())
    builder.add(pointwise("add", programs.SHAPE, [HostOperand(x.at())] * 2, p))
    builder.add(pointwise("neg", programs.SHAPE, [p], HostOperand(y.at())))
    origins = [Origin("add", "aten.add.Tensor"), Origin("abs", "aten.abs.default")]
    write_bundle(builder.build().with_origins(origins), programs.write(builder, tmp_path, ROLES))

    def of_rows(x: torch.Tensor) -> torch.Tensor:
        return torch.abs((x.sum(1) + x.sum(1))[0] * 0 - x)

    found = spyre.first_wrong(tmp_path, of_rows)
    assert found is not None
    assert (found.number, found.value) == (1, "aten.abs")


def test_a_deviation_is_over_the_whole_tile(tmp_path: Path):
    """Two columns of two rows would be a tile of the value too, the rest padding."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2, (2, 64))
    source, target = HostOperand(x.at()), HostOperand(y.at())
    builder.add(pointwise("neg", (2, 64), [source], target, {"mb": 2}))
    programs.write(builder, tmp_path, ROLES, (2, 64))
    found = spyre.first_wrong(tmp_path, torch.abs)
    assert found is not None
    assert (found.wrong.shape, set(found.by_core)) == ((2, 64), {0, 1})


def test_an_inner_value_of_what_is_computed_is_not_due(tmp_path: Path):
    """relu's decomposition compares, and so does the program: for something else."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    p, q = (HostOperand(builder.temporary(programs.NBYTES).at()) for _ in range(2))
    source = HostOperand(x.at())
    builder.add(pointwise("greaterequal", programs.SHAPE, [source, source], p))
    builder.add(pointwise("relufwd", programs.SHAPE, [source], q))
    builder.add(pointwise("sub", programs.SHAPE, [q, p], HostOperand(y.at())))
    programs.write(builder, tmp_path, ROLES)
    found = spyre.first_wrong(tmp_path, lambda x: torch.relu(x) + 1)
    assert found is not None
    assert (found.number, found.value) == (2, "aten.add")


@pytest.mark.shared
def test_integers_are_compared(tmp_path: Path, shared_dir: Path):
    path = shared_dir / "bundles" / "i64_clone"
    wrong = shutil.copytree(path, tmp_path / "wrong", copy_function=shutil.copy)
    module = wrong / "bundle.mlir"
    text = module.read_text()
    call = text[text.index("sdscbundle.sdsc_execute") :]
    module.chmod(0o644)
    exchanged = re.sub(r"(%arg_1_core_256), (%arg_1_core_512)\b", r"\2, \1", call)
    assert exchanged != call
    module.write_text(text.replace(call, exchanged))
    found = spyre.first_wrong(wrong, read_function(path).call)
    assert found is not None
    assert "identity: core 1 starts at" in found.to_finding().message
    assert spyre.first_wrong(path, read_function(path).call) is None


@pytest.mark.parametrize(("sdsc", "number"), [(2, 2), (4, -1)])
def test_an_execute_that_is_left_out(
    sdsc: int, number: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    wrong = shutil.copytree(EXAMPLES / "softmax", tmp_path / "wrong")
    module = wrong / "bundle.mlir"
    lines = module.read_text().splitlines(keepends=True)
    module.write_text("".join(line for line in lines if f"sdsc_{sdsc}.json" not in line))
    found = spyre.first_wrong(wrong, lambda x: torch.softmax(x, -1))
    assert found is not None
    assert found.number == number
    assert found.to_finding().message.startswith(f"sdsc_{sdsc}.json is never executed")
    (tmp_path / "f.py").write_text("import torch\n\ndef f(x):\n    return torch.softmax(x, -1)\n")
    assert main([str(wrong), "--expect", f"torch:{tmp_path / 'f.py'}:f", "-q"]) == 1
    assert "SPY277" in capfd.readouterr().err.splitlines()[0]


@pytest.mark.parametrize("origin", [Origin(), Origin("abs_1", "aten.abs.default")])
def test_the_origin_of_an_execute(origin: Origin, tmp_path: Path):
    """Of an execute without one, its operands say which value is due."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    builder.add(pointwise("neg", (32, 128), [HostOperand(x.at(0))], HostOperand(y.at(0))))
    write_bundle(builder.build().with_origins([origin]), programs.write(builder, tmp_path, ROLES))
    assert load_bundle(tmp_path).operation("sdsc_0.json").origin == origin
    found = spyre.first_wrong(tmp_path, lambda x: torch.abs(x))
    assert found is not None
    assert (found.number, found.value, found.is_read) == (0, "aten.abs", False)


def test_an_inner_value_in_place_of_the_whole(tmp_path: Path):
    """silu is decomposed into a product by sigmoid, which is known, but not what is due."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    builder.add(pointwise("sigmoid", (32, 128), [HostOperand(x.at(0))], lx(0), {"mb": 2}))
    builder.add(pointwise("neg", (32, 128), [lx(0)], HostOperand(y.at(0)), {"mb": 2}))
    origins = [Origin("silu", "aten.silu.default"), Origin("neg", "aten.neg.default")]
    write_bundle(builder.build().with_origins(origins), programs.write(builder, tmp_path, ROLES))
    found = spyre.first_wrong(tmp_path, lambda x: -torch.nn.functional.silu(x))
    assert found is not None
    assert (found.number, found.value) == (0, "aten.silu")


def test_a_result_that_equals_an_operand(tmp_path: Path):
    """relu of positive numbers: the execute computes its value, the next one does not."""
    builder = BundleBuilder()
    x, y = programs.arguments(builder, 2)
    builder.add(pointwise("abs", (32, 128), [HostOperand(x.at(0))], lx(0), {"mb": 2}))
    builder.add(pointwise("relufwd", (32, 128), [lx(0)], lx(ROW * 64), {"mb": 2}))
    builder.add(pointwise("neg", (32, 128), [lx(ROW * 64)], HostOperand(y.at(0)), {"mb": 2}))
    programs.write(builder, tmp_path, ROLES)
    found = spyre.first_wrong(tmp_path, lambda x: torch.relu(torch.abs(x)) * 3)
    assert found is not None
    assert (found.number, found.value) == (2, "aten.mul")


def plain_softmax(x: torch.Tensor) -> torch.Tensor:
    """Without values of operations."""
    e = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True))
    return torch.from_numpy(e / e.sum(-1, keepdims=True))


SOURCE = inspect.getsource(plain_softmax)


def test_an_intermediate_that_no_value_is_known_of(tmp_path: Path, capfd):
    """Only addresses show what is wrong."""
    wrong = shutil.copytree(EXAMPLES / "softmax", tmp_path / "wrong")
    sdsc = wrong / "sdsc_3.json"
    sdsc.write_text(sdsc.read_text().replace('"4096"', '"6144"'))
    found = spyre.first_wrong(wrong, plain_softmax)
    assert found is not None
    assert (found.number, found.value, found.is_of_output) == (3, "arg_1", True)
    finding = found.to_finding()
    assert finding.code == "SPY622"
    assert (
        "by its addresses; output arg_1 is wrong: sum reads other sticks of Tensor0"
        in finding.message
    )
    (tmp_path / "f.py").write_text(f"import numpy as np\nimport torch\n\n{SOURCE}")
    assert main([str(wrong), "--expect", f"torch:{tmp_path / 'f.py'}:plain_softmax"]) == 1
    shown = capfd.readouterr()
    assert "mismatch of output arg_1: " in shown.out
    report = tmp_path / "report.html"
    words = ["--expect", f"torch:{tmp_path / 'f.py'}:plain_softmax", "-q", "--report", str(report)]
    assert main([str(wrong), *words]) == 1
    section = report.read_text().split('<section id="mismatch"')[1].split("</section>")[0]
    assert "SPY622" in section
    assert "Wrong elements of output arg_1" in section
    assert section.count("% wrong</title>") == 1 + 32 * 64  # a core and blocks of elements
    assert "before it, execute 2: exp: " in section
    assert main([str(EXAMPLES / "softmax"), *words]) == 0
    assert 'id="mismatch"' not in report.read_text()
    assert "  2 exp" in shown.out
    assert "  3 sum" not in shown.out


def test_an_intermediate_that_nobody_has_written(tmp_path: Path):
    wrong = shutil.copytree(EXAMPLES / "softmax", tmp_path / "wrong")
    sdsc = wrong / "sdsc_3.json"
    sdsc.write_text(sdsc.read_text().replace('"4096"', '"131072"'))
    found = spyre.first_wrong(wrong, plain_softmax)
    assert found is not None
    assert (found.number, found.is_of_output) == (3, True)
    finding = found.to_finding()
    assert "sum reads sticks of Tensor0 that have not been written" in finding.message
    assert finding.found == "no execute that writes it"


def test_an_output_that_no_execute_writes(tmp_path: Path):
    wrong = shutil.copytree(EXAMPLES / "softmax", tmp_path / "wrong")
    module = wrong / "bundle.mlir"
    *others, last = module.read_text().split("sdscbundle.sdsc_execute")
    last = last.replace("%arg_1", "%arg_0")
    module.write_text("sdscbundle.sdsc_execute".join([*others, last]))
    found = spyre.first_wrong(wrong, plain_softmax)
    assert found is not None
    assert (found.number, found.location.sdsc) == (4, "sdsc_4.json")
    message = "no execute writes arg_1 where it is wrong; last is realdiv"
    assert found.to_finding().message == message


def scattered(shape: tuple[int, int], every: int) -> np.ndarray:
    """True but for one of ``every`` elements, anywhere."""
    steps = np.random.default_rng(0).permutation(np.arange(np.prod(shape)) % every)
    return steps.reshape(shape) > 0


def test_a_map_is_shown_where_a_part_is_right():
    """Though 90 % of the elements are wrong: some rows, columns or a rectangle are right."""
    one_core, one_column, few_rows = (scattered((64, 128), 20) for _ in range(3))
    one_core[8:16, 16:32] = False
    one_column[:, 6:8] = False
    few_rows[4:8] = False
    shown = (one_core, one_column, few_rows, scattered((64, 128), 8))
    place = DeviceLocation("sdsc_0.json", 0, 0, "Tensor1")
    for wrong, is_shown in (
        *((each, True) for each in shown),
        *((scattered((64, 128), every), False) for every in (12, 20, 8192)),
        (np.ones((1, 3), bool), False),
    ):
        cores = np.zeros(wrong.shape, np.int64)
        found = Deviation(place, "abs", False, "y", ("mb", "out"), wrong, cores, 0.0, 1.0)
        first, *rest = map_lines(found)
        assert first.startswith("mismatch map") == bool(rest) == is_shown
        if not is_shown:
            share = f"{wrong.mean():.0%} of the elements are wrong, everywhere"
            assert first == f"mismatch of execute 0: {share}"


@pytest.fixture
def function_file(tmp_path: Path) -> str:
    path = tmp_path / "f.py"
    path.write_text("import torch\ndef f(x):\n    return -torch.abs(x)\n")
    return f"torch:{path}:f"


def test_the_command_line(tmp_path: Path, function_file: str, capfd: pytest.CaptureFixture[str]):
    right, wrong = tiled(tmp_path / "right"), tiled(tmp_path / "wrong", step=4 * ROW)
    assert main([str(right), "--expect", function_file, "-q"]) == 0
    assert main([str(wrong), "--expect", function_file, "-q"]) == 1
    printed = capfd.readouterr()
    assert "SPY704" in printed.err.splitlines()[0]
    assert "error[SPY622]: the first wrong execute" in printed.err
    assert "mismatch of execute 0, loop indices (1,): 99% of the elements" in printed.out
    assert main([str(wrong), "--expect", function_file, "--json"]) == 1
    told = json.loads(capfd.readouterr().out)["first_wrong"]
    assert (told["execute"], told["loop_indices"], told["tensor"]) == (0, [1], "Tensor0")


def test_breaking(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    bundle, file = tiled(tmp_path / "bundle"), tmp_path / "kept.npz"
    x = np.random.default_rng(0).standard_normal((32, 128)).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    words = [str(bundle), "-i", str(tmp_path / "x.npy"), "--break", "0:2", "--save-tensors"]
    assert main([*words, str(file), "--print", "Tensor1"]) == 0
    assert "execute 0, Tensor1: mb 8 x out 128" in capfd.readouterr().out
    with np.load(file) as kept:
        np.testing.assert_allclose(kept["Tensor1"], np.abs(x[16:24]), rtol=2**-9)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--break", "7"], "SPY624"),
        (["--break", "0:9"], "SPY624"),
        (["--break", "0", "--print", "Tensor9"], "SPY624"),
        (["--expect", "torch:nowhere.py:f"], "SPY623"),
        (["--expect", "f"], "SPY623"),
    ],
)
def test_what_cannot_be_watched(
    words: list[str], code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert main([str(tiled(tmp_path)), *words]) == 2
    assert code in capfd.readouterr().err


def test_tiles_of_a_value():
    value = ReferenceValue("x", np.random.default_rng(0).standard_normal((6, 4, 5)))
    tile = value.values[2:4].transpose(2, 0, 1)
    found = [(w, c) for w in tile_layouts(value, tile.shape) for c in w.positions(tile)]
    assert [(w.order, c) for w, c in found] == [((2, 0, 1), (0, 1, 0))]
    first = value.values[:2, :, 3]
    begun = [(w, c) for w in tile_layouts(value, first.shape) for c in w.positions(first)]
    ways = find_paths(begun, (3,))
    assert [way.coords((3,), 2) for way in ways] == [(3, 2, 0)]


def test_outputs_that_agree_equally_well_stay_in_their_order():
    smallest, largest = np.float32([1, 2]), np.float32([3, 4])
    matched = match_outputs([largest, largest], [smallest, largest])
    assert [matched[0] is smallest, matched[1] is largest] == [True, True]
    swapped = match_outputs([largest, smallest], [smallest, largest])
    assert [swapped[0] is largest, swapped[1] is smallest] == [True, True]
