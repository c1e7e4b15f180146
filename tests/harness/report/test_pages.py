"""The tables between the markers of pages: what is rewritten, what stays, and what is said about a wrong marker."""

import json
import re

import pytest

from harness.experiments.host.rows import HOST, HostTime
from harness.experiments.host.table import OURS, TORCH
from harness.experiments.networks.rows import NETWORKS
from harness.report import pages
from harness.store.times import TIMES
from tests.harness.experiments.networks.toy_networks import time as network_time
from tests.harness.report.helpers import cells
from tests.helpers import GPU, SWEEP, THREE_TIMES, row, write

END = "<!-- table:end -->"
ROWS = [row("auto", 10.0, environment="e1", detail="two_stage rows=8"), *SWEEP[1:]]


@pytest.fixture
def page(tmp_path):
    """A page in docs/ next to a results folder with SWEEP."""
    write(tmp_path / "results", ROWS)
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs" / "page.md"


def fill(page):
    return pages.main([str(page), "--results", str(page.parent.parent / "results")])


def filled(page, marker):
    """The text that a marker gets."""
    page.write_text(f"<!-- table:{marker} -->\n{END}\n")
    assert fill(page) == 0
    return page.read_text().removeprefix(f"<!-- table:{marker} -->\n").removesuffix(f"\n{END}\n")


def test_a_page_is_rewritten_between_its_markers(page, capsys):
    page.write_text(f"# Before\n<!-- table:paper -->\nold\n{END}\nmiddle\n<!-- table:standing -->\n{END}\nafter")
    assert fill(page) == 0
    assert capsys.readouterr().out == f"{page}: 2 tables\n"
    text = page.read_text()
    assert text.startswith("# Before\n<!-- table:paper -->\n|") and text.endswith(f"\n{END}\nafter")
    assert f"\n{END}\nmiddle\n<!-- table:standing -->\nSpeedup of" in text and "old" not in text
    assert fill(page) == 0
    assert page.read_text() == text


def test_a_page_that_shows_other_results_is_told_by_the_check(page, capsys):
    results = ["--results", str(page.parent.parent / "results")]
    page.write_text(f"<!-- table:paper -->\n{END}\n")
    assert pages.main([str(page), *results, "--check"]) == 2
    assert page.read_text() == f"<!-- table:paper -->\n{END}\n"
    assert str(page) in capsys.readouterr().err
    assert fill(page) == 0
    assert pages.main([str(page), *results, "--check"]) == 0


def networks(page, device, *times):
    """Write times of whole networks on a device."""
    NETWORKS.write(page.parent.parent / "results" / device / "networks", times)


def line_of(text, words):
    """The cells of the only line of a table that has the words."""
    (found,) = [line for line in text.splitlines() if line.startswith("|") and words in line]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_the_front_has_a_line_for_each_comparison_by_batch(page):
    half = {"provider": "torch", "precision": "fp16", "error": 3e-4}
    rows = [row("auto", 10.0, batch=batch) for batch in (1, 8, 32)]
    rows += [row("default", us, batch=batch, **half) for batch, us in ((1, 20.0), (8, 5.0), (32, 5.0))]
    write(page.parent.parent / "results", rows)
    text = filled(page, "front")
    assert line_of(text, "cuDNN in FP16")[4:] == ["2.00x", "0.50x", "0.50x", "0.79x", "1 of 3"]


def test_the_front_has_a_line_of_layers_with_an_epilogue(page):
    rows = [row("auto", 10.0, batch=8), row("benchmark", 40.0, provider="torch", batch=8)]
    write(page.parent.parent / "results", rows, sweep="bias_relu")
    assert line_of(filled(page, "front"), "ReLU")[4:] == ["-", "4.00x", "-", "4.00x", "1 of 1"]


def test_a_comparison_of_the_front_is_of_the_first_gpu_that_has_it(page):
    networks(page, "a-gpu", network_time(30.0, contender="torch"), network_time(10.0))
    networks(page, GPU, network_time(20.0, contender="torch"), network_time(10.0))
    networks(page, "z-gpu", network_time(5.0, contender="torch", precision="fp16"), network_time(20.0))
    text = filled(page, "front")
    assert line_of(text, "torch in FP32")[3::4] == ["a-gpu", "3.00x"]
    assert line_of(text, "torch in FP16")[3::4] == ["z-gpu", "0.25x"]
    assert line_of(text, "cuDNN in FP32")[3] == GPU


@pytest.mark.parametrize("later", ["a-gpu", "z-gpu"])
def test_a_comparison_of_the_front_is_of_the_latest_rows_of_several_gpus(page, later):
    for device, ours in (("a-gpu", 10.0), ("z-gpu", 20.0)):
        networks(page, device, network_time(60.0, contender="torch"), network_time(ours))
        date = "2026-02-02" if device == later else "2026-02-01"
        report = {"gpu": device, "commands": [{"command": "x", "date": date}]}
        stored = json.dumps({"environments": {"e1": report}})
        (page.parent.parent / "results" / device / "networks" / "environment.json").write_text(stored)
    found = line_of(filled(page, "front"), "torch in FP32")
    assert found[3::4] == {"a-gpu": ["a-gpu", "6.00x"], "z-gpu": ["z-gpu", "3.00x"]}[later]


def test_the_headline_is_a_table_and_where_it_was_measured(page):
    dates = ("2025-11-20T10:00:00", "2025-11-22T10:00:00")
    stored = {
        "e1": {"gpu": "NVIDIA Test", "cudnn": 92001, "torch": "2.13.0+cu130",
               "commands": [{"command": "x", "date": date} for date in dates]},
        "stale": {"gpu": "another", "commands": [{"command": "x", "date": "2001-01-01"}]},
    }  # fmt: skip
    path = page.parent.parent / f"results/{GPU}/paper/environment.json"
    path.write_text(json.dumps({"environments": stored}))
    text = filled(page, "headline")
    assert cells(text)["1"] == ["0.93x", "2 of 4", "0.50x", "0 of 4"]
    assert "NVIDIA Test, cuDNN 9.20.1, torch 2.13.0, 2025-11-20 to 2025-11-22" in text
    path.write_text("not json")
    assert f"Measured on {GPU}." in filled(page, "headline")


def test_the_headline_tells_what_its_times_are_where_there_are_three(page):
    assert "separated" not in filled(page, "headline")
    write(page.parent.parent / "results", THREE_TIMES)
    assert "separated" not in filled(page, "headline"), "two of eight cases are no sweep"
    (page.parent.parent / f"results/{GPU}/paper/measurements.csv").unlink()
    write(page.parent.parent / "results", THREE_TIMES)
    text = filled(page, "headline")
    assert "separated" in text
    assert cells(text)["1"][:3] == ["3.00x, 1/1", "2.00x, 1/1", "1.25x, 1/1"]


def test_the_headline_says_where_its_subjects_are_of_different_code(page):
    path = page.parent.parent / f"results/{GPU}/paper/environment.json"
    rows = [row("auto", 10.0, environment="e1"), row("two_stage", 20.0, environment="e2"),
            row("fp16x3", 9.0, environment="e3"), row("gemm", 30.0, provider="cudnn", environment="e4")]  # fmt: skip
    write(page.parent.parent / "results", rows)
    codes = {"e1": "a", "e2": "a", "e3": "b", "e4": "c"}
    path.write_text(
        json.dumps({"environments": {name: {"gpu": "NVIDIA Test", "code": of} for name, of in codes.items()}})
    )
    assert filled(page, "headline").endswith("Rows of auto are of other code, versions or machine than those of cuDNN.")
    path.write_text(path.read_text().replace('"a"', '"new"', 1))
    assert filled(page, "headline").endswith("than those of two_stage, cuDNN.")
    path.write_text(re.sub('"code": "[a-z]*"', '"code": "a"', path.read_text()))
    assert "other code" not in filled(page, "headline")


NUMBERS = {  # by marker: what its table has of ROWS, and what is to run where nothing was measured
    "standing": ["| 1.44x, 2/3 | 0.25x, 0/1 | - ", "| 7-1-3-32-832"],
    "paper": ["| 1.83x |"],
    "algorithm two_stage": ["1 of 7 cases"],
    "choice": ["| FP32, mean |"],
    "accuracy": ["| cuDNN implicit_gemm | 1.0 | 1.0 | - |", "cuDNN engine (all)"],
    "memory_bound": ["python -m harness copies"],
    "counters two_stage": ["python -m harness kernels --counters"],
    "latency_sizes": ["python -m harness latency"],
    "latency_starts": ["python -m harness latency"],
    "sweep strided": ["The sweep strided was not measured on"],
    "sweep_in_half strided": ["The sweep strided was not measured in FP16 on"],
    "random": ["The sweep random was not measured on"],
    "algorithm depthwise grouped": ["The sweep grouped was not measured on"],
}


def test_every_table_is_filled_and_has_its_numbers(page):
    for name in pages.TABLES:
        first = [next(iter(choice)) for choice in pages.ARGUMENTS.get(name, ())[:1]]
        text = filled(page, " ".join((name, *first)))
        assert text.strip(), name
    for marker, numbers in NUMBERS.items():
        text = re.sub(" +", " ", filled(page, marker))
        assert [number for number in numbers if number not in text] == [], marker


def test_an_experiment_says_where_and_when_it_was_measured(page):
    assert "Measured on" not in filled(page, "host"), "it was not"
    folder = page.parent.parent / f"results/{GPU}/host"
    HOST.write(folder, [HostTime("7-1-1-32-832", *of, "new", 2000, 10.0) for of in (OURS[:2], TORCH[:2])])
    commands = [{"command": "python -m harness host", "date": "2026-11-25T06:45:15+00:00"}]
    report = {"gpu": "NVIDIA Test", "cudnn": 91900, "commands": commands}
    (folder / "environment.json").write_text(json.dumps({"environments": {"e1": report}}))
    assert filled(page, "host").endswith("\n\nMeasured on NVIDIA Test, cuDNN 9.19.0, 2026-11-25.")


def test_other_sweeps_of_the_same_device(page):
    results = page.parent.parent / "results"
    rows = [row("auto", 4.0, stride=2), row("gemm", 10.0, provider="cudnn", stride=2)]
    write(results, rows, GPU, "strided")
    text = filled(page, "sweep strided")
    assert "2.50x, on 7-1-1-32-832-s2: 4.00 us, compared with 10.00 us by cuDNN gemm." in text
    assert "2.50x, 1/1" in text and "cuBLAS" not in text
    write(results, [*rows, row("bmm", 6.0, provider="cublas", stride=2)], GPU, "strided")
    assert re.search("cuBLAS.* 1 of 1, .*1.50x", filled(page, "sweep strided"))
    layer = {"c": 32, "groups": 32}
    rows = [row("auto", 4.0, detail="depthwise strip", **layer), row("depthwise", 4.0, **layer)]
    write(results, rows, GPU, "grouped")
    assert "1 of 1 cases" in filled(page, "algorithm depthwise grouped")


def test_random_layers_have_their_table_as_soon_as_they_have_rows(page):
    layer = {"h": 9, "w": 30, "k": 5}
    rows = [row("auto", 4.0, detail="fp16x3 tile=1", **layer), row("fp16x3", 2.0, **layer),
            row("gemm", 10.0, provider="cudnn", **layer)]  # fmt: skip
    write(page.parent.parent / "results", rows, GPU, "random")
    text = filled(page, "random")
    assert cells(text)["least speedup"] == ["2.50x (9x30-1-5-32-832)"]
    assert cells(text)["largest regret"] == ["2.00x (9x30-1-5-32-832)"]
    assert f"plots/{GPU}/random/planes.png" in text


def test_the_pages_are_about_the_device_of_most_sweeps_and_one_table_has_all(page):
    results = page.parent.parent / "results"
    of_test = filled(page, "paper")
    write(results, [row("auto", 5.0), row("gemm", 10.0, provider="cudnn")], device="nvidia-other")
    write(results, [row("two_stage", 2.0, provider="cpu")], device="cpu")
    assert filled(page, "paper") == of_test, "it has more rows"
    lines = cells(filled(page, "devices"))
    assert lines["sweep"] == [f"{gpu}, {time}" for gpu in ("nvidia-other", GPU) for time in TIMES]
    assert lines["paper"] == ["2.00x, 1/1", "-", "-", "1.20x, 3/7", "-", "-"]
    strided = [row("auto", 5.0, stride=2), row("gemm", 15.0, provider="cudnn", stride=2)]
    write(results, strided, device="nvidia-other", sweep="strided")
    networks(page, "nvidia-other", network_time(30.0, contender="torch"), network_time(10.0))
    assert filled(page, "paper") != of_test
    text = filled(page, "devices")
    lines = cells(text)
    assert lines["strided"].count("3.00x, 1/1") == 1 and lines["networks"].count("3.00x, 1/1") == 1
    assert "\n\nnvidia-other: paper, strided, networks.\n\n" in text


MARKERS = ["nothing", "algorithm", "algorithm fp15", "algorithm fp16x3 paper", "sweep strided grouped", "counters"]


@pytest.mark.parametrize("text", [
    *(f"<!-- table:{marker} -->\n{END}\n" for marker in (*MARKERS, "paper 3x3")),
    "<!-- table:paper -->\n",
    f"<!-- table:paper -->\n<!-- table:tf32 -->\n{END}\n",
])  # fmt: skip
def test_a_wrong_marker_is_told_and_the_page_stays_as_it_is(page, capsys, text):
    page.write_text(text)
    assert fill(page) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and page.read_text() == text
    assert f"{page}: {text.splitlines()[0]}" in captured.err


def test_a_page_that_does_not_exist_or_a_cpu_s_results_are_told(page, tmp_path, capsys):
    assert fill(page) == 2
    assert str(page) in capsys.readouterr().err
    write(tmp_path / "cpu" / "results", [row("two_stage", 2.0, provider="cpu")], device="cpu")
    assert fill(tmp_path / "cpu" / "docs" / "page.md") == 2
    assert "CPU" in capsys.readouterr().err


def test_a_page_without_markers_stays_as_it_is(page, capsys):
    text = f"no markers, but `<!-- table:paper -->`, explained in a line\n\n    <!-- table:paper -->\n    {END}\n"
    page.write_text(text)
    assert fill(page) == 0
    assert page.read_text() == text and capsys.readouterr().out == ""
