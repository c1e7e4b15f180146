"""cuConv compared with cuDNN of any workspace; expected numbers are worked out by hand."""

import pytest

from harness.report.page import details, engine_notes, rival_times
from harness.report.tables import report
from harness.report.unlimited import compare_without_limit, unlimited_sentences
from harness.sweep.rivals import fastest_rivals
from tests.helpers import GPU, measured, row

GIB = 2**30


def rival(algorithm, us=None, provider="cudnn", **options):
    return row(algorithm, us, provider=provider, **options)


def over(algorithm, us=None, gib=2, **options):
    return rival(algorithm, us, status="workspace_exceeded", workspace=int(gib * GIB) if us else None, **options)


# Speedups with the limit and without it: batch 1: 30/10 = 3, then 12/10 = 1.2 over fft of 3.5 GiB;
# batch 8: 20/10 = 2 in both, over gemm of 0.5 GiB, for fft over the limit is slower;
# batch 16: 32/16 = 2, then 8/16 = 0.5 over an engine of 2 GiB.
ROWS = [
    row("auto", 10.0), rival("gemm", 30.0), over("fft", 12.0, 3.5), over("winograd_nonfused", 15.0),
    row("auto", 10.0, batch=8), rival("gemm", 20.0, batch=8, workspace=GIB // 2), over("fft", 21.0, batch=8),
    row("auto", 16.0, batch=16), rival("gemm", 32.0, batch=16), over("eng4", 8.0, provider="cudnn_engine", batch=16),
    over("fft", batch=16), over("fft", 1.0, precision="tf32"), over("bmm", 1.0, provider="cublas"),
]  # fmt: skip


@pytest.fixture
def results(tmp_path):
    return measured(tmp_path, ROWS)


def test_any_workspace_counts_here_alone(results):
    rows = compare_without_limit(results)
    assert rows.limited_speedup.tolist() == results.of_subject().speedup.tolist() == [3.0, 2.0, 2.0]
    assert rows.speedup.tolist() == [1.2, 2.0, 0.5]
    assert rows.rival_status.tolist() == ["workspace_exceeded", "ok", "workspace_exceeded"]
    assert rows.workspace_bytes.tolist() == [3.5 * GIB, 0.5 * GIB, 2 * GIB]


def test_the_sentences_tell_where_the_limit_matters(results):
    text = unlimited_sentences(results)
    assert text.startswith("On 2 of 3 cases the fastest cuDNN is over the limit, from batch 1 on, with up to 3.5 GiB.")
    assert "wins 2 of 3 cases, geometric mean 1.06x; within the limit, 2.29x." in text  # cube roots of 1.2 and of 12
    assert "Only 4 of 5 rows of cuDNN over the limit have a time." in text


def test_the_sentences_tell_that_no_rival_over_the_limit_is_the_fastest(tmp_path):
    text = unlimited_sentences(measured(tmp_path, ROWS[4:7]))
    assert text.startswith("On 0 of 1 cases the fastest cuDNN is over the limit. With any workspace")


def test_every_other_report_and_a_quick_look_leave_them_out(results, tmp_path):
    assert "faster on 3 of 3 cases (100.00%).\nSpeedup: geometric mean 2.29x" in report(results)
    chosen = fastest_rivals(results.csv_path, GPU).values()
    assert set().union(*chosen) == {("cudnn", "gemm")}
    assert {row.rival_algorithm for row in results.compared.itertuples()} == {"gemm"}


def test_the_page_shows_their_times_and_chooses_none_of_them(results):
    best = rival_times(results)["the best cuDNN"]["hot fp32"]
    assert (best["us"], best["names"]) == ([30.0, 20.0, 32.0], ["cuDNN gemm"])
    first = details(results)[0]
    assert ["cuDNN fft", "fp32", "workspace_exceeded", 1e-7, int(3.5 * GIB), [12.0] * 3] in first
    assert engine_notes(results) == [""] * 3


@pytest.mark.parametrize("rows", [ROWS[:2], [*ROWS[:2], over("fft")], [*ROWS[:2], *ROWS[-2:]]])
def test_without_times_the_command_is_told(tmp_path, rows):
    assert "python -m harness.run" in unlimited_sentences(measured(tmp_path, rows))
