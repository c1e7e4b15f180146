"""The table of every sweep; expected numbers are worked out by hand."""

from harness.report.sweeps import sweeps_table
from harness.sweep.comparisons import Results
from tests.harness.report.helpers import cells
from tests.helpers import GPU, row, write

HALF = {"precision": "fp16", "error": 3e-4}
PAPER = [
    row("auto", 10.0, separated=12.0, cold=20.0),
    row("gemm", 30.0, provider="cudnn", separated=18.0, cold=18.0),
    row("auto", 10.0, batch=8, separated=10.0, cold=10.0),
    row("gemm", 7.5, provider="cudnn", batch=8, separated=6.0, cold=40.0),
    row("auto", 4.0, batch=16, **HALF),  # no rival in FP16
]
OTHER = [
    row("auto", 8.0),
    row("gemm", 12.0, provider="cudnn"),
    row("auto", 5.0, **HALF),
    row("default_nhwc", 10.0, provider="torch", **HALF),
]


def test_a_line_has_a_sweep_in_a_precision_and_all_its_times(tmp_path):
    write(tmp_path, PAPER)
    write(tmp_path, OTHER, sweep="strided")
    table = cells(sweeps_table(Results.read(tmp_path / GPU / "paper")))
    assert len(table) == 5, "a header, its rule, and a line for each"
    assert table["paper"] == ["FP32", "1.50x, 1/2", "0.95x, 1/2", "1.90x, 1/2", "0.75x"]
    assert table["strided FP32"] == ["FP32", "1.50x, 1/1", "-", "-", "1.50x"]
    assert table["strided FP16"] == ["FP16", "2.00x, 1/1", "-", "-", "2.00x"]
