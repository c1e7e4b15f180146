"""Layers whose filters are not square, from a file of layers to tables: 1x7 and 7x1 are told apart everywhere."""

import pytest

from cuconv.core.problem import ConvProblem
from harness import compare, run
from harness.cases.catalogue import load_sweep
from harness.report import page
from harness.report.choice import algorithm_table
from harness.report.figures import draw
from harness.report.speedups import grid_table, summary_table
from harness.sweep.comparisons import layer_label, problem_of
from harness.sweep.left_out import left_out
from harness.sweep.records import CSV, read
from tests.harness.report.helpers import cells
from tests.helpers import measured, row, write

LAYERS = """
layers:
  - {name: row, h: 9, w: 11, c: 3, m: 4, k: [1, 7], pad: [0, 3]}
  - {name: column, h: 9, w: 11, c: 3, m: 4, k: [7, 1], pad: [3, 0]}
  - {name: unusual, h: 9, w: 11, c: 4, m: 4, k: [2, 5], pad: [1, 3], stride: 2, dilation: 2, groups: 2}
  - {name: square, h: 9, w: 11, c: 3, m: 4, k: [3, 3], pad: 1}
"""
SIZES = {(1, 7, 0, 3), (7, 1, 3, 0), (2, 5, 1, 3), (3, 3, 1, 1)}  # k, kw, pad, pad_w
ROW, COLUMN = {"k": 1, "kw": 7}, {"k": 7, "kw": 1}


@pytest.fixture
def layers(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(LAYERS)
    return path


@pytest.fixture
def results(tmp_path):
    """A 1x7 layer on which auto is twice as fast as its rival, and a 7x1 layer of half the speed of its rival."""
    rows = [
        row("auto", 10.0, **ROW, detail="fp16x3 tile=1"), row("gemm", 20.0, provider="cudnn", **ROW),
        row("auto", 10.0, **COLUMN, detail="fp16x3 tile=1"), row("gemm", 5.0, provider="cudnn", **COLUMN),
    ]  # fmt: skip
    return measured(tmp_path, rows)


def test_a_file_of_layers_becomes_problems(layers):
    assert [case.problem for case in load_sweep(layers).cases] == [
        ConvProblem(1, 3, 9, 11, 4, 1, 7, 0, 3),
        ConvProblem(1, 3, 9, 11, 4, 7, 1, 3, 0),
        ConvProblem(1, 4, 9, 11, 4, 2, 5, 1, 3, "fp32", 2, 2, 2, 2, 2),
        ConvProblem(1, 3, 9, 11, 4, 3, 3, 1, 1),
    ]


@pytest.mark.parametrize("wanted", ["1x7", "7x1", "3", 3])
def test_a_filter_size_is_a_number_or_rows_x_columns(layers, wanted):
    (case,) = load_sweep(layers, filter_sizes=[wanted]).cases
    assert case.label.split("-")[2] == str(wanted)


def test_a_sweep_is_measured_right_and_resumed(layers, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["--device", "cpu", "--config", str(layers), "--runs", "1", "--out", str(out)]
    assert run.main([*command, "--filter-size", "1x7"]) == 0
    assert set(read(out / CSV).kw) == {7}
    first = (out / CSV).read_text().splitlines()
    assert run.main([*command, "--resume"]) == 0
    assert (out / CSV).read_text().splitlines()[: len(first)] == first, "a 7x1 layer replaces no 1x7 one"
    frame = read(out / CSV)
    ran = frame[frame.status == "ok"]
    assert set(ran[["k", "kw", "pad", "pad_w"]].itertuples(index=False, name=None)) == SIZES
    assert len(frame) == 16 and not frame.status.isin(["error", "incorrect"]).any()
    assert "9x11-1-1x7-4-3" in {problem_of(case).label for case in frame.itertuples()}


@pytest.mark.parametrize(("shape", "label"), [
    (ROW, "7-2-4"), (ROW | {"pad_w": 0}, "7-2-4 p0"), (COLUMN | {"pad_w": 3}, "7-2-4 p3"),
    (ROW | {"pad_w": 1}, "7-2-4 p0x1"),
])  # fmt: skip
def test_the_label_of_a_layer_has_an_unusual_padding(shape, label):
    assert layer_label(row("auto", 1.0, c=4, m=2, **shape)) == label


def test_each_filter_size_stands_by_itself(results, texts_of, tmp_path):
    assert results.of_subject().speedup.tolist() == [2.0, 0.5]
    found = cells(summary_table(results))
    assert found["1x7"][1:3] == ["1 of 1", "2.00x"] and found["7x1"][1:3] == ["0 of 1", "0.50x"]
    assert cells(grid_table(results.of_subject()))["batch"] == ["1x7", "7x1", "all"]
    assert "1x7 (1), 7x1 (1)" in algorithm_table(results, "fp16x3")
    assert page.case_columns(results)["filter"] == ["1x7", "7x1"]
    assert page.case_columns(results)["case"] == ["7-1-1x7-32-832", "7-1-7x1-32-832"]
    drawn = {path.stem: texts_of(path) for path in draw(results, tmp_path)}
    assert {"speedup_auto_1x7", "speedup_auto_7x1"} < set(drawn)
    for figure in ("map", "overview"):
        assert sum("1x7" in text or "7x1" in text for text in drawn[figure]) >= 2


def test_a_rival_of_one_filter_is_none_of_the_other(tmp_path):
    over = {"status": "workspace_exceeded", "provider": "cudnn", "detail": "the limit is 1073741824"}
    rows = [row(name, us, provider=who, **size) for name, us, who in (("auto", 5.0, "cuconv"), ("gemm", 9.0, "cudnn"))
            for size in (ROW, COLUMN)]  # fmt: skip
    marked, _ = left_out(measured(tmp_path, [*rows, row("fft", 4.0, **COLUMN, **over)]))
    assert marked.tolist() == [False, True]


def test_two_measurements_are_compared_filter_by_filter(tmp_path, capsys):
    old, new = (
        str(write(tmp_path / when, [row("auto", us, **ROW), row("auto", 10.0, **COLUMN)]).parent)
        for when, us in (("old", 10.0), ("new", 20.0))
    )
    compare.main([old, new])
    found = cells(capsys.readouterr().out)
    assert found["1x7"][-1] == "2.000x" and found["7x1"][-1] == "1.000x"
