"""Errors on data of far from ordinary magnitudes: the data, the errors, the CSV and the table, on a CPU."""

import math

import pytest
import torch

from cuconv import ConvProblem, reference
from harness.cases.catalogue import load_sweep
from harness.contenders.cpu import Contender
from harness.errors import ResultsError
from harness.experiments.accuracy import measure as accuracy
from harness.experiments.accuracy.magnitudes import FACTORS, MAGNITUDES
from harness.experiments.accuracy.measure import (
    componentwise_error,
    measure,
    relative_error,
    worst_image_error,
)
from harness.experiments.accuracy.rows import ACCURACY, NEW_COLUMNS, Accuracy
from harness.experiments.accuracy.table import NORMWISE, componentwise_table, magnitudes_table, tables_of
from harness.isolation import Begins

PROBLEM = ConvProblem(3, 7, 5, 6, 4, 3, 3, 1, 1)
CASES = load_sweep("smoke", layers=["4a_5x5", "5a_5x5red"], batches=[2]).cases  # the smallest
MANY = 2**30  # bytes of workspace
TERMS = 7 * 3 * 3  # products in an output of PROBLEM


def normal(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in (PROBLEM.input_shape, PROBLEM.weight_shape)]


def made(name, seed=1):
    """The data of a kind for PROBLEM."""
    return MAGNITUDES[name](PROBLEM, *normal(), torch.Generator().manual_seed(seed))


def convolved(x, weight):
    return reference.conv2d(x, weight, **PROBLEM.geometry)


@pytest.mark.parametrize("name", FACTORS)
def test_the_output_is_as_large_as_is_said(name):
    """In multiples of its unit the output is as large as that of normal data, unless channels are unbalanced."""
    data = made(name)
    scaled = convolved(data.input, data.weight) / data.unit
    assert torch.isfinite(scaled).all()
    ratio = scaled.norm() / convolved(*normal()).norm()
    assert 0.5 < ratio < 2 if not name.startswith("channels of") else ratio > 100
    for image in range(PROBLEM.n):  # none is lost among the others
        assert scaled[image].norm() > 0.1 * scaled.norm() / PROBLEM.n


@pytest.mark.parametrize("name", MAGNITUDES)
def test_every_kind_of_data_is_float32_whose_sums_stay_finite(name):
    data = made(name)
    assert data.input.dtype == data.weight.dtype == torch.float32
    assert data.input.shape == PROBLEM.input_shape and data.weight.shape == PROBLEM.weight_shape
    largest = convolved(data.input.abs(), data.weight.abs()).max()
    assert 0 < largest < 1e-3 * torch.finfo(torch.float32).max  # larger layers have larger sums


@pytest.mark.parametrize("name", MAGNITUDES)
def test_the_data_depend_on_the_seed_alone(name):
    once, again = made(name), made(name)
    assert torch.equal(once.input, again.input) and torch.equal(once.weight, again.weight)
    other = made(name, seed=2)
    same = torch.equal(once.input, other.input) and torch.equal(once.weight, other.weight)
    assert same != (name.startswith("sparse") or name.endswith("exponents"))


def test_the_kinds_change_what_they_say():
    x, weight = normal()
    one = made("one element").input
    assert one[0, 3, 2, 3] == 1e20 and int((one != x).sum()) == 1
    filtered = made("weight element").weight
    assert filtered[0, 3, 0, 0] == 1e20 and int((filtered != weight).sum()) == 1
    channel = made("one channel").input
    assert torch.equal(channel[:, 3], x[:, 3] * 1e20) and int((channel != x).any((0, 2, 3)).sum()) == 1
    channel = made("weight channel").weight
    assert torch.equal(channel[:, 3], weight[:, 3] * 1e20) and int((channel != weight).any((0, 2, 3)).sum()) == 1
    assert torch.equal(made("ReLU").input, torch.relu(x))
    for sparse, dense in ((made("sparse").input, x), (made("sparse weights").weight, weight)):
        assert torch.equal(sparse, dense * (sparse != 0)) and 0 < (sparse != 0).float().mean() < 0.1
    for tiny in (made("subnormal").input, made("subnormal weights").weight):
        assert 0 < tiny.abs().max() < torch.finfo(torch.float32).smallest_normal


@pytest.mark.parametrize(
    ("name", "operand", "lowest", "highest"),
    [
        ("exponents", "input", -126, 100),
        ("weight exponents", "weight", -126, 100),
        ("both exponents", "input", -50, 50),
        ("both exponents", "weight", -50, 50),
    ],
)
def test_each_element_has_an_exponent_of_its_own(name, operand, lowest, highest):
    dense = normal()[["input", "weight"].index(operand)].double()
    k = torch.log2((getattr(made(name), operand).double() / dense).abs())
    whole = k.round()
    large = k > -120  # below, the product may be subnormal and then is rounded
    torch.testing.assert_close(k[large], whole[large], atol=1e-6, rtol=0)
    assert lowest <= whole.min() < lowest + 20 and highest - 20 < whole.max() <= highest
    assert len(whole.unique()) > 50


@pytest.mark.parametrize("name", MAGNITUDES)
def test_a_plain_float32_sum_keeps_the_componentwise_error_of_every_kind(name):
    data = made(name)
    output = torch.nn.functional.conv2d(data.input, data.weight, padding=1)
    absolute = convolved(data.input.abs(), data.weight.abs())
    assert componentwise_error(output, convolved(data.input, data.weight), absolute, TERMS) < 8


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e30])
def test_the_componentwise_error_is_that_of_the_worst_output(scale):
    """An output that is wrong by 3 units of 2^-24 * sqrt(K) * sum |x w|, and one that is wrong by 2."""
    truth = torch.tensor([1.0, -5.0, 0.25], dtype=torch.float64).view(1, 3, 1, 1) * scale
    absolute = torch.tensor([4.0, 6.0, 0.5], dtype=torch.float64).view(1, 3, 1, 1) * scale
    wrong = torch.tensor([2.0, 0.0, -3.0], dtype=torch.float64).view(1, 3, 1, 1)
    output = truth + wrong * 2.0**-24 * 10 * absolute
    assert componentwise_error(output, truth, absolute, terms=100) == pytest.approx(3, rel=1e-9)


def test_a_large_output_hides_no_small_one():
    """Relative to the whole output nothing is wrong, relative to its own products the small output is lost."""
    truth = torch.tensor([1e20, 1.0], dtype=torch.float64).view(1, 2, 1, 1)
    output = truth * torch.tensor([1.0, 0.0], dtype=torch.float64).view(1, 2, 1, 1)
    assert relative_error(output, truth, torch.ones(())) < 1e-19
    assert componentwise_error(output, truth, truth, terms=4) == pytest.approx(2**24 / 2)


def test_underflow_of_each_product_is_allowed():
    terms = 100
    truth = torch.full((1, 1, 1, 1), 1e-44, dtype=torch.float64)
    allowed = terms * 2.0**-149
    assert componentwise_error(truth + allowed, truth, truth, terms) == 0
    beyond = 5 * 2.0**-24 * 10 * 1e-44
    assert componentwise_error(truth + allowed + beyond, truth, truth, terms) == pytest.approx(5, rel=1e-3)


def test_where_all_products_are_0_an_output_must_be_0():
    truth = torch.zeros(1, 2, 1, 1, dtype=torch.float64)
    assert componentwise_error(truth.float(), truth, truth, 9) == 0
    output = torch.tensor([0.0, 1e-20]).view(1, 2, 1, 1)
    assert componentwise_error(output, truth, truth, 9) == math.inf


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_output_is_finite_where_the_truth_is(value):
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64).view(1, 2, 1, 1)
    output = torch.tensor([1.0, value]).view(1, 2, 1, 1)
    assert math.isnan(componentwise_error(output, truth, truth, 9))
    assert math.isnan(worst_image_error(output, truth))
    overflows = torch.tensor([1.0, 1e39], dtype=torch.float64).view(1, 2, 1, 1)  # finite in float64 alone
    assert componentwise_error(output, overflows, overflows, 9) == 0


def test_the_worst_image_counts_whatever_its_magnitude():
    truth = torch.tensor([1e12, 1e-12, 0.0], dtype=torch.float64).view(3, 1, 1, 1).expand(3, 2, 2, 2)
    factor = torch.tensor([1.0, 1.25, 1.0], dtype=torch.float64).view(3, 1, 1, 1)
    assert worst_image_error(truth * factor, truth) == pytest.approx(0.25)
    assert worst_image_error(truth * factor + 1e-15, truth) == pytest.approx(0.251)  # the image of zeros is left out
    assert relative_error(truth * factor, truth, torch.ones(())) < 1e-20


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


def measured(case, workspace_limit, broken=()):
    events = measure(case, {"cpu": Contender()}, torch.device("cpu"), workspace_limit, broken)
    return [event for event in events if isinstance(event, Accuracy)]


def test_what_ended_a_process_is_left_out():
    found = {row.algorithm for row in measured(CASES[1], MANY, {Begins("cpu", "two_stage")})}
    assert "two_stage" not in found and "native" in found


def test_every_algorithm_meets_all_magnitudes_on_data_of_its_own():
    rows = [row for case in CASES for row in measured(case, MANY)]
    found = {(row.case, row.algorithm, row.magnitudes): row for row in rows}
    assert len(found) == len(rows) == len(CASES) * 4 * len(MAGNITUDES)
    plain = [row for row in rows if row.algorithm in ("two_stage", "native")]
    assert all(row.status == "ok" and row.componentwise_error < 8 for row in plain)
    assert all(row.rel_l2_error < 3e-6 for row in plain if "subnormal" not in row.magnitudes)
    assert all(row.worst_image_error < 3e-6 for row in plain if "subnormal" not in row.magnitudes)
    errors = {row.rel_l2_error for row in plain if row.algorithm == "two_stage"}
    assert len(errors) > len(MAGNITUDES)  # not the same data again and again


def test_what_cannot_run_has_a_row_that_says_why():
    rows = measured(CASES[1], 0)
    refused = [row for row in rows if row.status == "workspace_exceeded"]
    assert {row.magnitudes for row in refused} == set(MAGNITUDES)
    assert all("workspace" in row.detail and row.rel_l2_error is None for row in refused)


def row(provider, algorithm, magnitudes="ordinary", error=1e-7, status="ok", case=CASES[0], c=None, image=None):
    return Accuracy(
        case=case.key, provider=provider, algorithm=algorithm, magnitudes=magnitudes, status=status,
        detail="" if status == "ok" else "told, why", rel_l2_error=error, componentwise_error=c,
        worst_image_error=image,
    )  # fmt: skip


def cells_of(table):
    """The cells of each line of a table by its first one."""
    lines = table.splitlines()
    return {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]] for line in lines}


def write(folder, rows):
    return ACCURACY.write(folder, rows)


def test_rows_come_back_as_they_were(tmp_path):
    rows = [
        row("cuconv", "auto", error=1.25e-7, c=0.5, image=2.5e-7),
        row("cudnn", "fft", status="unsupported", error=None),
        row("cudnn", "fft", error=math.nan, c=math.inf, image=math.nan),
    ]
    back = ACCURACY.read(write(tmp_path / "accuracy", rows))
    assert list(back.columns) == list(ACCURACY.columns)
    assert back.rel_l2_error[0] == 1.25e-7 and math.isnan(back.rel_l2_error[1])
    assert list(back.detail) == ["", "told, why", ""]
    assert back.componentwise_error[0] == 0.5 and back.worst_image_error[0] == 2.5e-7
    assert math.isnan(back.componentwise_error[1]) and back.componentwise_error[2] == math.inf


def test_a_file_of_an_older_version_has_no_componentwise_errors(tmp_path):
    path = write(tmp_path, [row("cuconv", "auto", c=0.5, image=1e-7)])
    lines = [line.split(",")[: -len(NEW_COLUMNS)] for line in path.read_text().splitlines()]
    path.write_text("".join(",".join(cells) + "\n" for cells in lines))
    back = ACCURACY.read(path)
    assert back[list(NEW_COLUMNS)].isna().all(axis=None) and back.rel_l2_error[0] == 1e-7
    assert componentwise_table(back) == ""
    assert tables_of(back).endswith("are not measured: run 'python -m harness accuracy' again.")


@pytest.mark.parametrize(("text", "message"), [("", "not readable as CSV"), ("batch,h\n1,2\n", "lacks the column 'w'")])
def test_something_else_is_refused(tmp_path, text, message):
    (tmp_path / "accuracy.csv").write_text(text)
    with pytest.raises(ResultsError, match=message):
        ACCURACY.read(tmp_path / "accuracy.csv")
    with pytest.raises(ResultsError, match=r"measure first with 'python -m harness accuracy'"):
        ACCURACY.read(tmp_path / "nothing.csv")


def test_table_counts_what_is_worse_than_twice_a_plain_sum(tmp_path):
    other = CASES[1]
    rows = [
        row("cudnn", "implicit_gemm", error=1e-7), row("cudnn", "implicit_gemm", error=2e-7, case=other),
        row("cudnn", "implicit_gemm", "images", error=1e-7),
        row("cuconv", "auto", error=2e-7), row("cuconv", "auto", error=5e-7, case=other),
        row("cuconv", "auto", "images", error=math.nan), row("cuconv", "two_stage", status="unsupported", error=None),
        row("cudnn", "fft", error=1e-7),
    ]  # fmt: skip
    cells = cells_of(magnitudes_table(ACCURACY.read(write(tmp_path, rows))))
    assert cells["algorithm"] == ["ordinary, 1e-7", "scaled, 1e-7", "over 2x implicit_gemm"]
    assert cells["cuConv auto"] == ["5.0", "bad", "1 of 2"]
    assert cells["cuDNN implicit_gemm"] == ["2.0", "1.0", "-"]
    assert "cuConv two_stage" not in cells and "cuDNN fft" not in cells


def test_norms_are_tabulated_where_factors_alone_scale_the_data(tmp_path):
    assert tuple(FACTORS) == NORMWISE
    rows = [row("cuconv", "auto"), row("cuconv", "auto", "one element", error=1.0)]
    assert cells_of(magnitudes_table(ACCURACY.read(write(tmp_path, rows))))["cuConv auto"] == ["1.0", "-", "-"]


def test_table_has_the_worst_componentwise_error_of_each_kind(tmp_path):
    other = CASES[1]
    rows = [
        row("cuconv", "auto", c=0.31), row("cuconv", "auto", c=0.84, case=other),
        row("cuconv", "auto", "images", c=999), row("cuconv", "auto", "filters", c=2),
        row("cuconv", "auto", "ReLU", c=3),
        row("cuconv", "two_stage", c=0.5), row("cuconv", "tf32x3_gemm", c=0.6),
        row("cuconv", "auto", "one element", c=5), row("cuconv", "auto", "weight element", c=4),
        row("cuconv", "two_stage", "images", c=12345), row("cudnn", "implicit_gemm", c=1),
        row("cudnn", "gemm", c=0.5), row("cudnn", "gemm", c=math.nan, case=other), row("cudnn", "gemm", "images", c=2),
        row("cudnn", "implicit_gemm", "images", status="unsupported", error=None),
        row("cudnn", "fft", c=1.5), row("cudnn", "fft", "images", c=math.inf),
    ]  # fmt: skip
    back = ACCURACY.read(write(tmp_path, rows))
    cells = cells_of(componentwise_table(back))
    assert cells["data"] == ["auto, batch_invariant", "others of cuConv", "cuDNN GEMM", "cuDNN FFT, Winograd"]
    assert cells["ordinary"] == ["0.8", "0.6", "bad", "1.5"]
    assert cells["scaled"] == ["999.0", "1e+04", "2.0", "inf"]
    assert cells["ReLU"] == ["3.0", "-", "-", "-"] and cells["one element"] == ["5.0", "-", "-", "-"]
    assert "weight element" not in cells
    assert magnitudes_table(back) in tables_of(back) and componentwise_table(back) in tables_of(back)


def test_a_network_that_the_paper_lacks_is_refused(capsys):
    assert accuracy.main(["--net", "nothing"]) == 2
    assert "sweep 'paper' has no network 'nothing'" in capsys.readouterr().err


def test_a_quick_look_leaves_the_measurement_as_it_is(made_up_gpu, monkeypatch, capsys):
    """The folder of a command: with --net its own, with --out the one asked for."""
    measured = []

    def measure(case, *others):
        measured.append(case.label)
        return [row("cuconv", "auto", c=0.5, case=case)]

    monkeypatch.setattr(accuracy, "load", lambda provider: Contender())
    monkeypatch.setattr(accuracy, "measure", measure)
    assert accuracy.main(["--net", "resnet50"]) == 0
    assert [path.name for path in made_up_gpu.iterdir()] == ["accuracy-slice"] and len(measured) == 12
    assert accuracy.main(["--net", "resnet50", "--out", str(made_up_gpu / "mine")]) == 0
    assert accuracy.main([]) == 0 and len(measured) == 12 + 12 + 86
    assert {path.parent.name for path in made_up_gpu.rglob("*.csv")} == {"accuracy-slice", "mine", "accuracy"}
    assert "| cuConv auto |" in capsys.readouterr().out


def test_without_a_gpu_a_sentence_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert accuracy.main([]) == 2
    assert capsys.readouterr().err.startswith("harness accuracy: ")


def test_the_paper_s_layers_are_all_there():
    assert len(load_sweep("paper", batches=[accuracy.BATCH]).cases) == 86
