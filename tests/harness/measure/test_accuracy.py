"""Errors on data of far from ordinary magnitudes: the data, the errors, the CSV and the table, on a CPU."""

import math

import pytest
import torch

from cuconv import ConvProblem, reference
from harness.catalogue import load_sweep
from harness.contenders.cpu import Contender
from harness.errors import ResultsError
from harness.measure import accuracy
from harness.measure.accuracy import MAGNITUDES, Row, measure, relative_error, write
from harness.report.magnitudes import magnitudes_table
from harness.results.accuracy import COLUMNS, read

PROBLEM = ConvProblem(3, 7, 5, 6, 4, 3, 3, 1, 1)
CASES = load_sweep("smoke", batches=[2]).cases[:2]
MANY = 2**30  # bytes of workspace


@pytest.mark.parametrize("name", MAGNITUDES)
def test_the_output_is_as_large_as_is_said(name):
    """In multiples of its unit the output is as large as that of normal data, unless channels are unbalanced."""
    factors = MAGNITUDES[name](PROBLEM)
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(shape, generator=generator) for shape in (PROBLEM.input_shape, PROBLEM.weight_shape))
    scaled = reference.conv2d(x * factors.input, weight * factors.weight, (1, 1)) / factors.output
    assert torch.isfinite(scaled).all()
    ratio = scaled.norm() / reference.conv2d(x, weight, (1, 1)).norm()
    assert 0.5 < ratio < 2 if not name.startswith("channels of") else ratio > 100
    for image in range(PROBLEM.n):  # none is lost beside the others
        assert scaled[image].norm() > 0.1 * scaled.norm() / PROBLEM.n


def test_filters_count_alike_where_these_are_scaled():
    truth = torch.ones(1, 2, 1, 1, dtype=torch.float64) * torch.tensor([1e-10, 1e10]).view(1, 2, 1, 1)
    output = truth.clone()
    output[0, 0] *= 1.5
    assert relative_error(output, truth, torch.ones(())) < 1e-19
    assert relative_error(output, truth, truth) == pytest.approx(0.5 / math.sqrt(2))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_has_no_error(value):
    truth = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    output = truth.clone()
    output[0, 0, 0, 0] = value
    assert math.isnan(relative_error(output, truth, torch.ones(())))


def test_every_algorithm_meets_all_magnitudes_on_data_of_its_own():
    rows = list(measure(CASES, {"cpu": Contender()}, torch.device("cpu"), MANY))
    found = {(row.case.key, row.algorithm, row.magnitudes): row for row in rows}
    assert len(found) == len(rows) == len(CASES) * 4 * len(MAGNITUDES)
    plain = [row for row in rows if row.algorithm in ("two_stage", "native")]
    assert all(row.status == "ok" and row.rel_l2_error < 3e-6 for row in plain)
    errors = {row.rel_l2_error for row in plain if row.algorithm == "two_stage"}
    assert len(errors) > len(MAGNITUDES)  # not the same data again and again


def test_what_cannot_run_has_a_row_that_says_why():
    rows = list(measure(CASES[1:], {"cpu": Contender()}, torch.device("cpu"), workspace_limit=0))
    refused = [row for row in rows if row.status == "workspace_exceeded"]
    assert {row.magnitudes for row in refused} == set(MAGNITUDES)
    assert all("workspace" in row.detail and row.rel_l2_error is None for row in refused)


def row(provider, algorithm, magnitudes="ordinary", error=1e-7, status="ok", case=CASES[0]):
    return Row(case, provider, algorithm, magnitudes, status, "" if status == "ok" else "told, why", error)


def test_rows_come_back_as_they_were(tmp_path):
    rows = [row("cuconv", "auto", error=1.25e-7), row("cudnn", "fft", status="unsupported", error=None)]
    back = read(write(tmp_path / "accuracy", rows))
    assert list(back.columns) == list(COLUMNS)
    assert back.rel_l2_error[0] == 1.25e-7 and math.isnan(back.rel_l2_error[1])
    assert list(back.detail) == ["", "told, why"]


@pytest.mark.parametrize(("text", "message"), [("", "not readable as CSV"), ("batch,h\n1,2\n", "lacks the column 'w'")])
def test_something_else_is_refused(tmp_path, text, message):
    (tmp_path / "accuracy.csv").write_text(text)
    with pytest.raises(ResultsError, match=message):
        read(tmp_path / "accuracy.csv")
    with pytest.raises(ResultsError, match=r"measure first with 'python -m harness\.measure\.accuracy'"):
        read(tmp_path / "nothing.csv")


def test_table_counts_what_is_worse_than_twice_a_plain_sum(tmp_path):
    other = CASES[1]
    rows = [
        row("cudnn", "implicit_gemm", error=1e-7), row("cudnn", "implicit_gemm", error=2e-7, case=other),
        row("cudnn", "implicit_gemm", "images", error=1e-7),
        row("cuconv", "auto", error=2e-7), row("cuconv", "auto", error=5e-7, case=other),
        row("cuconv", "auto", "images", error=math.nan), row("cuconv", "two_stage", status="unsupported", error=None),
    ]  # fmt: skip
    lines = magnitudes_table(read(write(tmp_path, rows))).splitlines()
    cells = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines}
    assert cells["algorithm"] == ["ordinary", "images", "over 2x implicit_gemm"]
    assert cells["cuConv auto"][0] == "3.5e-07, 5.0e-07" and cells["cuConv auto"][-2:] == ["1 bad", "1 of 2"]
    assert cells["cuDNN implicit_gemm"] == ["1.5e-07, 2.0e-07", "1.0e-07, 1.0e-07", "-"]
    assert "cuConv two_stage" not in cells


def test_without_a_gpu_a_sentence_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accuracy.main([]) == 2
    assert capsys.readouterr().err.startswith("harness.measure.accuracy: cuConv's kernels need an NVIDIA GPU")


def test_the_paper_s_layers_are_all_there():
    assert len(load_sweep("paper", batches=[accuracy.BATCH]).cases) == 86
