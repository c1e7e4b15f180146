"""The fastest cuDNN of an older version, kept and compared; expected numbers are worked out by hand."""

import json

import pytest

from harness.report import versions
from harness.report.figures import figures
from harness.report.versions import changes, versions_table
from harness.sweep.comparisons import Results
from tests.harness.report.helpers import cells, collisions
from tests.helpers import measured, row

REPORTS = {"old": {"cudnn": 91900}, "new": {"cudnn": 92801}, "ours": {"cudnn": 90000}}


def cudnn(algorithm, us, environment, **options):
    return row(algorithm, us, provider="cudnn", environment=environment, **options)


def results_of(folder, rows):
    """The rows with REPORTS in their folder."""
    results = measured(folder, rows)
    (results.folder / "environment.json").write_text(json.dumps({"environments": REPORTS}))
    return results


OLD = [
    row("auto", 5.0, environment="ours"), cudnn("gemm", 30.0, "old"), cudnn("fft", 40.0, "old"),
    row("auto", 5.0, environment="ours", k=3), cudnn("gemm", 20.0, "old", k=3),
    cudnn("gemm", 1.0, "ours", precision="tf32"),
]  # fmt: skip
# The fastest of 9.28.1: fft on 1x1, 15 / 30 = 0.5; gemm on 3x3, 25 / 20 = 1.25. The second 1x1 case has no old time.
NEW = [
    row("auto", 5.0, environment="ours"), cudnn("gemm", 30.0, "new"), cudnn("fft", 15.0, "new"),
    row("auto", 5.0, environment="ours", k=3), cudnn("gemm", 25.0, "new", k=3),
    row("auto", 5.0, environment="ours", m=48), cudnn("gemm", 25.0, "new", m=48),
]  # fmt: skip
NOT_AGAIN = [row("auto", 5.0, environment="ours", k=5), cudnn("gemm", 9.0, "old", k=5)]  # measured once


@pytest.fixture
def results(tmp_path):
    """The new rows, in the folder where the old ones were kept before."""
    old = results_of(tmp_path, [*OLD, *NOT_AGAIN])
    assert versions.main(["--results", str(tmp_path)]) == 0
    results_of(tmp_path, [*NEW, *NOT_AGAIN])
    return Results.read(old.folder)


def test_the_fastest_of_both_versions_are_compared(results):
    (change,) = changes(results)
    assert (change.old, change.new) == ("9.19.0", "9.28.1")
    assert change.cases.sort_values("k").ratio.tolist() == [0.5, 1.25]
    assert change.cases.sort_values("k").which_old.tolist() == ["cuDNN gemm", "cuDNN gemm"]


def test_the_table_counts_verdicts_and_names_the_cases_that_change_most(results):
    counts, most = versions_table(results).split("The cases that change most.")
    assert cells(counts)["1x1"] == ["0", "0", "0", "1", "0.500x"], "three runs are too few for another verdict"
    assert cells(counts)["all"] == ["0", "0", "0", "2", "0.791x"]  # the square root of 0.625
    assert cells(most)["7-1-3-32-832 cuDNN gemm"][1:] == ["20.0", "cuDNN gemm", "25.0", "1.25x"]


def test_the_figure_has_a_dot_for_each_case(results):
    figure = dict(figures(results))["cudnn_9.19.0"]
    (axes,) = figure.axes
    dots = [list(line.get_ydata()) for line in axes.lines if line.get_marker() == "o"]
    assert sorted(us for strip in dots for us in strip) == [0.5, 1.25]
    assert collisions(figure) == []


def test_without_an_older_version_the_table_says_so(tmp_path):
    assert versions_table(results_of(tmp_path, NEW)) == "No older version of cuDNN was kept for nvidia-test."


def test_rows_of_several_versions_cannot_be_kept(tmp_path, capsys):
    results = results_of(tmp_path, [*OLD, cudnn("gemm", 20.0, "new", m=48)])
    assert versions.main(["--results", str(tmp_path)]) == 2
    assert "are of 9.19.0, 9.28.1: must be of one version" in capsys.readouterr().err
    assert not [*results.folder.glob("cudnn-*")]
