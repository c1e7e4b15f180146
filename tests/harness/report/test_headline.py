"""cuConv in FP32 against rivals with TF32 allowed: who counts, and the figures, worked out by hand."""

import pytest
from pandas.testing import assert_frame_equal

from harness.results.comparisons import compare, compare_with_tf32
from harness.report.headline import headlines, with_tf32
from tests.helpers import frame, row
from tests.harness.report.test_tables import GPU, cells


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


def test_the_best_of_both_classes_is_the_rival(tmp_path):
    table = compare_with_tf32(frame(tmp_path, ROWS), GPU)
    assert table.rival_us.tolist() == [20.0, 5.0, 8.0]
    assert table.speedup.tolist() == [2.0, 0.5, 4.0]
    assert table.rival_provider.tolist() == ["cudnn", "cudnn", "torch"]


def test_the_table_counts_cases_with_tf32_rivals_only(tmp_path):
    text = with_tf32(frame(tmp_path, ROWS), GPU)
    assert text.startswith("**cuConv auto in FP32 against the best cuDNN with TF32 allowed**: geometric mean")
    rows = cells(text)
    assert rows["batch"] == ["1x1", "3x3", "all"]
    assert rows["1"] == ["1.00x, 1/2", "4.00x, 1/1", "1.59x, 2/3"]  # 4 ** (1 / 3) = 1.587
    assert rows["all"] == rows["1"]


def test_the_headline_in_fp32_is_what_it_is_without_tf32(tmp_path):
    with_rows, without = frame(tmp_path / "a", ROWS), frame(tmp_path / "b", [r for r in ROWS if r.precision == "fp32"])
    assert_frame_equal(compare(with_rows, GPU), compare(without, GPU), check_dtype=False)
    assert headlines(with_rows, GPU) == headlines(without, GPU) + "\n\n" + with_tf32(with_rows, GPU)


@pytest.mark.parametrize("others", [[cudnn(5.0)], [row("bmm", 5.0, provider="cublas", precision="tf32")]], ids=str)
def test_where_no_rival_was_measured_with_tf32_there_is_no_table(tmp_path, others):
    assert with_tf32(frame(tmp_path, [row("auto", 10.0), *others]), GPU) == ""


def test_rivals_without_rows_in_tf32_are_named(tmp_path):
    rows = [row("auto", 10.0), cudnn(5.0), cudnn(5.0, "tf32"), row("eng0", 6.0, provider="cudnn_engine")]
    assert with_tf32(frame(tmp_path / "a", rows), GPU).endswith("\n\nNot measured with TF32 allowed: cuDNN engine.")
    rows.append(row("eng67", 6.0, provider="cudnn_engine", precision="tf32"))
    assert "Not measured" not in with_tf32(frame(tmp_path / "b", rows), GPU)


def test_a_case_that_ours_could_not_run_is_not_won(tmp_path):
    rows = [row("auto", status="error"), cudnn(5.0, "tf32"), row("auto", 1.0, m=48), cudnn(5.0, "tf32", m=48)]
    assert cells(with_tf32(frame(tmp_path, rows), GPU))["all"] == ["5.00x, 1/2", "5.00x, 1/2"]


def test_ours_in_tf32_has_a_table_of_its_own(tmp_path):
    rows = [row("auto", 10.0), row("auto", 1.0, precision="tf32"), cudnn(5.0, "tf32"), cudnn(4.0)]
    fp32, tf32 = with_tf32(frame(tmp_path, rows), GPU).split("**cuConv auto in TF32 against the best cuDNN with TF32")
    assert cells(fp32)["all"] == ["0.40x, 0/1", "0.40x, 0/1"]
    assert cells(tf32)["all"] == ["4.00x, 1/1", "4.00x, 1/1"]
