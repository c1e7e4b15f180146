"""The command that prints every table, and what it prints where something is missing."""

import re

import pandas as pd
import pytest

from harness.experiments.accuracy import rows as accuracy
from harness.experiments.copies import rows as bandwidth
from harness.report import tables
from tests.harness.report.helpers import cells
from tests.helpers import GPU, SWEEP, THREE_TIMES, row, write


def printed(tmp_path, capsys) -> str:
    assert tables.main(["--results", str(tmp_path)]) == 0
    return capsys.readouterr().out


def test_command_line_prints_every_table(tmp_path, capsys):
    write(tmp_path, [*SWEEP, row("auto", 9.0, m=64, detail="two_stage rows=8"), row("two_stage", 9.0, m=64)])
    write(tmp_path, [row(name, 2.0, provider="cpu") for name in ("two_stage", "native")], device="cpu", sweep="smoke")
    text = printed(tmp_path, capsys)
    headings = [line for line in text.splitlines() if line.startswith("#")]
    of_cpu, of_gpu = headings.index("## cpu, sweep smoke"), headings.index("## nvidia-test, sweep paper")
    assert headings[0] == "## Layers" and len(set(headings[of_cpu:of_gpu])) == of_gpu - of_cpu == 4
    assert len(set(headings[of_gpu:])) == len(headings) - of_gpu == 10
    assert printed(tmp_path, capsys) == text


def test_another_subject_is_compared_with_the_best_cudnn(tmp_path, capsys):
    write(tmp_path, SWEEP)
    write(tmp_path, [row(name, us, provider="cpu") for name, us in (("native", 2.0), ("fft", 6.0))], device="cpu")
    assert tables.main(["--results", str(tmp_path), "--subject", "cublas/bmm"]) == 0
    text = capsys.readouterr().out
    assert "## cpu" not in text and "cuBLAS bmm against the best cuDNN" in text and "faster on 1 of" in text
    assert tables.main(["--results", str(tmp_path), "--subject", "cpu/native"]) == 0
    assert "geometric mean 3.00x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("subject", "value"), [("mine/best", "mine/best"), ("cublas/gemm", "bmm"), ("cutlass/fast_fp32", "cutlass")]
)
def test_a_subject_without_rows_is_refused(tmp_path, capsys, subject, value):
    write(tmp_path, SWEEP)
    try:
        code = tables.main(["--results", str(tmp_path), "--subject", subject])
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and value in capsys.readouterr().err.splitlines()[-1]


def test_errors_where_magnitudes_are_far_from_ordinary_are_shown_once_measured(tmp_path, capsys):
    write(tmp_path, SWEEP)
    assert "python -m harness accuracy" in printed(tmp_path, capsys), "what to run"
    line = [4, 7, 7, 832, 32, 1, 0, 1, 1, 1, 1, 0, "cuconv", "auto", "images", "ok", "", 1.5e-7, 0.3, 2e-7]
    path = accuracy.ACCURACY.path(tmp_path / GPU)
    path.parent.mkdir()
    pd.DataFrame([line], columns=list(accuracy.ACCURACY.columns)).to_csv(path, index=False)
    text = printed(tmp_path, capsys)
    assert "| 1.5 |" in re.sub(" +", " ", text)
    assert cells(text.split("componentwise error c")[1])["scaled"] == ["0.3"]


def test_the_three_times_have_a_table_once_a_sweep_has_them(tmp_path, capsys):
    write(tmp_path, THREE_TIMES)
    table = printed(tmp_path, capsys).split("### Speedup, hot, separated and cold\n\n")[1]
    assert cells(table.split("###")[0])["1"][:3] == ["3.00x, 1/1", "2.00x, 1/1", "1.25x, 1/1"]


def test_nothing_measured(tmp_path, capsys):
    assert tables.main(["--results", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "measure first" in captured.err


def test_without_rivals_the_report_has_the_choice_and_no_paper(tmp_path, capsys):
    write(tmp_path, [row("auto", 11.0), row("two_stage", 10.0)])
    text = printed(tmp_path, capsys)
    assert "best of cuConv's own algorithms" in text and "Beside the paper" not in text


def test_copies_that_are_something_else_end_the_command(tmp_path, capsys):
    write(tmp_path, [row("auto", 10.0, batch=16)])
    path = bandwidth.BANDWIDTH.path(tmp_path / GPU)
    path.parent.mkdir()
    path.write_text("bytes\n1\n")
    assert tables.main(["--results", str(tmp_path)]) == 2
    assert f"{path} lacks the column 'way'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--device", "--sweep"])
@pytest.mark.parametrize("name", ["/etc", "..", "*", "[", "", "a\0b"])
def test_a_name_is_no_pattern_and_no_path(tmp_path, capsys, option, name):
    write(tmp_path, SWEEP)
    assert tables.main(["--results", str(tmp_path), option, name]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "measurements.csv under" in said
