"""Comparisons: the pairs that are compared, and rows that never count; expected numbers are worked out by hand."""

import math
from dataclasses import replace

import pytest

from harness.errors import ResultsError
from harness.sweep.comparisons import (
    COMPARISON_COLUMNS,
    fastest,
    find_results,
    full_precision,
    geometric_mean,
    layer_label,
    summarise,
)
from tests.helpers import GPU, SWEEP, measured, row, write


def only(tmp_path, rows, subject="auto", device=GPU):
    """The one row that the comparison has for the subject, where the rows are of a single case."""
    table = measured(tmp_path, rows, device).compared
    table = table[table.subject == subject]
    assert len(table) == 1
    return table.iloc[0]


def test_the_best_rival_is_the_smallest_time_of_all_of_cudnn(tmp_path):
    best = only(tmp_path, [
        row("auto", 10.0),
        row("implicit_gemm", 30.0, provider="cudnn"),
        row("eng0_k2=5", 25.0, provider="cudnn_engine"),
        row("benchmark", 26.0, provider="torch"),
        row("bmm", 5.0, provider="cublas"),
    ])  # fmt: skip
    assert (best.rival_provider, best.rival_algorithm, best.rival_us) == ("cudnn_engine", "eng0_k2=5", 25.0)
    assert best.speedup == 2.5
    assert (best.cublas_us, best.cublas_speedup) == (5.0, 0.5)
    assert math.isnan(best.cutlass_us) and math.isnan(best.cutlass_speedup)


@pytest.mark.parametrize("other", [
    row("winograd", 1.0, provider="cudnn", precision="tf32"),
    row("winograd", provider="cudnn", status="incorrect"),
    row("winograd", provider="cudnn", status="timeout"),
    row("bmm", 1.0, provider="cublas"),
    row("two_stage", 1.0),
], ids=lambda other: f"{other.algorithm}-{other.precision}-{other.status}")  # fmt: skip
def test_what_never_counts_as_a_rival(tmp_path, other):
    best = only(tmp_path, [row("auto", 10.0), row("gemm", 30.0, provider="cudnn"), other])
    assert (best.rival_algorithm, best.speedup) == ("gemm", 3.0)


def test_an_incorrect_row_does_not_count_even_with_a_time(tmp_path):
    theirs = [row("gemm", 30.0, provider="cudnn"), row("fft", 1.0, provider="cudnn")]
    results = measured(tmp_path, [row("auto", 10.0), *theirs])
    results.frame.loc[results.frame.algorithm == "fft", "status"] = "incorrect"
    assert results.compared.speedup.tolist() == [3.0]


def test_a_tf32_subject_has_no_time(tmp_path):
    best = only(tmp_path, [row("auto", 10.0, precision="tf32"), row("gemm", 30.0, provider="cudnn")])
    assert math.isnan(best.mean_us) and math.isnan(best.speedup) and best.rival_us == 30.0
    assert best.rival_algorithm == "gemm"


def test_equal_times_go_to_the_first_of_the_registry(tmp_path):
    rows = [
        row("eng10", 10.0, provider="cudnn_engine"), row("default", 10.0, provider="torch"),
        row("winograd", 10.0, provider="cudnn"), row("gemm", 10.0, provider="cudnn"), row("auto", 10.0),
    ]  # fmt: skip
    best = only(tmp_path, rows)
    assert (best.rival_algorithm, best.speedup) == ("gemm", 1.0)
    assert fastest(full_precision(measured(tmp_path, rows).frame)).algorithm.tolist() == ["auto"]


def test_without_a_rival_there_is_no_speedup(tmp_path):
    table = measured(tmp_path, [row("auto", 10.0), row("two_stage", 20.0)]).compared
    assert table.subject.tolist() == ["auto", "two_stage"]
    assert table.mean_us.tolist() == [10.0, 20.0]
    assert table[["rival_us", "speedup", "cublas_us", "cublas_speedup"]].isna().all(axis=None)
    summary = summarise(table)
    assert (summary.wins, summary.of, summary.at) == (0, 0, "") and math.isnan(summary.geometric)


def test_without_a_subject_there_is_nothing(tmp_path):
    table = measured(tmp_path, [row("gemm", 30.0, provider="cudnn")]).compared
    assert table.empty and tuple(table.columns) == COMPARISON_COLUMNS


def test_every_case_has_a_row_for_each_subject(tmp_path):
    table = measured(tmp_path, SWEEP).compared
    assert tuple(table.columns) == COMPARISON_COLUMNS
    assert table.groupby("subject").size().to_dict() == {"auto": 8, "two_stage": 8}
    auto = table[table.subject == "auto"]
    assert auto.k.tolist() == [1] * 6 + [3, 5]
    assert auto.batch.tolist() == [1, 1, 1, 8, 8, 128, 1, 1]
    assert auto.speedup.fillna(0).tolist() == [3, 2, 0.5, 1, 0, 4, 0.25, 0]


def test_the_spread_of_the_runs_is_there(tmp_path):
    rows = [replace(row("auto"), runs_us=(9.0, 12.0, 9.0)), row("gemm", 30.0, provider="cudnn")]
    best = only(tmp_path, rows)
    assert (best.least_us, best.mean_us, best.most_us) == (9.0, 10.0, 12.0)


def test_summary_of_one_batch(tmp_path):
    table = measured(tmp_path, SWEEP).compared
    s = summarise(table[(table.subject == "auto") & (table.k == 1) & (table.batch == 1)])
    assert (s.wins, s.of, s.maximum, s.at) == (2, 3, 3.0, "7-32-832")
    assert s.geometric == pytest.approx(3 ** (1 / 3))  # 3 * 2 * 0.5 = 3
    assert s.arithmetic == pytest.approx(5.5 / 3)


def test_a_tie_and_a_case_that_could_not_run_are_not_won(tmp_path):
    table = measured(tmp_path, SWEEP).compared
    s = summarise(table[(table.subject == "auto") & (table.batch == 8)])
    assert (s.wins, s.of, s.geometric) == (0, 2, 1.0)


def test_summary_of_everything_names_the_full_case(tmp_path):
    table = measured(tmp_path, SWEEP).compared
    s = summarise(table[table.subject == "auto"])
    assert (s.wins, s.of, s.maximum, s.at) == (3, 7, 4.0, "7-128-1-32-832")
    assert s.geometric == pytest.approx(3 ** (1 / 6))  # 3 * 2 * 0.5 * 1 * 4 * 0.25 = 3


def test_on_a_cpu_torch_is_the_rival_and_there_is_no_yardstick(tmp_path):
    rows = [row(name, us, provider="cpu") for name, us in (("two_stage", 10.0), ("onednn", 8.0), ("native", 9.0))]
    best = only(tmp_path, rows, subject="two_stage", device="cpu")
    assert (best.rival_algorithm, best.speedup) == ("onednn", 0.8)
    assert math.isnan(best.yardstick_us)


@pytest.mark.parametrize(("shape", "yardstick"), [
    ({"h": 7, "w": 7, "c": 8, "m": 8, "k": 1}, 2.5),  # a kernel
    # 2 * 512 * 512 * 9 * 32 * 28 * 28 = 118,380,036,096 FLOP at 120e12 per second
    ({"h": 28, "w": 28, "c": 512, "m": 512, "k": 3, "batch": 32}, 118_380_036_096 / 120e6),
    # 4 * (256 * 16 * 56 * 56 * 2 + 16 * 16) = 102,760,448 + 1,024 bytes at 4e12 per second
    ({"h": 56, "w": 56, "c": 16, "m": 16, "k": 1, "batch": 256}, 102_761_472 / 4e6),
])  # fmt: skip
def test_yardstick(tmp_path, shape, yardstick):
    assert only(tmp_path, [row("auto", 10.0, **shape)]).yardstick_us == pytest.approx(yardstick)


def test_layer_label(tmp_path):
    def label(**shape):
        return layer_label(only(tmp_path, [row("auto", 1.0, **{"c": 4, "m": 2, **shape})]))

    assert label() == "7-2-4"
    (tmp_path / "nvidia-test/paper/measurements.csv").unlink()
    assert label(w=9, k=3) == "7x9-2-4"
    (tmp_path / "nvidia-test/paper/measurements.csv").unlink()
    assert label(k=3, pad=0) == "7-2-4 p0"


def test_geometric_mean():
    assert geometric_mean([1, 4, math.nan]) == pytest.approx(2)
    assert math.isnan(geometric_mean([])) and math.isnan(geometric_mean([math.nan]))


def test_find_results(tmp_path):
    for device, sweep in (("b", "paper"), ("a", "smoke"), ("a", "paper")):
        write(tmp_path, [row()], device=device, sweep=sweep)
    found = find_results(tmp_path)
    assert [(r.device, r.sweep) for r in found] == [("a", "paper"), ("a", "smoke"), ("b", "paper")]
    assert [r.on_gpu for r in found] == [True] * 3 and len(found[0].frame) == 1
    assert found[0].csv_path == tmp_path / "a/paper/measurements.csv"
    assert [(r.device, r.sweep) for r in find_results(tmp_path, sweep="paper")] == [("a", "paper"), ("b", "paper")]
    assert [(r.device, r.sweep) for r in find_results(tmp_path, device="a", sweep="smoke")] == [("a", "smoke")]
    with pytest.raises(ResultsError, match=r"no c/SWEEP/measurements\.csv under"):
        find_results(tmp_path, device="c")
