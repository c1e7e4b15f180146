"""The supervisor: whatever a contender does to the process that measures it costs rows of its own, and no others."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from harness import isolation
from harness.cases.catalogue import load_sweep
from harness.errors import GpuLost, UsageError
from harness.store.times import RUNS
from harness.sweep import supervisor, work
from harness.sweep.one_case import Options
from harness.sweep.records import ResultsFolder, read
from harness.sweep.work import Choice, OwnWork
from tests.harness.sweep import faulty

OPTIONS = Options(
    device=torch.device("cpu"), providers=("cpu",), algorithms=None, runs=2, seed=0, workspace_limit=2**30,
    environment="test", device_slug="cpu",
)  # fmt: skip


@pytest.fixture
def tiny():
    """Three cases of one small layer."""
    return load_sweep("smoke", layers=["5a_5x5red"], batches=[1, 2, 3])


@pytest.fixture
def measure(tmp_path):
    """Measures a sweep by contenders of a loader; returns the rows of the file that are there afterwards."""

    def run(sweep, load=supervisor.load_contenders, done=None, options=OPTIONS):
        with ResultsFolder(tmp_path) as folder:
            chosen = OwnWork(sweep, Choice(done or {}), folder)
            supervisor.run([case.problem for case in sweep.cases], chosen, options, load)
        return read(tmp_path / "measurements.csv")

    return run


def statuses(frame):
    """The statuses of each algorithm in the order of the batch sizes."""
    return {name: rows.sort_values("batch").status.to_list() for name, rows in frame.groupby("algorithm")}


def test_every_case_and_algorithm_has_a_row_and_the_file_keeps_the_contract(tiny, measure):
    frame = measure(tiny)
    assert len(frame) == 3 * 4
    assert set(frame["status"]) == {"ok"}
    assert set(frame["provider"]) == {"cpu"} and set(frame["precision"]) == {"fp32"}
    assert (frame["layers"] == "5a_5x5red").all() and (frame["networks"] == "googlenet").all()
    assert frame[["run_1_us", "run_2_us"]].notna().all(axis=None)
    assert frame[[f"run_{i}_us" for i in range(3, RUNS + 1)]].isna().all(axis=None)
    assert (abs(frame["mean_us"] * 2 / (frame["run_1_us"] + frame["run_2_us"]) - 1) < 1e-5).all()
    assert (frame["rel_l2_error"] < 1e-5).all()


def test_what_breaks_the_process_costs_its_own_row(tiny, measure):
    frame = measure(replace(tiny, cases=tiny.cases[:1]), faulty.with_every_fault)
    rows = frame.set_index("algorithm")
    assert rows.status.to_dict() == {
        "right": "ok", "also_right": "ok", "crash": "error", "out_of_memory": "error", "leave": "error",
        "lose_the_gpu": "error",
    }  # fmt: skip
    assert rows.detail["crash"] == "its process was ended by the signal SIGSEGV"
    assert "SIGKILL, which the system sends where memory runs out" in rows.detail["out_of_memory"]
    assert rows.detail["leave"] == "its process ended with exit code 3"
    assert rows.detail["lose_the_gpu"] == "cpu lose_the_gpu on 7-1-1-32-832 broke the CUDA context (an illegal address)"


def test_what_breaks_the_process_in_the_second_pass_costs_its_own_times(tiny, measure, capsys):
    options = replace(OPTIONS, other_times=True)
    frame = measure(replace(tiny, cases=tiny.cases[:1]), faulty.with_a_crash_in_the_second_pass, options=options)
    assert statuses(frame) == {"right": ["ok"], "also_right": ["ok"], "crash_between": ["ok"]}
    rows = frame.set_index("algorithm")
    for name in ("right", "also_right"):
        assert (rows.separated_us[name], rows.cold_us[name]) == (5.0, 7.0)
    assert rows.mean_us["crash_between"] > 0 and rows[["separated_us", "cold_us"]].isna().loc["crash_between"].all()
    said = "CPU crash_between on 7-1-1-32-832: its process was ended by the signal SIGSEGV; the sweep goes on"
    assert capsys.readouterr().out.count(said) == 1


def test_what_hangs_has_the_status_timeout(tiny, measure, monkeypatch):
    monkeypatch.setattr(isolation, "LIMIT_S", 3.0)
    frame = measure(replace(tiny, cases=tiny.cases[:1]), faulty.with_a_hang)
    assert statuses(frame) == {"right": ["ok"], "also_right": ["ok"], "hang": ["timeout"]}
    assert "no answer within 3 s" in frame.set_index("algorithm").detail["hang"]


def test_what_broke_twice_is_not_tried_again(tiny, measure, capsys):
    frame = measure(tiny, faulty.with_a_crash)
    assert statuses(frame) == {"right": ["ok"] * 3, "also_right": ["ok"] * 3, "crash": ["error"] * 3}
    crashes = frame[frame.algorithm == "crash"].sort_values("batch").detail.to_list()
    assert [detail.startswith("not tried: it ended 2 processes") for detail in crashes] == [False, False, True]
    assert "7-2-1-32-832" in crashes[2], "where the last process ended"
    assert capsys.readouterr().out.count("the sweep goes on in another process") == 2


def test_a_provider_that_breaks_before_it_offers(tiny, measure):
    frame = measure(tiny, faulty.with_a_crash_at_the_offers)
    assert statuses(frame) == {name: ["error"] * 3 for name in ("two_stage", "onednn", "native", "fft")}
    assert frame.detail.str.contains("SIGSEGV").all()


def test_rows_that_are_done_stay_done_when_the_process_ends(tiny, measure):
    case = tiny.cases[0]
    done = {case.key: frozenset({("cpu", "right")})}
    frame = measure(replace(tiny, cases=(case,)), faulty.with_a_crash, done)
    assert statuses(frame) == {"also_right": ["ok"], "crash": ["error"]}


def test_a_note_of_the_process_is_said(tiny, measure, capsys):
    measure(tiny, faulty.with_a_note)
    assert "cpu takes part" in capsys.readouterr().out


def test_an_error_of_the_user_ends_the_sweep_with_its_sentence(tiny, measure):
    with pytest.raises(UsageError, match="CUBLAS_WORKSPACE_CONFIG is set: unset it"):
        measure(tiny, faulty.refused)


def test_a_process_that_cannot_start(tiny, measure):
    with pytest.raises(GpuLost, match="ended with exit code 3"):
        measure(tiny, faulty.not_loading)


def test_a_gpu_that_no_process_can_use_any_more_keeps_the_rows(tiny, measure, tmp_path):
    with pytest.raises(GpuLost, match=r"after CPU crash on .* no process can begin to measure: .* exit code 3"):
        measure(tiny, faulty.CrashesOnce(tmp_path / "mark"))
    frame = read(tmp_path / "measurements.csv")
    assert statuses(frame)["crash"] == ["error"]


@pytest.mark.parametrize(
    "load", [supervisor.load_contenders, faulty.with_a_crash, faulty.with_a_crash_in_the_second_pass]
)
def test_the_progress_bar_moves_with_every_algorithm_and_ends_full(tiny, measure, monkeypatch, load):
    class Bar:
        """The bar that a sweep moves; `at` has where it stood when each case began and after each move."""

        def __init__(self, total):
            self.total, self.n, self.at = total, 0.0, []

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def set_description_str(self, text):
            self.at.append([self.n])

        def update(self, moved):
            self.n += moved
            self.at[-1].append(self.n)

    bars = []
    monkeypatch.setattr(work.progress, "weighed", lambda total: bars.append(Bar(total)) or bars[-1])
    second_pass = load == faulty.with_a_crash_in_the_second_pass
    measure(tiny, load, options=replace(OPTIONS, other_times=second_pass))
    (bar,) = bars
    assert bar.n == pytest.approx(bar.total)
    for case in bar.at:
        *steps, last = [after - before for before, after in pairwise(case)]
        assert steps == pytest.approx([steps[0]] * len(steps)) and steps[0] > 0, "an equal step for each algorithm"
        assert last == pytest.approx(0.0)
