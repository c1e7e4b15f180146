"""The choice of auto, and what it loses without an algorithm; expected numbers are worked out by hand."""

from harness.report.choice import algorithm_table, choice_table, invariance_table, losses_table, without
from tests.harness.report.helpers import cells
from tests.helpers import measured, row


def test_choice_table_says_how_far_auto_is_from_the_best_of_our_own(tmp_path):
    rows = [
        row("auto", 11.0), row("two_stage", 10.0), row("tf32x3_gemm", 40.0),
        row("auto", 30.0, m=48), row("two_stage", 20.0, m=48), row("implicit_gemm", 1.0, provider="cudnn", m=48),
        row("auto", 10.0, batch=3), row("two_stage", 10.0, batch=3),
        row("auto", 10.0, batch=3, m=48), row("two_stage", status="error", batch=3, m=48),
    ]  # fmt: skip
    found = cells(choice_table(measured(tmp_path, rows)))
    assert found["1"] == ["1.285x", "1.50x (7-1-1-48-832)"]
    assert found["3"] == ["1.000x", "1.00x (7-3-1-32-832)"]
    assert found["all"][0] == "1.182x"  # (1.1 * 1.5) ** (1 / 3)


def test_batch_invariant_is_no_algorithm_that_auto_could_take(tmp_path):
    rows = [row("auto", 12.0), row("batch_invariant", 9.0), row("two_stage", 10.0)]
    assert "1.20x (7-1-1-32-832)" in choice_table(measured(tmp_path, rows))


def test_invariance_table_says_what_batch_invariance_costs(tmp_path):
    rows = [
        row("auto", 10.0), row("batch_invariant", 20.0), row("gemm", 30.0, provider="cudnn"),
        row("auto", 10.0, k=3, batch=8), row("batch_invariant", 80.0, k=3, batch=8),
        row("gemm", 40.0, provider="cudnn", k=3, batch=8),
        row("auto", 10.0, m=48), row("batch_invariant", status="error", m=48), row("gemm", 9.0, provider="cudnn", m=48),
    ]  # fmt: skip
    found = cells(invariance_table(measured(tmp_path, rows)))
    assert found["1"] == ["2.00x", "-", "2.00x", "1.50x", "1 of 1"]
    assert found["8"] == ["-", "8.00x", "8.00x", "0.50x", "0 of 1"]
    assert found["all"] == ["2.00x", "8.00x", "4.00x", "0.87x", "1 of 2"]  # means of 2 and 8, of 1.5 and 0.5
    assert "not measured" in invariance_table(measured(tmp_path / "b", [row("auto", 1.0)]))


def test_the_choice_in_tf32_is_among_what_computes_in_tf32(tmp_path):
    rows = [row("auto", 12.0, precision="tf32"), row("tf32x3_gemm", 10.0, precision="tf32"), row("two_stage", 1.0)]
    found = cells(choice_table(measured(tmp_path, rows)))
    assert found["1"] == ["1.200x", "1.20x (7-1-1-32-832)"]


def test_each_precision_has_its_columns(tmp_path):
    rows = [row("auto", 12.0, precision="tf32"), row("tf32x3_gemm", 10.0, precision="tf32"),
            row("auto", 11.0, batch=8), row("two_stage", 10.0, batch=8)]  # fmt: skip
    found = cells(choice_table(measured(tmp_path, rows)))
    assert found["batch"] == ["FP32, mean", "FP32, worst", "TF32, mean", "TF32, worst"]
    assert found["1"] == ["-", "-", "1.200x", "1.20x (7-1-1-32-832)"] and found["8"][2:] == ["-", "-"]


def test_without_auto_there_is_no_choice_table(tmp_path):
    assert choice_table(measured(tmp_path, [row("two_stage", 10.0)])) == ""


# auto takes fp16x3 on three cases and tf32x3_gemm on one. Without fp16x3 it would take 1.5 times as long on the first
# and twice as long on the second; on the third no other algorithm ran.
CHOSEN = [
    row("auto", 10.0, k=3, detail="fp16x3 tile=1"), row("fp16x3", 10.0, k=3),
    row("tf32x3_gemm", 15.0, k=3), row("two_stage", 40.0, k=3), row("gemm", 1.0, provider="cudnn", k=3),
    row("auto", 10.0, k=5, batch=8, detail="fp16x3 tile=1"), row("fp16x3", 11.0, k=5, batch=8),
    row("tf32x3_gemm", 25.0, k=5, batch=8), row("two_stage", 20.0, k=5, batch=8),
    row("auto", 10.0, k=3, m=48, detail="fp16x3 tile=1"), row("fp16x3", 10.0, k=3, m=48),
    row("two_stage", status="error", k=3, m=48),
    row("auto", 10.0, detail="tf32x3_gemm tile=2"), row("tf32x3_gemm", 10.0), row("two_stage", 8.0),
]  # fmt: skip


def test_without_an_algorithm_its_cases_go_to_the_fastest_of_the_others(tmp_path):
    results = measured(tmp_path, CHOSEN)
    table = without(results, "fp16x3").set_index(["k", "m", "batch"])
    assert table.loc[(3, 32, 1), "loss"] == 1.5 and table.loc[(5, 32, 8), "loss"] == 2.0
    assert table.loc[(1, 32, 1), "loss"] == 1.0  # auto keeps its choice
    assert table.loss.isna().sum() == 1  # nothing else ran
    assert without(results, "tf32x3_gemm").set_index("k").loc[1, "loss"] == 0.8  # timed apart: less than nothing


def test_losses_table(tmp_path):
    rows = cells(losses_table(measured(tmp_path, CHOSEN)))
    assert rows["fp16x3"] == ["fp32", "3 of 4", "1.4422x", "2.00x (7-8-5-32-832)"]  # (1.5 * 2 * 1) ** (1 / 3)
    assert rows["two_stage"] == ["fp32", "0 of 4", "1.0000x", "-"]
    assert "tf32x3_wgmma" not in rows  # it has no row
    assert losses_table(measured(tmp_path / "b", [row("two_stage", 1.0)])) == ""


def test_in_tf32_an_algorithm_in_fp32_may_take_over(tmp_path):
    rows = [
        row("auto", 10.0, precision="tf32", detail="fp16x3 tile=1"), row("fp16x3", 10.0, precision="tf32"),
        row("tf32x3_gemm", 30.0, precision="tf32"), row("two_stage", 20.0), row("fp16x3", 12.0),
    ]  # fmt: skip
    assert without(measured(tmp_path, rows), "fp16x3", "tf32").loss.tolist() == [2.0]


def test_algorithm_table_says_where_auto_takes_it(tmp_path):
    results = measured(tmp_path, CHOSEN)
    rows = cells(algorithm_table(results, "fp16x3"))
    assert rows[""] == ["FP32"]
    assert rows["auto takes it on"] == ["3 of 4 cases"]
    assert rows["filter sizes"] == ["3x3 (2), 5x5 (1)"] and rows["batch sizes"] == ["1 (2), 8 (1)"]
    assert rows["its time over that of the next best there, median"] == ["0.58x"]  # of 1 / 1.5 and 1 / 2
    assert "none of the 4 cases" in algorithm_table(results, "two_stage")
    assert "not measured" in algorithm_table(results, "tf32x3_wgmma")
