"""cuConv in FP32 compared with cuDNN in half precision; expected numbers are worked out by hand."""

import pytest

from harness.report.half import at_other_times, compare_with_half, half_table, in_channels_last
from harness.report.tables import report
from tests.harness.report.helpers import cells
from tests.helpers import measured, row

HALF = {"precision": "fp16", "error": 3e-4}
# At batch 1 the fastest half takes 12 us, channels last: 12 / 10 = 1.2. At batch 8 it takes 15 us: 15 / 60 = 0.25.
ROWS = [
    row("auto", 10.0), row("gemm", 30.0, provider="cudnn"), row("eng1", 14.0, provider="cudnn_engine", **HALF),
    row("benchmark_nhwc", 12.0, provider="torch", **HALF),
    row("default", 11.0, provider="torch", status="incorrect", precision="fp16"),
    row("auto", 60.0, batch=8), row("gemm", 90.0, provider="cudnn", batch=8),
    row("eng2_nhwc", 15.0, provider="cudnn_engine", batch=8, **HALF),
    row("auto", 5.0, batch=16), row("gemm", 10.0, provider="cudnn", batch=16),
]  # fmt: skip


def test_the_fastest_half_in_either_order_is_what_counts(tmp_path):
    rows = compare_with_half(measured(tmp_path, ROWS))
    assert rows.batch.tolist() == [1, 8], "what has no time in half precision is left out"
    assert rows.rival_algorithm.tolist() == ["benchmark_nhwc", "eng2_nhwc"]
    assert rows.speedup.tolist() == [1.2, 0.25]


def test_the_table_tells_the_batches_at_which_fp32_is_ahead(tmp_path):
    text = half_table(measured(tmp_path, ROWS))
    assert cells(text)["1"] == ["1.20x, 1/1"] and cells(text)["8"] == ["0.25x, 0/1"]
    assert "0.55x, faster on 1 of 2 cases" in text and "faster at batch 1." in text


def test_half_precision_wins_no_comparison_in_fp32(tmp_path):
    results = measured(tmp_path, ROWS)
    assert results.of_subject().rival_us.tolist() == [30.0, 90.0, 10.0]
    assert "### Beside cuDNN in FP16" in report(results)


@pytest.mark.parametrize(
    ("rows", "command"),
    [
        (ROWS[:2], "--precision fp16"),
        ([row("default", 12.0, provider="torch", **HALF)], "--provider cuconv"),
    ],
)
def test_without_rows_the_command_is_told(tmp_path, rows, command):
    results = measured(tmp_path, rows)
    assert command in half_table(results) and "FP16" not in report(results)


# Separated 15 / 12 = 1.25, cold 18 / 20 = 0.9.
TIMED = [
    row("auto", 10.0, separated=12.0, cold=20.0, **HALF),
    row("default_nhwc", 15.0, provider="torch", separated=15.0, cold=18.0, **HALF),
]


def test_a_page_has_a_table_of_separated_times_and_a_sentence_of_cold_ones(tmp_path):
    separated, table, cold = at_other_times(measured(tmp_path, TIMED), "fp16").split("\n\n")
    assert "1.25x, faster on 1 of 1 cases" in separated and cells(table)["1"] == ["1.25x, 1/1"]
    assert "0.90x, faster on 0 of 1 cases" in cold


def test_cold_times_that_are_asked_for_have_a_table(tmp_path):
    text = in_channels_last(measured(tmp_path, TIMED).at("cold"), "fp16")
    assert cells(text)["1"] == ["0.90x, 0/1"]


def test_without_other_times_nothing_is_told_of_them(tmp_path):
    assert at_other_times(measured(tmp_path, ROWS), "fp16") == ""
