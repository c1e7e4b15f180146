"""The tables of kernel times: names, grouping, rendering and CSV, from made-up launches."""

import csv

import pytest
import torch

from harness.cases.catalogue import problem_labelled
from harness.experiments.kernels import measure as profile
from harness.experiments.kernels.measure import KernelTime, mean_times, render, short_name, write_csv
from tests.helpers import commands


def time(algorithm: str, kernel: str, us: float, configuration: str = "A", provider: str = "cudnn") -> KernelTime:
    return KernelTime(4, configuration, provider, algorithm, kernel, 20, us)


def test_labels_are_those_of_the_paper():
    for columns in profile.TABLES.values():
        for label in columns.values():
            assert problem_labelled(label).label == label
            assert problem_labelled(label).out_h == problem_labelled(label).h


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("scalar_products", "scalar_products"),
        ("void ns::kernel<float, 4>(float const*, int)", "ns::kernel<float, 4>"),
        ("void (anonymous namespace)::kernel(float*)", "kernel"),
        ("void kernel<(int)4, (bool)0>(float*)", "kernel<(int)4, (bool)0>"),
        ("void kernel<f(int)>(float*)", "kernel<f(int)>"),
        ("Memset (Device)", "Memset"),
        (
            "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, true, false, true>(int, int)",
            "implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, ...>",
        ),
        ("void n::f<" + "a" * 70 + ", 1>(int)", "n::f<" + "a" * 70 + ", ...>"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize32x32x8", None),
    ],
)
def test_short_names(kernel, short):
    assert short_name(kernel) == (kernel if short is None else short)


def test_launches_are_summed_per_kernel_and_averaged_over_calls():
    launches = [("void offsets(int)", 2.0), ("void gemm<float>(int)", 30.0), ("Memset (Device)", 1.0)] * 2
    launches.append(("void gemm<float>(int)", 10.0))
    assert mean_times(launches, 2) == {"offsets": 2.0, "gemm<float>": 35.0, "Memset": 1.0}
    assert list(mean_times(launches, 2)) == ["offsets", "gemm<float>", "Memset"]


def test_table_has_kernels_totals_and_the_fastest_in_bold():
    rows = [
        time("winograd_nonfused", "transform", 8.0),
        time("winograd_nonfused", "sgemm", 60.0),
        time("winograd_nonfused", "transform", 20.0, "B"),
        time("winograd_nonfused", "sgemm_large", 240.5, "B"),
        time("two_stage", "scalar_products", 50.25, provider="cuconv"),
        time("two_stage", "sum", 5.0, provider="cuconv"),
        time("two_stage", "scalar_products", 461.0, "B", provider="cuconv"),
    ]
    assert render(4, rows) == "\n".join([
        "Table 4: kernel time (us) with 3x3 filters",
        "",
        "| Algorithm               | GPU kernel        |         A |          B |",
        "| ----------------------- | ----------------- | --------: | ---------: |",
        "| cuDNN winograd_nonfused | `transform`       |      8.00 |      20.00 |",
        "|                         | `sgemm`           |     60.00 |            |",
        "|                         | `sgemm_large`     |           |     240.50 |",
        "|                         | *Total*           |     68.00 | **260.50** |",
        "| cuConv two_stage        | `scalar_products` |     50.25 |     461.00 |",
        "|                         | `sum`             |      5.00 |            |",
        "|                         | *Total*           | **55.25** |     461.00 |",
        "",
        "A: 7-1-3-384-192, B: 13-1-3-384-384",
    ])  # fmt: skip


def test_an_algorithm_that_ran_on_one_configuration_only():
    table = render(4, [time("fft", "fft", 3.0, "B"), time("gemm", "sgemm", 4.0, "A")])
    totals = [[cell.strip() for cell in line.split("|")[3:5]] for line in table.splitlines() if "*Total*" in line]
    assert totals == [["", "**3.00**"], ["**4.00**", ""]]


def test_csv_keeps_full_precision(tmp_path):
    path = tmp_path / "device" / "profile" / "table_4.csv"
    write_csv(path, [time("two_stage", "a, b", 10 / 3, provider="cuconv")])
    with open(path, newline="") as file:
        (row,) = csv.DictReader(file)
    assert row == {
        "table": "4",
        "configuration": "A",
        "provider": "cuconv",
        "algorithm": "two_stage",
        "kernel": "a, b",
        "calls": "20",
        "mean_us": "3.33333333",
    }


def test_tables_are_written_with_what_they_depend_on(made_up_gpu, monkeypatch):
    monkeypatch.setattr(profile, "load", lambda provider: None)
    monkeypatch.setattr(profile, "measure", lambda table, takers: [time("gemm", "sgemm", 4.0)])
    assert profile.main(["--table", "4", "5"]) == 0
    folder = made_up_gpu / "profile"
    assert {path.name for path in folder.iterdir()} == {"table_4.csv", "table_5.csv", "environment.json"}
    assert commands(folder) == ["python -m harness.experiments kernels --table 4 5"]


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert profile.main(["--table", "3", "5"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "GPU" in captured.err and len(captured.err.splitlines()) == 1


def test_unknown_tables_are_refused(capsys):
    with pytest.raises(SystemExit) as end:
        profile.main(["--table", "6"])
    assert end.value.code == 2 and "6" in capsys.readouterr().err
