"""Nsight Compute's counters: the cases, and the rows from its CSV, of which a sample is made up."""

import csv
import io

import pandas as pd
import pytest

from cuconv.algorithms import ALGORITHMS
from cuconv.device import H200
from cuconv.select import plan
from harness.cases.catalogue import problem_labelled
from harness.experiments.kernels import counters
from harness.experiments.kernels.counters import METRICS, furthest, render, rows_of
from tests.helpers import commands

LABELS = ["7-1-1-32-832", "28-64-3-512-512"]


def launched(label: str) -> list[str]:
    """The kernels of auto, in order."""
    problem = problem_labelled(label)
    chosen = plan(problem, H200)
    return [one.kernel for one in ALGORITHMS[chosen.algorithm].launches(problem, chosen.config)]


def log(kernels: list[str]) -> str:
    """The output of ncu: remarks, a header, a line of units, a line for each kernel."""
    metrics = [metric for several in METRICS.values() for metric in several]
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL)
    writer.writerow(["ID", "Kernel Name", *metrics])
    writer.writerow(["", "", *("%" for _ in metrics)])
    for number, kernel in enumerate(kernels):
        writer.writerow([number, kernel, "1,234,500", *(f"{10 + i}.5" for i in range(len(metrics) - 1))])
    return "==PROF== Connected to process 1\n" + text.getvalue()


def test_each_kernel_of_each_case_is_a_row():
    kernels = [name for label in LABELS for name in launched(label)]
    rows = rows_of(log(kernels), LABELS, H200)
    assert [row["kernel"] for row in rows] == kernels and len(kernels) > len(LABELS)
    assert [row["case"] for row in rows] == [label for label in LABELS for _ in launched(label)]
    assert tuple(rows[0]) == counters.COLUMNS
    assert rows[0]["us"] == "1234.50"
    assert rows[0]["tensor_cores"] == "34.50", "the sum of those of each instruction"
    assert "| 28-64-3-512-512 |" in render(rows)


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM: no permission", log(["another_kernel"]), log([])])
def test_what_is_no_count_of_these_kernels_is_refused(text):
    with pytest.raises(ValueError, match=r"nothing|no permission|counted another_kernel|counted None"):
        rows_of(text, LABELS, H200)


def test_the_cases_furthest_from_their_floor(tmp_path, monkeypatch):
    sweep = pd.read_csv(counters.environment.ROOT / "results" / "nvidia-h200" / "paper" / "measurements.csv", dtype=str)
    sweep = sweep[(sweep.provider == "cuconv") & (sweep.batch == "8") & (sweep.precision == "fp32")]
    slow = (sweep.algorithm == "auto") & (sweep.h == "14") & (sweep.k == "5") & (sweep.m == "64")
    sweep.loc[slow, "mean_us"] = "5000"
    folder = tmp_path / "results" / "made-up" / "paper"
    folder.mkdir(parents=True)
    sweep.to_csv(folder / "measurements.csv", index=False)
    monkeypatch.setattr(counters.environment, "ROOT", tmp_path)
    found = furthest("made-up", [8], 2)
    assert len(found) == 2 and found[0].startswith("14-8-5-64-")


def test_a_number_of_cases_below_one_is_refused(capsys):
    assert counters.main(["--cases", "0"]) == 2
    assert capsys.readouterr().err == "harness.experiments counters: --cases 0: must be 1 or more\n"


def test_a_batch_size_that_was_not_measured_is_named(monkeypatch, capsys):
    monkeypatch.setattr(counters.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(counters.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(counters.environment, "device_slug", lambda: "nvidia-h200")
    assert counters.main(["--batch", "3"]) == 2
    assert "--batch 3: the sweep has no time of auto there" in capsys.readouterr().err


def test_counters_are_written_with_what_they_depend_on(made_up_gpu, monkeypatch):
    rows = rows_of(log(launched(LABELS[0])), LABELS[:1], H200)
    monkeypatch.setattr(counters.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(counters, "furthest", lambda device, batches, cases: LABELS[:1])
    monkeypatch.setattr(counters, "count", lambda labels: rows)
    assert counters.main(["--batch", "1"]) == 0
    assert {path.name for path in (made_up_gpu / "profile").iterdir()} == {"counters.csv", "environment.json"}
    assert commands(made_up_gpu / "profile") == ["python -m harness.experiments counters --batch 1"]


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(counters.torch.cuda, "is_available", lambda: False)
    assert counters.main([]) == 2
    assert "need an NVIDIA GPU" in capsys.readouterr().err


def test_without_the_profiler_it_says_where_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(counters.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(counters.shutil, "which", lambda name: None)
    assert counters.main([]) == 2
    assert "it comes with the CUDA toolkit" in capsys.readouterr().err
