"""Sweeps from definition to table: resuming, dying workers, errors, pictures, Dask."""

from __future__ import annotations

import csv
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spyre.errors import SweepError
from spyre.hw.cost.machine import default_machine
from spyre.sweep import __main__ as entry
from spyre.sweep.definition import make_definition
from spyre.sweep.point import measure
from spyre.sweep.results import FRAME, lines, plot_axis, write_plot, write_results
from spyre.sweep.run import dask_runner, gather, opened_journal, process_runner, run_sweep
from tests.sweep.workers import deadly, quick, raising

EXAMPLES = Path(__file__).parents[2] / "examples"
SVG = "{http://www.w3.org/2000/svg}"
BANDWIDTHS = [50, 100, 200]


def definition(bundles=("matmul", "softmax", "add_loop"), **more):
    machine = {"hardware": {"hbm_peak_gbps": BANDWIDTHS}}
    document = {"bundles": list(bundles), "machine": machine, "model": "ideal", **more}
    return make_definition(document, "sweep.toml", EXAMPLES)


class Here:
    """Runs tasks in this process, and remembers them."""

    def __init__(self, work=quick):
        self.work, self.seen = work, []

    def __call__(self, tasks):
        for task in tasks:
            self.seen.append(task)
            yield task, self.work(task)


def test_bundles_are_weighed_without_being_run():
    task = next(definition(["softmax"]).tasks())
    rows = measure(task)
    assert [row["hardware.hbm_peak_gbps"] for row in rows] == BANDWIDTHS
    slow, middle, fast = (row["modelled_us"] for row in rows)
    assert slow > middle > fast > 0
    counts = {(row["hbm_bytes"], row["executes"], row["cores_used"]) for row in rows}
    assert counts == {(2 * 128 * 256 * 2 + 128 * 256 * 2, 5, 8)}  # max and sub read x
    assert {row["error"] for row in rows} == {""}


def test_errors_of_single_machines_are_recorded():
    found = definition(["softmax"], machine={"hardware": {"nonsense": [1]}})
    (row,) = measure(next(found.tasks()))
    assert row["error"].startswith("SPY740")
    assert row["modelled_us"] == ""


def test_a_bundle_that_is_wrong_is_recorded(tmp_path):
    (tmp_path / "bundle.mlir").write_text("module {")
    found = make_definition({"bundles": [str(tmp_path)]}, "sweep.toml", tmp_path)
    (row,) = measure(next(found.tasks()))
    assert row["error"].startswith("SPY1")


def test_a_small_scratchpad_does_not_fit():
    found = definition(["softmax"], machine={"hardware": {"lx_bytes": [1024, 2 << 20]}})
    assert [row["lx_fits"] for row in measure(next(found.tasks()))] == [False, True]


def test_host_time_is_taken_where_asked_for():
    (row, *_) = measure(next(definition(["softmax"], host_rounds=2).tasks()))
    assert row["host_us"] > 0


def test_finished_points_are_not_run_again(tmp_path):
    first, second = Here(), Here()
    journal = tmp_path / "j"
    seen = []
    done = run_sweep(definition(), first, journal, progress=lambda a, b: seen.append((a, b)))
    assert seen == [(3, 9), (6, 9), (9, 9)]
    assert run_sweep(definition(), second, journal) == done
    assert len(first.seen) == 3
    assert second.seen == []


def test_a_sweep_goes_on_where_it_was_killed(tmp_path):
    journal = tmp_path / "j"
    whole = run_sweep(definition(), Here(), journal)
    lines_written = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines_written[:6]) + lines_written[6][:20])
    again = Here()
    assert run_sweep(definition(), again, journal) == whole
    assert [len(task.machines) for task in again.seen] == [1, 3]
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_another_definition_is_refused_or_starts_anew(tmp_path):
    journal = tmp_path / "j"
    run_sweep(definition(), Here(), journal)
    other = definition(model="calibrated")
    with pytest.raises(SweepError, match="SPY741") as caught:
        run_sweep(other, Here(), journal)
    assert "calibrated" in caught.value.finding.expected
    again = Here()
    run_sweep(other, again, journal, anew=True)
    assert len(again.seen) == 3


def test_a_changed_bundle_is_another_sweep(tmp_path):
    (tmp_path / "bundle.mlir").write_text("module {")
    texts = []
    for name in ("sdsc_0.json", "sdsc_1.json"):
        (tmp_path / name).write_text("{}")
        texts.append(make_definition({"bundles": ["."]}, "s.toml", tmp_path).text())
    assert texts[0] != texts[1]


def test_a_journal_has_one_writer_and_is_one(tmp_path):
    journal = tmp_path / "j"
    with opened_journal(journal, "{}"), pytest.raises(SweepError, match="SPY742"):
        run_sweep(definition(), Here(), journal)
    for text in ("no journal\n", '{"sweep": "{}"}\n[1]\n'):
        journal.write_text(text)
        with pytest.raises(SweepError, match="SPY742"):
            run_sweep(definition(), Here(), journal)


def test_errors_are_retried_where_asked_for(tmp_path):
    def wrong(task):
        return [{**row, "error": "x"} for row in quick(task)]

    journal = tmp_path / "j"
    run_sweep(definition(), Here(wrong), journal)
    idle, again = Here(), Here()
    assert {row["error"] for row in run_sweep(definition(), idle, journal)} == {"x"}
    assert idle.seen == []
    assert {row["error"] for row in run_sweep(definition(), again, journal, retry=True)} == {""}
    assert len(again.seen) == 3


def test_a_dying_worker_is_an_error_of_its_points_only():
    found = list(process_runner(2, deadly)(list(definition().tasks())))
    errors = {task.target.text: {row["error"] for row in rows} for task, rows in found}
    assert errors == {"matmul": {""}, "softmax": {"the worker process died"}, "add_loop": {""}}
    assert [len(rows) for _, rows in found] == [3, 3, 3]


def test_a_client_of_futures_is_enough():
    class Client:
        def __init__(self, pool):
            self.pool = pool

        def submit(self, work, task, pure, retries):
            assert (pure, retries) == (False, 0)
            return self.pool.submit(work, task)

    tasks = list(definition().tasks())
    with ThreadPoolExecutor(2) as pool:
        good = dict(gather(Client(pool), as_completed, tasks, quick))
        bad = dict(gather(Client(pool), as_completed, tasks, raising))
    assert {task: quick(task) for task in tasks} == good
    assert {row["error"] for rows in bad.values() for row in rows} == {
        "ValueError: matmul", "ValueError: softmax", "ValueError: add_loop",
    }  # fmt: skip


def test_a_dask_cluster():
    distributed = pytest.importorskip("distributed")
    tasks = list(definition().tasks())
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        found = dict(dask_runner(cluster.scheduler_address, quick)(tasks))
    assert found == {task: quick(task) for task in tasks}


def test_no_scheduler_and_no_dask(monkeypatch):
    tasks = list(definition().tasks())
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SweepError, match=r"SPY743.*\n.*dask\[distributed\]"):
        list(dask_runner("tcp://127.0.0.1:9")(tasks))
    monkeypatch.undo()
    pytest.importorskip("distributed")
    monkeypatch.setattr("spyre.sweep.run.CONNECT_SECONDS", 0.2)
    with pytest.raises(SweepError, match="SPY745"):
        list(dask_runner("tcp://127.0.0.1:9")(tasks))


def test_tables(tmp_path):
    found = definition()
    records = [row for task in found.tasks() for row in quick(task)]
    write_results(tmp_path / "s.csv", found.columns, records)
    with (tmp_path / "s.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["modelled_us"]) for row in rows] == [20, 10, 5] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["s.csv"]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    found = definition()
    records = [row for task in found.tasks() for row in quick(task)]
    write_results(tmp_path / "s.parquet", found.columns, records)
    table = pyarrow.read_table(tmp_path / "s.parquet").to_pylist()
    assert [row["modelled_us"] for row in table] == [20, 10, 5] * 3
    assert table[0]["error"] is None


def test_missing_packages_are_named_before_the_work(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.chdir(tmp_path)
    assert entry.main(["--bundle", str(EXAMPLES / "softmax"), "--out", "s.parquet"]) == 2
    assert "SPY743" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_column_there_is_none_of(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--bundle", str(EXAMPLES / "softmax"), "--plot", "s.svg", "--x", "nonsense"]
    assert entry.main(arguments) == 2
    assert "SPY740" in capsys.readouterr().err


def test_lines_of_a_picture(tmp_path):
    found = definition()
    records = [row for task in found.tasks() for row in quick(task)]
    assert plot_axis(found.columns, records) == "hardware.hbm_peak_gbps"
    by_label = lines(found.columns, records[::-1], "hardware.hbm_peak_gbps")
    assert list(by_label) == ["subject add_loop", "subject softmax", "subject matmul"]
    assert [row["modelled_us"] for row in by_label["subject matmul"]] == [20, 10, 5]
    write_plot(tmp_path / "s.svg", found.columns, [*records, {"error": "x"}])
    root = ElementTree.parse(tmp_path / "s.svg").getroot()
    joined = [each for each in root.iter(f"{SVG}line") if "line" in each.get("class", "").split()]
    points = list(root.iter(f"{SVG}circle"))
    assert (len(joined), len(points)) == (3 * 2, 2 * 3 * 3)  # each point in two panels


def test_legends_of_a_picture_cover_no_chart(tmp_path):
    found = definition()
    write_plot(tmp_path / "s.svg", found.columns, [r for t in found.tasks() for r in quick(t)])
    boxes = list(drawn_boxes(ElementTree.parse(tmp_path / "s.svg").getroot()))
    charts = [box for kind, *box in boxes if kind == "chart"]
    swatches = [box for kind, *box in boxes if kind == "run"]
    assert len(charts) == 4
    assert swatches
    for left, top, right, base in charts:
        assert not any(left < x < right and top < y < base for x, y, _, _ in swatches)


def drawn_boxes(element, x=0.0, y=0.0):
    """Kind, left, top, right and lower edge of charts and of the squares of legends."""
    moved = re.match(r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform", ""))
    if moved:
        x, y = x + float(moved[1]), y + float(moved[2])
    if element.get("class") == "chart":
        yield "chart", x, y, x + FRAME.width, y + FRAME.height
        return
    if "run" in element.get("class", "").split():
        left, top = x + float(element.get("x")), y + float(element.get("y"))
        yield "run", left, top, left + 11, top + 11
    for child in element:
        yield from drawn_boxes(child, x, y)


def test_the_command_line_sweeps_bundles_and_functions(tmp_path, monkeypatch, capsys):
    """Functions take their settings: fewer cores are fewer, tiles are loops."""
    pytest.importorskip("torch")
    (tmp_path / "m.py").write_text("def f(x, y):\n    return (x + y) * y\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spyre.sweep.run.process_runner", lambda jobs: Here(measure))
    status = entry.main(
        ["--bundle", str(EXAMPLES / "softmax"), "--function", "m.py:f rows=64x128 64x128",
         "m.py:g 64", "--cores", "2", "8", "--tiles", "none", "rows=4", "--out", "out/s.csv"]
    )  # fmt: skip
    out = capsys.readouterr().out
    assert status == 1
    assert "9 points, 4 with errors" in out
    assert "SPY744" in out
    with (tmp_path / "out" / "s.csv").open() as file:
        bundle, *rows = csv.DictReader(file)
    assert (bundle["cores"], bundle["executes"]) == ("", "5")
    assert [(r["cores_used"], r["executes"]) for r in rows[:4]] == [
        ("2", "2"), ("2", "8"), ("8", "2"), ("8", "8"),
    ]  # fmt: skip
    machine = default_machine()
    assert machine.constants["hardware.cores"].value == 32
    assert all(row["error"] for row in rows[4:])


@pytest.mark.parametrize(
    "content",
    [
        b"noise",
        b"\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"sweep": 3}\n',
        b'{"sweep": "x"}\n{"key"\n',
    ],
)
def test_what_is_no_journal_stays(tmp_path, content):
    (tmp_path / "j").write_bytes(content)
    with (
        pytest.raises(SweepError, match="SPY742"),
        opened_journal(tmp_path / "j", definition().text()),
    ):
        pass
    assert (tmp_path / "j").read_bytes() == content


def test_a_journal_of_damaged_points(tmp_path):
    text = definition().text()
    with opened_journal(tmp_path / "j", text) as journal:
        journal.add("a", {"error": ""})
    with pytest.raises(SweepError, match="SPY742"), opened_journal(tmp_path / "j", text):
        pass


@pytest.mark.parametrize("name", ["j", "no/such"])
def test_a_journal_that_cannot_be_written(tmp_path, name):
    (tmp_path / "no").touch()
    (tmp_path / "j").symlink_to("/dev/full" if name == "j" else "x")
    expected = "SPY742" if name == "j" else "SPY746"
    with (
        pytest.raises(SweepError, match=expected),
        opened_journal(tmp_path / name, definition().text()),
    ):
        pass


def test_results_that_cannot_be_written(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(SweepError, match="SPY746"):
        write_results(tmp_path / "a" / "s.csv", (), [])


def test_a_bundle_that_cannot_be_read(tmp_path):
    (tmp_path / "bundle.mlir").mkdir()
    with pytest.raises(SweepError, match="SPY744"):
        make_definition({"bundles": [str(tmp_path)]}, "sweep.toml", tmp_path).text()


def test_a_picture_of_no_format(tmp_path, capsys):
    words = ["--bundle", str(EXAMPLES / "softmax"), "--out", str(tmp_path / "s.csv")]
    assert entry.main([*words, "--plot", "x.png"]) == 2
    assert "error[SPY740]: --plot is no SVG" in capsys.readouterr().err
