"""Speedup and regret on random layers; expected numbers are worked out by hand."""

import json

import pytest

from harness.report.drawn import WORST, drawn_table
from harness.report.tables import report
from harness.sweep.comparisons import Results
from tests.harness.report.helpers import cells
from tests.helpers import measured, row, write

# Speedups 40/10 = 4, 20/40 = 0.5, and a case that auto cannot compute. Regrets 10/8 = 1.25 and 40/40 = 1.
ROWS = [
    row("auto", 10.0, detail="two_stage rows=8"), row("two_stage", 10.0), row("fp16x3", 8.0),
    row("gemm", 40.0, provider="cudnn"), row("default", 60.0, provider="torch"),
    row("auto", 40.0, h=9, k=3, detail="fp16x3 tile=1"), row("fp16x3", 40.0, h=9, k=3),
    row("two_stage", 90.0, h=9, k=3), row("default", 20.0, provider="torch", h=9, k=3),
    row("auto", status="unsupported", c=3, k=5), row("gemm", 7.0, provider="cudnn", c=3, k=5),
]  # fmt: skip


def test_a_column_has_speedup_and_regret(tmp_path):
    found = cells(drawn_table(measured(tmp_path, ROWS)))
    assert found[""] == ["FP32"]
    assert found["speedup over the best cuDNN, geometric mean"] == ["1.41x"]  # (4 * 0.5) ** (1 / 2)
    assert found["cases lost"] == ["2 of 3"]
    assert found["least speedup"] == ["0.50x (9x7-1-3-32-832)"]
    assert found["regret, geometric mean"] == ["1.118x"]  # 1.25 ** (1 / 2)
    assert found["regret of 95% of the cases, at most"] == ["1.24x"]  # 1 + 0.95 * 0.25
    assert found["largest regret"] == ["1.25x (7-1-1-32-832)"]


def test_the_worst_cases_follow_by_label(tmp_path):
    text = drawn_table(measured(tmp_path, ROWS))
    smallest, largest = text.split("The largest regrets")
    assert cells(smallest)["9x7-1-3-32-832"] == ["40.00", "20.00", "torch cuDNN default", "0.50x"]
    assert cells(largest)["7-1-1-32-832"] == ["10.00", "two_stage", "8.00", "fp16x3", "1.25x"]
    assert largest.index("7-1-1-32-832") < largest.index("9x7-1-3-32-832"), "the largest first"


def test_only_the_worst_are_listed(tmp_path):
    rows = [
        made
        for m in range(1, 3 * WORST)
        for made in (
            row("auto", 10.0, m=m),
            row("two_stage", 10.0 - m / 9, m=m),
            row("gemm", 9.0 + m, provider="cudnn", m=m),
        )
    ]
    smallest, largest = drawn_table(measured(tmp_path, rows)).split("The largest regrets")
    assert [label for label in cells(smallest) if "-1-1-" in label] == [f"7-1-1-{m}-832" for m in range(1, WORST + 1)]
    listed = [label for label in cells(largest) if "-1-1-" in label]
    assert listed == [f"7-1-1-{m}-832" for m in range(3 * WORST - 1, 2 * WORST - 1, -1)]


def test_each_precision_is_compared_with_its_own(tmp_path):
    half, tf32 = {"precision": "fp16", "error": 3e-4}, {"precision": "tf32", "error": 3e-4}
    rows = [
        *ROWS, row("auto", 5.0, **half), row("nhwc_wgmma", 4.0, **half),
        row("eng1_nhwc", 20.0, provider="cudnn_engine", **half),
        row("auto", 10.0, **tf32), row("default", 50.0, provider="torch", **tf32),
    ]  # fmt: skip
    found = cells(drawn_table(measured(tmp_path, rows)).split("The smallest speedups")[0])
    assert found[""] == ["FP32", "TF32", "FP16"]
    assert found["least speedup"][1:] == ["4.00x (7-1-1-32-832)"] * 2, "in TF32 the rival in FP32 is faster"
    assert found["regret, geometric mean"] == ["1.118x", "-", "1.250x"]


@pytest.mark.parametrize("rows", [[row("gemm", 5.0, provider="cudnn")], [row("auto", status="error")]])
def test_without_times_of_auto_there_is_nothing(tmp_path, rows):
    assert drawn_table(measured(tmp_path, rows)) == ""


def test_the_tables_have_it_for_the_sweep_of_random_layers_alone(tmp_path):
    folders = [write(tmp_path, ROWS, sweep=sweep).parent for sweep in ("paper", "random")]
    found = ["| cases lost" in report(Results.read(folder)) for folder in folders]
    assert found == [False, True]


def test_a_warning_says_where_algorithms_were_measured_by_other_code(tmp_path):
    rows = [row("auto", 10.0, environment="e1"), row("two_stage", 8.0, environment="e2")]
    results = measured(tmp_path, rows)
    reports = {name: {"gpu": "NVIDIA Test", "code": code} for name, code in (("e1", "a"), ("e2", "b"))}
    (results.folder / "environment.json").write_text(json.dumps({"environments": reports}))
    assert "other code, versions or machine than those of two_stage" in drawn_table(results)
