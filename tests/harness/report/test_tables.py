"""The tables of samples.SWEEP, whose figures are worked out by hand."""

import pytest

from cuconv.problem import ConvProblem
from harness.measure import accuracy
from harness.measure import bandwidth
from harness.report import tables
from harness.measure.accuracy import Row
from harness.results.comparisons import is_memory_bound
from harness.catalogue import load_sweep
from harness.report.markdown import markdown
from harness.report.memory_bound import LEAST_BATCH, memory_bound_table
from tests.helpers import SWEEP, copies, frame, row, write

GPU = "nvidia-test"


def cells(table: str) -> dict[str, list[str]]:
    """The rows of a markdown table by their first cell, or by their first two where the first repeats."""
    lines = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("|")]
    body = [[cell.strip() for cell in line] for line in lines]
    first = [row[0] for row in body]
    return {row[0] if first.count(row[0]) == 1 else f"{row[0]} {row[1]}": row[1:] for row in body}


def test_markdown_is_aligned_for_the_terminal():
    assert markdown(["name", "us"], [["a", 1], ["longer", 22.5]]).splitlines() == [
        "| name   |   us |",
        "| ------ | ---: |",
        "| a      |    1 |",
        "| longer | 22.5 |",
    ]


def test_networks_table_has_the_paper_s_counts():
    table = tables.networks_table()
    rows = cells(table)
    counts = dict(zip(rows[""], rows["distinct layers"], strict=True))
    assert counts == {"alexnet": "4", "googlenet": "42", "resnet50": "12", "squeezenet": "21", "vgg19": "9"}
    assert dict(zip(rows[""], rows["smallest input, at its deepest"], strict=True))["googlenet"] == "7x7x832"
    assert table.endswith("Together 86 distinct layers; with 7 batch sizes 602 configurations.")


def test_algorithms_table(tmp_path):
    rows = cells(tables.algorithms_table(frame(tmp_path, SWEEP), GPU))
    assert rows.pop("algorithm") == ["precision", "ran", "best rival", "best of all", "otherwise"]
    rows = {name: row for name, row in rows.items() if not name.startswith("---")}
    assert rows == {
        "cuConv auto": ["fp32", "7 of 8", "-", "4", "incorrect 1"],  # of two equal times the first in the roster
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
    names = [name for name in cells(tables.algorithms_table(frame(tmp_path, engines), GPU)) if "engine" in name]
    assert names == ["cuDNN engine eng0", "cuDNN engine eng2", "cuDNN engine eng10"]


def test_summary(tmp_path):
    auto, two_stage = tables.summary_table(frame(tmp_path, SWEEP), GPU).split("cuConv two_stage", 1)
    assert auto.splitlines()[:5] == [
        "cuConv auto against the best cuDNN on nvidia-test: faster on 3 of 7 cases (42.86%).",
        "Speedup: geometric mean 1.20x, maximum 4.00x (7-128-1-32-832).",  # 3 ** (1 / 6) = 1.2009
        "It has no FP32 time for 1 of them: not won, and not in the means.",
        "Left out, as no rival has a time: 1.",
        "Against cuBLAS, where it applies: faster on 1 of 2, geometric mean 1.00x.",
    ]
    rows = cells(auto)
    assert rows["1x1 1"] == ["1", "2 of 3", "1.44x", "1.83x", "3.00x (7-32-832)"]
    assert rows["1x1 8"] == ["8", "0 of 2", "1.00x", "1.00x", "1.00x (7-32-832)"]
    assert rows["1x1 all"] == ["all", "3 of 6", "1.64x", "2.10x", "4.00x (7-128-1-32-832)"]  # 12 ** (1 / 5), 10.5 / 5
    assert rows["3x3"] == ["1", "0 of 1", "0.25x", "0.25x", "0.25x (7-32-832)"]
    assert rows["5x5"] == ["1", "-", "-", "-", "-"]
    assert "faster on 0 of 7 cases" in two_stage and "maximum 0.50x (7-1-1-32-832)" in two_stage


def test_summary_without_rivals_and_without_subjects(tmp_path):
    alone = tables.summary_table(frame(tmp_path / "a", [row("auto", 10.0)]), GPU)
    assert alone == "cuConv auto: no case has a rival's time to compare with."
    nobody = tables.summary_table(frame(tmp_path / "b", [row("gemm", 10.0, provider="cudnn")]), GPU)
    assert nobody == "Nothing of cuConv was measured here, so there is nothing to compare."


def test_summary_where_the_subject_never_ran(tmp_path):
    rows = [row("auto", status="error"), row("gemm", 10.0, provider="cudnn")]
    text = tables.summary_table(frame(tmp_path, rows), GPU)
    assert "faster on 0 of 1 cases (0.00%)" in text and "geometric mean -, maximum -." in text


def test_summary_on_a_cpu(tmp_path):
    rows = [row(name, us, provider="cpu") for name, us in (("two_stage", 2.0), ("onednn", 3.0), ("fft", 9.0))]
    text = tables.summary_table(frame(tmp_path, rows), "cpu")
    assert text.startswith("CPU two_stage against the best torch CPU convolution on cpu: faster on 1 of 1 cases")
    assert cells(text)["1x1"] == ["1", "1 of 1", "1.50x", "1.50x", "1.50x (7-32-832)"]


def test_beside_the_paper(tmp_path):
    rows = cells(tables.paper_table(frame(tmp_path, SWEEP), GPU))
    assert rows[""] == ["paper (V100)", "cuConv auto", "cuConv two_stage"]
    assert rows["configurations won"] == ["50 of 602 (8.31%)", "3 of 7 (42.86%)", "0 of 7 (0.00%)"]
    assert rows["mean speedup of the configurations won"] == ["1.46x", "3.00x", "-"]  # (3 + 2 + 4) / 3
    assert rows["1x1, batch 1: mean speedup"] == ["1.23x", "1.83x", "0.50x"]
    assert rows["1x1, batch 1: maximum"] == ["2.29x (7-32-832)", "3.00x (7-32-832)", "0.50x (7-32-832)"]
    assert rows["5x5, batch 1: mean speedup"] == ["1.36x", "-", "-"]
    assert rows["5x5, batch 1: maximum"] == ["1.97x", "-", "-"]


def test_accuracy(tmp_path):
    rows = cells(tables.accuracy_table(frame(tmp_path, SWEEP), GPU))
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
    found = cells(tables.accuracy_table(frame(tmp_path, rows), GPU))
    assert found["cuConv auto"][-1] == "1 of 1"
    assert found["cuDNN implicit_gemm tf32"] == ["tf32", "1", "3.0e-04", "3.0e-04", "-"]


def test_median_and_worst_error(tmp_path):
    errors = [row("auto", 1.0, batch=n, error=e) for n, e in ((1, 1e-7), (8, 3e-7), (16, 9e-7))]
    assert cells(tables.accuracy_table(frame(tmp_path, errors), GPU))["cuConv auto"][2:] == ["3.0e-07", "9.0e-07", "-"]


def test_twice_the_error_is_allowed(tmp_path):
    rows = [row("auto", 1.0, error=2e-7), row("implicit_gemm", 1.0, provider="cudnn", error=1e-7)]
    assert cells(tables.accuracy_table(frame(tmp_path, rows), GPU))["cuConv auto"][-1] == "0 of 1"


def test_command_line_prints_every_table(tmp_path, capsys):
    write(tmp_path, SWEEP)
    write(tmp_path, [row(name, 2.0, provider="cpu") for name in ("two_stage", "native")], device="cpu", sweep="smoke")
    assert tables.main(["--results", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    titles = [line for line in text.splitlines() if line.startswith("#")]
    errors = "### Accuracy: relative L2 error against float64"
    assert titles == [
        "## Layers",
        "## cpu, sweep smoke", "### Speedup", "### Algorithms", errors,
        "## nvidia-test, sweep paper", "### Speedup", "### Beside the floor", "### Memory-bound layers beside copies",
        "### Beside the paper",
        "### Against cuDNN with TF32 allowed", "### Algorithms",
        "### auto over the best of cuConv's own algorithms, fp32, time", errors,
        "### Accuracy where magnitudes are far from ordinary",
    ]  # fmt: skip
    assert tables.main(["--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == text


def test_errors_where_magnitudes_are_far_from_ordinary_are_shown_once_measured(tmp_path, capsys):
    write(tmp_path, SWEEP)
    assert tables.main(["--results", str(tmp_path)]) == 0
    assert "Not measured on nvidia-test: run 'python -m harness.accuracy' there." in capsys.readouterr().out
    (case, *_) = load_sweep("smoke", batches=[1]).cases
    errors = [Row(case, "cuconv", "auto", "images", "ok", rel_l2_error=1.5e-7)]
    accuracy.write(tmp_path / "nvidia-test" / accuracy.FOLDER, errors)
    assert tables.main(["--results", str(tmp_path)]) == 0
    assert "1.5e-07, 1.5e-07" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--readme", "README.md"]])
def test_nothing_measured(tmp_path, capsys, arguments):
    assert tables.main(["--results", str(tmp_path), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and "measure first" in captured.err


def test_floor_table_counts_cublas_as_a_rival_too_and_names_the_furthest_case(tmp_path):
    lines = tables.floor_table(frame(tmp_path, SWEEP), "nvidia-test").splitlines()
    batch_1 = [cell.strip() for cell in lines[2].strip("|").split("|")]
    # Over cuDNN 3, 2, 0.5 and 0.25; with cuBLAS 0.5, 2, 0.5 and 0.25. All floors are 2.5 us: 4, 4, 8, 16 and 4 times.
    assert batch_1 == ["1", "0.93x", "2", "0.59x", "3", "6.06", "16.0 (7-32-832)"]


def test_choice_table_says_how_far_auto_is_from_the_best_of_our_own(tmp_path):
    rows = [
        row("auto", 11.0), row("two_stage", 10.0), row("tf32x3_gemm", 40.0),
        row("auto", 30.0, m=48), row("two_stage", 20.0, m=48), row("implicit_gemm", 1.0, provider="cudnn", m=48),
        row("auto", 10.0, batch=3), row("two_stage", 10.0, batch=3),
        row("auto", 10.0, batch=3, m=48), row("two_stage", status="error", batch=3, m=48),
    ]  # fmt: skip
    found = cells(tables.choice_table(frame(tmp_path, rows), GPU))
    assert found["1"] == ["1.30x", "1.28x", "1 of 2", "1.50x (7-1-1-48-832, two_stage is best)"]
    assert found["3"] == ["1.00x", "1.00x", "1 of 1", "1.00x (7-3-1-32-832, two_stage is best)"]
    assert found["all"][2] == "2 of 3"


def test_the_choice_in_tf32_is_among_what_computes_in_tf32(tmp_path):
    rows = [row("auto", 12.0, precision="tf32"), row("tf32x3_gemm", 10.0, precision="tf32"), row("two_stage", 1.0)]
    found = cells(tables.choice_table(frame(tmp_path, rows), GPU, "tf32"))
    assert found["1"] == ["1.20x", "1.20x", "0 of 1", "1.20x (7-1-1-32-832, tf32x3_gemm is best)"]


def test_without_rivals_the_report_has_the_choice_and_no_paper(tmp_path, capsys):
    write(tmp_path, [row("auto", 11.0), row("two_stage", 10.0)])
    assert tables.main(["--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "best of cuConv's own algorithms" in printed and "Beside the paper" not in printed


def test_without_auto_there_is_no_choice_table(tmp_path):
    assert tables.choice_table(frame(tmp_path, [row("two_stage", 10.0)]), GPU) == ""


def test_memory_bounds_few_channels_and_pointwise_layers_with_few_filters():
    bound = {case.problem.label for case in load_sweep("paper", batches=[16]).cases if is_memory_bound(case.problem)}
    assert {"224-16-3-64-3", "56-16-1-64-64", "55-16-1-16-96"} <= bound
    assert len(bound) == 26 and not any("-5-" in label for label in bound)


def test_copies_are_measured_of_as_many_bytes_as_every_memory_bound_case_of_the_paper_moves():
    cases = [case for case in load_sweep("paper").cases if case.batch >= LEAST_BATCH and is_memory_bound(case.problem)]
    moved = [case.problem.min_bytes for case in cases]
    assert bandwidth.SIZES[0] <= min(moved) and max(moved) <= bandwidth.SIZES[-1]


def test_memory_bound_layers_as_shares_of_a_copy_of_as_many_bytes(tmp_path):
    plane = {"h": 56, "w": 56, "c": 64}
    rows = [
        row("auto", 50.0, batch=16, m=64, **plane), row("auto", 125.0, batch=32, m=64, **plane),
        row("auto", 400.0, batch=16, m=256, **plane), row("auto", status="error", batch=32, m=256, **plane),
        row("auto", 9.0, batch=64, m=64, **plane), row("auto", 9.0, batch=64, m=256, **plane),  # m=256: beyond
        row("auto", 9.0, batch=8, m=64, **plane),  # a small batch
        row("auto", 9.0, batch=16, m=64, k=3, **plane), row("two_stage", 1.0, batch=16, m=64, **plane),
    ]  # fmt: skip
    copied = [(16, 64, 50.0), (32, 64, 100.0), (16, 256, 200.0), (64, 64, 6.0), (32, 256, 300.0)]
    times = {ConvProblem(batch, 64, 56, 56, m, 1, 1).min_bytes: us for batch, m, us in copied}
    path = bandwidth.write(tmp_path / GPU / bandwidth.FOLDER, copies(times))
    table = memory_bound_table(frame(tmp_path, rows), GPU, path)
    assert table.startswith("Time of a copy of as many bytes over time of cuConv auto: 80% or more on 2 of 5 cases.\n")
    found = cells(table)
    assert found["filter"] == ["HW-M-C", "16", "32", "64"]
    assert found["1x1 56-64-64"] == ["56-64-64", "100.0%", "80.0%", "66.7%"]
    assert found["1x1 56-256-64"] == ["56-256-64", "50.0%", "-", "-"]
    assert found["all"] == ["80% or more", "1 of 2", "1 of 2", "0 of 1"]
    assert len(found) == 5  # with header and rule: neither the small batch nor the 3x3 layer is there


def test_without_copies_a_sentence_says_what_to_run(tmp_path):
    narrow = frame(tmp_path, [row("auto", 10.0, batch=16)])
    assert memory_bound_table(narrow, GPU, tmp_path / "bandwidth.csv") == (
        "No copies were measured on nvidia-test: run 'python -m harness.bandwidth' there."
    )


def test_no_memory_bound_case_no_table(tmp_path):
    for rows in ([row("auto", 10.0, batch=8)], [row("gemm", 10.0, provider="cudnn", batch=16)]):
        assert memory_bound_table(frame(tmp_path / rows[0].algorithm, rows), GPU, tmp_path / "bandwidth.csv") == ""


def test_copies_that_are_something_else_end_the_command(tmp_path, capsys):
    write(tmp_path, [row("auto", 10.0, batch=16)])
    path = tmp_path / GPU / bandwidth.FOLDER / bandwidth.CSV
    path.parent.mkdir()
    path.write_text("bytes\n1\n")
    assert tables.main(["--results", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"{path} lacks the column 'way'") and captured.err.count("\n") == 1
