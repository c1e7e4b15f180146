"""The tables of all algorithms, on helpers.SWEEP, whose figures are worked out by hand."""

from harness.report.algorithms import accuracy_table, algorithms_table, errors_table
from tests.harness.report.helpers import cells
from tests.helpers import SWEEP, measured, row


def test_algorithms_table(tmp_path):
    rows = cells(algorithms_table(measured(tmp_path, SWEEP)))
    assert rows.pop("algorithm") == ["precision", "ran", "best rival", "best of all", "otherwise"]
    rows = {name: row for name, row in rows.items() if not name.startswith("---")}
    assert rows == {
        "cuConv auto": ["fp32", "7 of 8", "-", "4", "incorrect 1"],  # of two equal times the first in the registry
        "cuConv two_stage": ["fp32", "1 of 8", "-", "0", "not offered 7"],
        "cuDNN implicit_gemm": ["fp32", "3 of 8", "2", "1", "not offered 5"],
        "cuDNN fft": ["fp32", "0 of 8", "0", "0", "unsupported 1, not offered 7"],
        "cuDNN winograd fp32": ["fp32", "1 of 8", "1", "1", "not offered 7"],
        "cuDNN winograd tf32": ["tf32", "1 of 8", "-", "-", "not offered 7"],
        # Two knob choices are one engine; where one of them ran, the engine did.
        "cuDNN engine eng3": ["fp32", "2 of 8", "2", "0", "not offered 6"],
        "torch cuDNN default": ["fp32", "2 of 8", "2", "1", "not offered 6"],
        "cuBLAS bmm": ["fp32", "2 of 8", "-", "1", "not offered 6"],
    }


def test_engines_are_in_the_order_of_their_numbers(tmp_path):
    engines = [row(f"eng{n}_k1=0", 5.0, provider="cudnn_engine") for n in (10, 2, 0)]
    names = [name for name in cells(algorithms_table(measured(tmp_path, engines))) if "engine" in name]
    assert names == ["cuDNN engine eng0", "cuDNN engine eng2", "cuDNN engine eng10"]


def test_accuracy(tmp_path):
    rows = cells(accuracy_table(measured(tmp_path, SWEEP)))
    # implicit_gemm ran on three cases; on one its error is 4e-8, and 1e-7 is more than twice that.
    assert rows["cuConv auto"] == ["fp32", "7", "1.0e-07", "1.0e-07", "1 of 3"]
    assert rows["cuConv two_stage"] == ["fp32", "1", "1.0e-07", "1.0e-07", "1 of 1"]
    assert rows["cuDNN implicit_gemm"] == ["fp32", "3", "1.0e-07", "1.0e-07", "-"]
    assert "cuDNN fft" not in rows  # it never ran


def test_the_error_in_fp32_is_compared_with_that_in_fp32(tmp_path):
    rows = [
        row("auto", 1.0, error=3e-7), row("implicit_gemm", 1.0, provider="cudnn", error=1e-7),
        row("implicit_gemm", 1.0, provider="cudnn", precision="tf32", error=3e-4),
    ]  # fmt: skip
    found = cells(accuracy_table(measured(tmp_path, rows)))
    assert found["cuConv auto"][-1] == "1 of 1"
    assert found["cuDNN implicit_gemm tf32"] == ["tf32", "1", "3.0e-04", "3.0e-04", "-"]


def test_median_and_worst_error_and_twice_the_error_is_allowed(tmp_path):
    errors = [row("auto", 1.0, batch=n, error=e) for n, e in ((1, 1e-7), (8, 3e-7), (16, 9e-7))]
    errors.append(row("implicit_gemm", 1.0, provider="cudnn", batch=8, error=1.5e-7))
    assert cells(accuracy_table(measured(tmp_path, errors)))["cuConv auto"][2:] == ["3.0e-07", "9.0e-07", "0 of 1"]


def test_a_page_has_the_errors_in_fp32_and_a_sentence_on_tf32(tmp_path):
    engines = [row(f"eng{n}", 1.0, provider="cudnn_engine", error=e) for n, e in ((1, 2e-7), (2, 1.09e-3))]
    tf32 = [row("auto", 1.0, batch=n, precision="tf32", error=e) for n, e in ((1, 1e-4), (8, 3e-4))]
    plain = row("implicit_gemm", 1.0, provider="cudnn", error=1e-7)
    rows = [row("auto", 1.0, error=3e-7), plain, *engines, *tf32, row("bmm", 1.0, provider="cublas")]
    text = errors_table(measured(tmp_path, rows))
    found = cells(text)
    assert found["cuConv auto"] == ["3.0", "3.0", "1 of 1"] and found["cuDNN implicit_gemm"] == ["1.0", "1.0", "-"]
    assert found["cuDNN engine (all)"] == ["5,451", "10,900", "-"] and "cuBLAS" not in text
    assert text.endswith("In TF32 cuConv's errors have the median 2.0e-04, and are at most 3.0e-04.")
