"""The tables of speedups of helpers.SWEEP, whose figures are worked out by hand, and those with TF32 allowed."""

from dataclasses import replace

import pytest
from pandas.testing import assert_frame_equal

from harness.report.speedups import headline_table, summary_table, tf32_sentence, with_tf32, worst_table
from harness.sweep.comparisons import compare_with_tf32
from tests.harness.report.helpers import cells
from tests.helpers import SWEEP, THREE_TIMES, measured, row


def test_summary(tmp_path):
    auto, two_stage = summary_table(measured(tmp_path, SWEEP)).split("cuConv two_stage", 1)
    told = [
        ["nvidia-test", "3 of 7 cases (42.86%)"],
        ["1.20x", "4.00x (7-128-1-32-832)"],  # 3 ** (1 / 6) = 1.2009
        ["no FP32 time for 1"],
        ["no rival has a time: 1"],
        ["cuBLAS", "1 of 2", "1.00x"],
    ]
    for line, values in zip(auto.splitlines()[:5], told, strict=True):
        assert all(value in line for value in values), line
    rows = cells(auto)
    assert rows["1x1 1"] == ["1", "2 of 3", "1.44x", "1.83x", "3.00x (7-32-832)"]
    assert rows["1x1 8"] == ["8", "0 of 2", "1.00x", "1.00x", "1.00x (7-32-832)"]
    assert rows["1x1 all"] == ["all", "3 of 6", "1.64x", "2.10x", "4.00x (7-128-1-32-832)"]  # 12 ** (1 / 5), 10.5 / 5
    assert rows["3x3"] == ["1", "0 of 1", "0.25x", "0.25x", "0.25x (7-32-832)"]
    assert rows["5x5"] == ["1", "-", "-", "-", "-"]
    assert "0 of 7 cases" in two_stage and "0.50x (7-1-1-32-832)" in two_stage


def test_an_optional_contender_has_a_sentence_and_is_no_rival(tmp_path):
    cutlass = row("fast_fp32", 15.0, provider="cutlass")
    text = summary_table(measured(tmp_path, [row("auto", 10.0), row("gemm", 20.0, provider="cudnn"), cutlass]))
    assert "mean 2.00x" in text and "cuBLAS" not in text and "1.50x" in text.split("CUTLASS")[1]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row("auto", 10.0)], "no case has a rival's time"),
        ([row("gemm", 10.0, provider="cudnn")], "Nothing of cuConv"),
        ([row("auto", status="error"), row("gemm", 10.0, provider="cudnn")], "0 of 1 cases (0.00%)"),
    ],
)
def test_a_summary_says_where_there_is_nothing_to_compare(tmp_path, rows, told):
    assert told in summary_table(measured(tmp_path, rows))


def test_summary_on_a_cpu(tmp_path):
    rows = [row(name, us, provider="cpu") for name, us in (("two_stage", 2.0), ("onednn", 3.0), ("fft", 9.0))]
    text = summary_table(measured(tmp_path, rows, "cpu"))
    assert text.startswith("CPU two_stage against the best torch CPU convolution")
    assert cells(text)["1x1"] == ["1", "1 of 1", "1.50x", "1.50x", "1.50x (7-32-832)"]


def test_the_headline_has_a_line_for_each_batch_size(tmp_path):
    rows = cells(headline_table(measured(tmp_path, SWEEP)))
    assert rows["batch"] == ["cuConv auto", "won", "cuConv two_stage", "won"]
    assert rows["1"] == ["0.93x", "2 of 4", "0.50x", "0 of 4"]  # (3 * 2 * 0.5 * 0.25) ** (1 / 4)
    assert rows["all"] == ["1.20x", "3 of 7", "0.50x", "0 of 7"]  # 3 ** (1 / 6)


def test_the_headline_has_all_times_side_by_side_where_they_were_measured(tmp_path):
    results = measured(tmp_path, THREE_TIMES)
    rows = cells(headline_table(results))
    times = ("hot", "separated", "cold")
    assert rows["batch"] == [f"cuConv auto, {time}" for time in times]
    assert rows["1"] == ["3.00x, 1/1", "2.00x, 1/1", "1.25x, 1/1"]
    assert rows["8"] == ["0.50x, 0/1", "0.80x, 0/1", "2.00x, 1/1"]
    assert rows["all"] == ["1.22x, 1/2", "1.26x, 1/2", "1.58x, 2/2"]  # the roots of 1.5, 1.6 and 2.5


@pytest.mark.parametrize("lacking", [{"separated_runs_us": ()}, {"cold_runs_us": ()}], ids=["separated", "cold"])
def test_the_headline_is_hot_where_a_time_is_lacking(tmp_path, lacking):
    first, *others = THREE_TIMES
    rows = [replace(first, **lacking), *others]
    assert cells(headline_table(measured(tmp_path, rows)))["batch"] == ["cuConv auto", "won", "cuConv two_stage", "won"]


def test_the_worst_cases_come_first(tmp_path):
    results = measured(tmp_path, SWEEP)
    rows = cells(worst_table(results, results.of_subject()))
    assert list(rows)[2:] == ["7-1-3-32-832", "14-1-1-16-480", "7-8-1-32-832"]
    assert rows["7-1-3-32-832"] == ["40.00", "10.00", "cuDNN winograd", "0.25x"]


def cudnn(us, precision="fp32", algorithm="gemm", **case):
    return row(algorithm, us, provider="cudnn", precision=precision, **case)


# Speedups of auto where TF32 is allowed: 20/10 = 2 (TF32 is slower there), 5/10 = 0.5, 8/2 = 4. The second 3x3 case was
# not measured with TF32 allowed, on the last nothing ran with it.
ROWS = [
    row("auto", 10.0), cudnn(20.0), cudnn(25.0, "tf32"),
    row("auto", 10.0, m=48), cudnn(20.0, m=48), cudnn(5.0, "tf32", m=48),
    row("eng67", 6.0, provider="cudnn_engine", precision="tf32", m=48),
    row("auto", 2.0, k=3), cudnn(30.0, k=3), row("default", 8.0, provider="torch", precision="tf32", k=3),
    row("auto", 2.0, k=3, m=48), cudnn(30.0, k=3, m=48),
    row("auto", 2.0, batch=8), cudnn(30.0, batch=8),
    row("fft", provider="cudnn", precision="tf32", batch=8, status="incorrect"),
]  # fmt: skip


def test_the_best_of_both_precisions_is_the_rival(tmp_path):
    table = compare_with_tf32(measured(tmp_path, ROWS))
    assert table.rival_us.tolist() == [20.0, 5.0, 8.0]
    assert table.speedup.tolist() == [2.0, 0.5, 4.0]
    assert table.rival_provider.tolist() == ["cudnn", "cudnn", "torch"]


def test_the_table_counts_cases_with_tf32_rivals_only(tmp_path):
    rows = cells(with_tf32(measured(tmp_path, ROWS)))
    assert rows["batch"] == ["1x1", "3x3", "all"]
    assert rows["1"] == ["1.00x, 1/2", "4.00x, 1/1", "1.59x, 2/3"]  # 4 ** (1 / 3) = 1.587
    assert rows["all"] == rows["1"]


def test_rows_in_tf32_change_no_comparison_in_fp32(tmp_path):
    with_rows = measured(tmp_path / "a", ROWS)
    without = measured(tmp_path / "b", [r for r in ROWS if r.precision == "fp32"])
    assert_frame_equal(with_rows.compared, without.compared, check_dtype=False)
    assert summary_table(with_rows) == summary_table(without)


def test_the_sentence_beside_the_headline_names_the_worst_filter_size(tmp_path):
    # 2, 0.5 and 4 over all, and 2 and 0.5 on 1x1.
    told = tf32_sentence(measured(tmp_path, ROWS))
    assert all(value in told for value in ("2 of 3 cases", "1.59x", "1x1 filters 1 of 2, 1.00x"))
    assert tf32_sentence(measured(tmp_path / "fp32", SWEEP[:3])) == ""


def test_a_row_that_is_channels_last_lifts_the_note_on_the_layout(tmp_path):
    cases = [one for one in ROWS if one.precision == "tf32"]
    last = [replace(one, provider="torch", algorithm="default_nhwc") for one in cases if one.algorithm != "eng67"]
    told = tf32_sentence(measured(tmp_path, [*ROWS, *last]))
    assert "NCHW" not in told and "NCHW" in tf32_sentence(measured(tmp_path / "part", [*ROWS, last[0]]))


def test_what_channels_last_brings_and_the_cases_without_tf32_are_told(tmp_path):
    # The fastest on NCHW tensors are 25, 5 and 8; a case of batch 8 and one of 3x3 have no time in TF32.
    faster = [row("default_nhwc", 12.5, provider="torch", precision="tf32"),
              row("default_nhwc", 10.0, provider="torch", precision="tf32", m=48)]  # fmt: skip
    told = with_tf32(measured(tmp_path, [*ROWS, *faster]))
    assert all(value in told for value in ("gains 1.00x", "1 of 2 cases", "1.59x, 2/3", "2 of 5 cases"))
    assert "channels last" not in with_tf32(measured(tmp_path / "nchw", ROWS))


@pytest.mark.parametrize("others", [[cudnn(5.0)], [row("bmm", 5.0, provider="cublas", precision="tf32")]], ids=str)
def test_where_no_rival_was_measured_with_tf32_there_is_no_table(tmp_path, others):
    assert with_tf32(measured(tmp_path, [row("auto", 10.0), *others])) == ""


def test_rivals_without_rows_in_tf32_are_named(tmp_path):
    rows = [row("auto", 10.0), cudnn(5.0), cudnn(5.0, "tf32"), row("eng0", 6.0, provider="cudnn_engine")]
    assert with_tf32(measured(tmp_path / "a", rows)).endswith("Not measured with TF32 allowed: cuDNN engine.")
    rows.append(row("eng67", 6.0, provider="cudnn_engine", precision="tf32"))
    assert "Not measured" not in with_tf32(measured(tmp_path / "b", rows))


def test_a_case_that_ours_could_not_run_is_not_won(tmp_path):
    rows = [row("auto", status="error"), cudnn(5.0, "tf32"), row("auto", 1.0, m=48), cudnn(5.0, "tf32", m=48)]
    assert cells(with_tf32(measured(tmp_path, rows)))["all"] == ["5.00x, 1/2"]


def test_ours_in_tf32_has_a_table_of_its_own(tmp_path):
    rows = [row("auto", 10.0), row("auto", 1.0, precision="tf32"), cudnn(5.0, "tf32"), cudnn(4.0)]
    fp32, tf32 = with_tf32(measured(tmp_path, rows)).split("**cuConv auto in TF32 against the best cuDNN with TF32")
    assert cells(fp32)["all"] == ["0.40x, 0/1"]
    assert cells(tf32)["all"] == ["4.00x, 1/1"]
