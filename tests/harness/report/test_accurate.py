"""Rivals that are less accurate than FP32 may be; expected numbers are worked out by hand."""

from harness.report.accurate import accuracy_sentence, is_fp32_accurate
from tests.helpers import measured, row


def rival(algorithm, us, error, provider="cudnn", **options):
    return row(algorithm, us, provider=provider, error=error, **options)


def engine(us, error, **options):
    return rival("eng71", us, error, "cudnn_engine", **options)


def test_an_algorithm_may_have_twice_the_error_of_a_plain_sum(tmp_path):
    rows = [
        rival("implicit_gemm", 20.0, 1e-7), engine(10.0, 2e-7),
        rival("implicit_gemm", 20.0, 1e-7, batch=8), engine(10.0, 2.1e-7, batch=8),
        rival("implicit_gemm", 20.0, 1e-7, k=3), rival("winograd_nonfused", 9.0, 9e-7, k=3),
        rival("fft", 20.0, 9e-7, batch=16),
    ]  # fmt: skip
    accurate = is_fp32_accurate(measured(tmp_path, rows).frame)
    assert accurate.tolist() == [True, True, True, False, True, False, True]


def test_the_sentence_compares_with_the_fastest_accurate_rival(tmp_path):
    rows = [
        row("auto", 10.0), rival("implicit_gemm", 40.0, 1e-7), engine(5.0, 1e-5),
        row("auto", 10.0, batch=8), rival("implicit_gemm", 40.0, 1e-7, batch=8), engine(10.0, 1e-7, batch=8),
    ]  # fmt: skip
    told = accuracy_sentence(measured(tmp_path, rows))
    assert all(value in told for value in ("On 1 of 2 cases", "wins 1 of 2 cases", "2.00x"))
    assert accuracy_sentence(measured(tmp_path / "alone", rows[:1])) == ""
