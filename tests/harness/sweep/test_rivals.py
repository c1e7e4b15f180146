"""A quick side by side measures ours and, of each case, the rivals that the results know as its fastest."""

import pytest

from harness import run
from harness.errors import ResultsError
from harness.sweep.records import read
from harness.sweep.rivals import fastest_rivals, qualifying, takes_part
from tests.helpers import row, write

GPU = "nvidia-test"
CASE = (1, 7, 7, 832, 32, 1, 0, 1, 1, 1, 1, 0)
ROWS = [
    row("auto", 9.0),
    row("implicit_gemm", 30.0, provider="cudnn"),
    row("gemm", 12.0, provider="cudnn"),
    row("bmm", 8.0, provider="cublas"),
    row("eng3", 11.0, provider="cudnn_engine"),
    row("winograd", 1.0, provider="cudnn", precision="tf32"),
    row("fft", status="incorrect", provider="cudnn"),
    row("default", 50.0, provider="torch", m=48),
]


def test_the_three_fastest_fp32_rivals_of_each_case(tmp_path):
    entrants = fastest_rivals(write(tmp_path, ROWS, GPU), GPU)
    assert entrants[CASE] == {("cublas", "bmm"), ("cudnn_engine", "eng3"), ("cudnn", "gemm")}
    assert entrants[1, 7, 7, 832, 48, 1, 0, 1, 1, 1, 1, 0] == {("torch", "default")}
    assert takes_part(entrants[CASE], "cuconv", "two_stage", GPU)
    assert takes_part(entrants[CASE], "cudnn", "gemm", GPU)
    assert not takes_part(entrants[CASE], "cudnn", "implicit_gemm", GPU)
    assert not takes_part(frozenset(), "cudnn", "gemm", GPU)
    assert takes_part(entrants[CASE], "cutlass", "fast_fp32", GPU), "a command names it, or it is not there"


def test_rivals_of_a_precision_are_chosen_by_its_rows(tmp_path):
    entrants = fastest_rivals(write(tmp_path, ROWS, GPU), GPU, "tf32")
    assert entrants == {CASE: {("cudnn", "winograd")}}


def test_there_must_be_results_to_choose_from(tmp_path):
    with pytest.raises(ResultsError, match="does not exist: measure first"):
        fastest_rivals(tmp_path / "measurements.csv", GPU)


def test_the_command_measures_only_them_in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    slow = [row(name, us, provider="cpu", c=832, m=32) for name, us in
            (("two_stage", 1.0), ("onednn", 2.0), ("native", 3.0))]  # fmt: skip
    write(tmp_path / "results", slow, "cpu", "smoke")
    arguments = ["--device", "cpu", "--config", "smoke", "--layer", "5a_5x5red", "--batch", "1", "--runs", "1"]
    assert run.main([*arguments, "--against", "best"]) == 0
    frame = read(tmp_path / "results/cpu/smoke-against-best/measurements.csv")
    assert set(frame.algorithm) == {"two_stage", "onednn", "native"}, "fft was never measured before"
    assert len(read(tmp_path / "results/cpu/smoke/measurements.csv")) == 3


def test_ours_what_is_shown_beside_and_the_five_fastest_rivals_qualify_for_more_times():
    rivals = [row(f"eng{us}", us, provider="cudnn_engine") for us in (7.0, 5.0, 6.0, 9.0)]
    rivals += [row("gemm", 8.0, provider="cudnn"), row("default", 4.0, provider="torch")]
    ours = [
        row("auto", 50.0),
        row("auto_nhwc", 55.0),
        row("two_stage", 60.0),
        row("auto", 40.0, provider="cuconv_prepared"),
    ]
    others = [row("fp16x3", 1.0), row("fft", status="error", provider="cudnn")]
    bmm = row("bmm", 70.0, provider="cublas")
    found = qualifying([*rivals, *ours, *others, bmm], GPU)
    assert {found.algorithm for found in found if found.provider.startswith("cudnn")} == {
        "eng5.0",
        "eng6.0",
        "eng7.0",
        "gemm",
    }
    assert len(found) == 10 and row("default", 4.0, provider="torch") in found
    assert all(one in found for one in (*ours, bmm)) and not any(one in found for one in others)


def test_nobody_qualifies_without_a_time():
    assert qualifying([row("auto", status="error")], GPU) == []
