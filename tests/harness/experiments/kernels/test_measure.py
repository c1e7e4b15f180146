"""Rows of kernels: from made-up launches, and from a made-up log of Nsight Compute."""

import csv
import io
from types import SimpleNamespace

import pytest
import torch

from cuconv.algorithms import ALGORITHMS
from cuconv.device import H200
from cuconv.select import plan
from harness.cases.catalogue import problem_labelled
from harness.contenders.base import NotRunnable
from harness.errors import ResultsError, UsageError
from harness.experiments.kernels import measure
from harness.experiments.kernels.measure import METRICS, counters_in, furthest, mean_times, short_name
from harness.experiments.kernels.rows import KernelCounters
from harness.experiments.kernels.table import TABLES
from harness.isolation import Begins
from tests.helpers import GPU, commands, row, write

LABELS = ["7-1-1-32-832", "28-64-3-512-512"]


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("scalar_products", "scalar_products"),
        ("void ns::kernel<float, 4>(float const*, int)", "ns::kernel<float, 4>"),
        ("void (anonymous namespace)::kernel(float*)", "kernel"),
        ("void kernel<(int)4, (bool)0>(Array<float>)", "kernel<(int)4, (bool)0>"),
        ("Memset (Device)", "Memset"),
        (f"void n::f<{'a' * 48}>(int)", f"n::f<{'a' * 48}>"),
        (f"void n::f<{'a' * 49}>(int)", f"n::f<{'a' * 48}...>"),
    ],
)
def test_short_names(kernel, short):
    assert short_name(kernel) == short


def test_launches_are_summed_per_kernel_and_averaged_over_calls():
    launches = [("void offsets(int)", 2.0), ("void gemm<float>(int)", 30.0), ("Memset (Device)", 1.0)] * 2
    launches.append(("void gemm<float>(int)", 10.0))
    assert list(mean_times(launches, 2).items()) == [("offsets", 2.0), ("gemm<float>", 35.0), ("Memset", 1.0)]


def offer(algorithm):
    """An algorithm whose call launches a kernel of its name; fft cannot run."""

    def prepare():
        if algorithm == "fft":
            raise NotRunnable("unsupported", "told why")
        return SimpleNamespace(call=lambda: algorithm, workspace_bytes=0)

    return SimpleNamespace(algorithm=algorithm, prepare=prepare)


def library(*algorithms):
    return SimpleNamespace(offers=lambda problem, operands: [offer(name) for name in algorithms])


LIBRARIES = {"cudnn": library("gemm", "fft", "unlisted"), "cuconv": library("auto", "two_stage")}


@pytest.fixture
def libraries(made_up_gpu, monkeypatch):
    """Libraries in place of cuDNN and cuConv; returns the folder of results."""
    monkeypatch.setattr(measure, "load", LIBRARIES.get)
    monkeypatch.setattr(measure.Operands, "random", lambda problem, generator: None)
    monkeypatch.setattr(torch, "Generator", lambda device: torch.default_generator)
    monkeypatch.setattr(measure.profiler, "kernels", lambda call, calls: [(call(), 4.0)] * calls)
    return made_up_gpu / "profile"


def test_kernel_times_are_of_the_paper_s_algorithms_in_its_order_and_leave_out_what_cannot_run(libraries):
    case = measure.Configuration(4, "B")
    events = list(measure.kernel_times(case, LIBRARIES, broken={Begins("cuconv", "two_stage")}))
    rows = [event for event in events if not isinstance(event, Begins)]
    assert [row.kernel for row in rows] == ["gemm", "auto"]
    assert {(row.table, row.configuration, row.mean_us) for row in rows} == {(4, "B", 4.0)}


def test_tables_are_printed_and_written_with_what_they_depend_on(libraries, monkeypatch, capsys):
    assert measure.main([]) == 0
    assert {path.name for path in libraries.glob("[a-z]*")} == {
        "environment.json",
        *(f"table_{n}.csv" for n in (3, 4, 5)),
    }
    assert commands(libraries) == ["python -m harness kernels"]
    assert "table 5: device time" in capsys.readouterr().out
    monkeypatch.setattr(measure.profiler, "kernels", lambda call, calls: [])
    assert measure.main([]) == 2
    assert "check that this user may profile the GPU" in capsys.readouterr().err


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


def test_each_kernel_of_each_case_is_a_row_of_counters():
    kernels = [name for label in LABELS for name in launched(label)]
    rows = counters_in(log(kernels), LABELS, H200)
    assert [row.kernel for row in rows] == kernels and len(kernels) > len(LABELS)
    assert [row.case for row in rows] == [label for label in LABELS for _ in launched(label)]
    assert {row.us for row in rows} == {1234.5} and isinstance(rows[0], KernelCounters)
    assert {row.tensor_cores for row in rows} == {34.5}, "the sum of 10.5, 11.5 and 12.5, those of each instruction"


@pytest.mark.parametrize(("text", "told"), [
    ("", "no output"), ("==ERROR== ERR_NVGPUCTRPERM: no permission\n", "no permission"),
    (log(["another_kernel"]), "it counted another_kernel"),
])  # fmt: skip
def test_a_log_of_other_kernels_or_none_is_refused(text, told):
    with pytest.raises(UsageError, match=told):
        counters_in(text, LABELS, H200)


def test_the_cases_furthest_above_the_yardstick(tmp_path, monkeypatch):
    small = [row("auto", us, m=m) for m, us in ((16, 20.0), (32, 90.0), (48, 30.0), (64, 10.0))]  # yardstick: 2.5 us
    large = row("auto", 100.0, batch=256, h=56, w=56, m=256)  # below it, but alone at its batch
    write(tmp_path / "results", [*small, large, row("auto", 500.0, batch=2), row("fp16x3", 999.0, m=64)])
    monkeypatch.setattr(measure.environment, "ROOT", tmp_path)
    assert furthest(GPU) == ["7-1-1-32-832", "7-1-1-48-832", "7-1-1-16-832", "56-256-1-256-832"]
    write(tmp_path / "results", [row("auto", 10.0, batch=2)], "another")
    with pytest.raises(ResultsError, match=r"no time of auto at batch \(1, 8, 64, 256\)"):
        furthest("another")


def test_counters_are_written_with_what_they_depend_on(libraries, monkeypatch, capsys):
    rows = counters_in(log(launched(LABELS[0])), LABELS[:1], H200)
    monkeypatch.setattr(measure.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(measure, "furthest", lambda device: LABELS[:1])
    monkeypatch.setattr(measure, "counters", lambda labels: rows)
    assert measure.main(["--counters"]) == 0
    assert {path.name for path in libraries.glob("[a-z]*")} == {"counters.csv", "environment.json"}
    assert commands(libraries) == ["python -m harness kernels --counters"]
    monkeypatch.setattr(measure.shutil, "which", lambda name: None)
    assert measure.main(["--counters"]) == 2
    assert "it comes with the CUDA toolkit" in capsys.readouterr().err


def test_a_dry_run_names_the_layer_of_each_configuration(capsys):
    assert measure.main(["--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [label for names in TABLES.values() for label in names.values()] == [line.split()[-1] for line in lines[1:]]


@pytest.mark.parametrize("arguments", [[], ["--counters"]])
def test_without_a_gpu_it_says_so(monkeypatch, capsys, arguments):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert measure.main(arguments) == 2
    assert "NVIDIA GPU" in capsys.readouterr().err
