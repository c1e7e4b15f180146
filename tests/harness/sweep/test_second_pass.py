"""The second pass of a case: who is measured separated and cold, what a row gets of it, and low clocks again."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from harness.cases.catalogue import load_sweep
from harness.contenders.base import Offer, Prepared
from harness.isolation import Begins, Note
from harness.stopwatch import between, timing
from harness.stopwatch.clocks import CaseClocks, Reading
from harness.stopwatch.timing import Timing
from harness.sweep import one_case as sweep
from harness.sweep import second_pass
from harness.sweep.one_case import Task
from harness.sweep.records import Measurement, ResultsFolder, read
from tests.helpers import GPU, row

CPU = torch.device("cpu")
OPTIONS = sweep.Options(
    device=CPU, providers=("cuconv",), algorithms=None, runs=2, seed=0, workspace_limit=2**30, environment="test",
    device_slug=GPU, other_times=True,
)  # fmt: skip
# The hot microseconds of each algorithm; the rivals that are among the five fastest are marked.
HOT_US = {
    ("cuconv", "auto"): 10.0,
    ("cuconv", "two_stage"): 99.0,
    ("cuconv", "fp16x3"): 9.0,
    ("cuconv_prepared", "auto"): 8.0,
    ("cublas", "bmm"): 98.0,
    ("cudnn", "gemm"): 21.0,  # five
    ("cudnn", "fft"): 26.0,
    ("cudnn_engine", "eng1"): 22.0,  # five
    ("cudnn_engine", "eng2"): 23.0,  # five
    ("cudnn_engine", "eng3"): 27.0,
    ("torch", "default"): 24.0,  # five
    ("torch", "benchmark"): 25.0,  # five
}
QUALIFY = {
    *{("cuconv", "auto"), ("cuconv", "two_stage"), ("cuconv_prepared", "auto"), ("cublas", "bmm")},
    *{("cudnn", "gemm"), ("cudnn_engine", "eng1"), ("cudnn_engine", "eng2")},
    *{("torch", "default"), ("torch", "benchmark")},
}


@pytest.fixture
def case():
    return load_sweep("smoke", layers=["5a_5x5red"], batches=[1]).cases[0]


class MadeUp:
    """Contenders of every provider in one, whose calls know their name; `wrong` ones are wrong when called again."""

    def __init__(self, wrong=(), over=()):
        self.wrong, self.over = wrong, over
        self.prepared = []

    def offers(self, problem, operands):
        right = torch.nn.functional.conv2d(operands.input, operands.weight, padding=problem.pad_h)

        def prepare(name):
            def call():
                return right * 2 if name in self.wrong and self.prepared.count(name) > 1 else right.clone()

            self.prepared.append(name)
            call.who = name
            return Prepared(call, 2**30 + 1 if name in self.over else 0)

        return [Offer(*name, lambda name=name: prepare(name)) for name in HOT_US]


@pytest.fixture
def gpu(monkeypatch):
    """Let calls take HOT_US, 1 us more separated and 5 us more cold; returns the counts of calls between."""
    counts = []

    def hot(call, runs, device, steadily):
        return Timing((HOT_US[call.who],) * runs, 100, "graph", call(), call)

    def other(call, work, count, runs, steadily):
        counts.append((work, count))
        more = {"separated": 1.0, "cold": 5.0}[work]
        return Timing((HOT_US[call.who] + more,) * runs, count, "graph", call(), call)

    monkeypatch.setattr(timing, "measure", hot)
    monkeypatch.setattr(between, "measure", other)
    monkeypatch.setattr(between, "work", lambda time, device: time)
    return counts


def events_of(case, contender, options=OPTIONS):
    return list(sweep.measure_case(Task(case), {"cuconv": contender}, options))


def measured(case, contender, options=OPTIONS):
    """The rows of a case in the order in which they are measured."""
    return [event for event in events_of(case, contender, options) if isinstance(event, Measurement)]


def name_of(row):
    return row.provider, row.algorithm


def test_ours_and_the_five_fastest_rivals_get_both_times_when_all_hot_times_are_known(case, gpu):
    rows = measured(case, MadeUp())
    first, second = rows[: len(HOT_US)], rows[len(HOT_US) :]
    assert {name_of(row) for row in first} == set(HOT_US)
    assert all(row.separated_runs_us == row.cold_runs_us == () for row in first)
    assert {name_of(row) for row in second} == QUALIFY and len(second) == len(QUALIFY)
    for one in second:
        us = HOT_US[name_of(one)]
        assert (one.runs_us, one.separated_runs_us, one.cold_runs_us) == ((us,) * 2, (us + 1,) * 2, (us + 5,) * 2)
    assert set(gpu) == {("separated", 100), ("cold", 32)}, "as many calls as hot, and at most 32 with a flush each"


def test_a_rival_over_the_limit_takes_no_place_among_the_five(case, gpu):
    rows = measured(case, MadeUp(over=[("cudnn", "gemm"), ("cublas", "bmm")]))
    first, second = rows[: len(HOT_US)], rows[len(HOT_US) :]
    over = {name_of(row): row for row in first if row.status == "workspace_exceeded"}
    assert {name: row.mean_us for name, row in over.items()} == {("cudnn", "gemm"): 21.0, ("cublas", "bmm"): 98.0}
    assert {name_of(row) for row in second} == QUALIFY - set(over) | {("cudnn", "fft")}


def test_the_file_has_the_completed_rows_alone(case, gpu, tmp_path):
    with ResultsFolder(tmp_path) as folder:
        for found in measured(case, MadeUp()):
            folder.append(found)
    frame = read(tmp_path / "measurements.csv").set_index(["provider", "algorithm"])
    assert len(frame) == len(HOT_US)
    assert set(frame.index[frame.cold_us.notna()]) == set(frame.index[frame.separated_us.notna()]) == QUALIFY
    auto = frame.loc["cuconv", "auto"]
    assert (auto.mean_us, auto.separated_us, auto.cold_us, auto.cold_run_2_us) == (10.0, 11.0, 15.0, 15.0)


def test_without_the_option_there_is_no_second_pass(case, gpu):
    contender = MadeUp()
    assert len(measured(case, contender, replace(OPTIONS, other_times=False))) == len(HOT_US)
    assert len(contender.prepared) == len(HOT_US)


def test_an_output_that_is_wrong_in_the_second_pass_makes_the_row_incorrect(case, gpu):
    rows = {name_of(row): row for row in measured(case, MadeUp(wrong=[("cudnn", "gemm")]))}
    gemm = rows["cudnn", "gemm"]
    assert gemm.status == "incorrect" and gemm.runs_us == gemm.separated_runs_us == gemm.cold_runs_us == ()
    assert gemm.detail == "in its separated calls: relative L2 error 1"
    assert rows["cuconv", "auto"].status == "ok"


def test_each_row_is_announced_before_it_is_measured(case, gpu):
    events = events_of(case, MadeUp())
    for before, event in pairwise(events):
        if isinstance(event, Measurement):
            assert before == Begins(*name_of(event))


def test_an_error_costs_the_times_that_it_prevents(case, gpu, monkeypatch):
    measure = between.measure

    def fails_cold(call, work, *rest):
        if work == "cold" and call.who == ("torch", "default"):
            raise ValueError("no flush\nmore lines")
        return measure(call, work, *rest)

    monkeypatch.setattr(between, "measure", fails_cold)
    events = events_of(case, MadeUp())
    rows = {name_of(row): row for row in events if isinstance(row, Measurement)}
    default = rows["torch", "default"]
    assert (default.status, default.separated_runs_us, default.cold_runs_us) == ("ok", (25.0, 25.0), ())
    assert rows["torch", "benchmark"].cold_runs_us == (30.0, 30.0)
    said = "torch cuDNN default on 7-1-1-32-832 has no separated or no cold time: ValueError: no flush"
    assert [event.text for event in events if isinstance(event, Note)] == [said]


def test_a_time_that_is_lost_in_the_scatter_is_left_out(case, gpu, monkeypatch):
    def next_to_nothing(call, work, count, runs, steadily):
        return Timing((0.5, -0.1), count, "graph", call(), call)

    monkeypatch.setattr(between, "measure", next_to_nothing)
    *_, note, last = events_of(case, MadeUp())
    assert (last.status, last.separated_runs_us, last.cold_runs_us) == ("ok", (), ())
    assert " on 7-1-1-32-832 has no cold time: it is lost in the scatter of the work between" in note.text


def test_only_a_gpu_has_other_times():
    assert second_pass.has_other_times(torch.device("cuda", 0)) and not second_pass.has_other_times(CPU)


def clocked(algorithm, mhz, remeasured=0, us=10.0, **options):
    return replace(row(algorithm, us, **options), sm_clock_mhz=mhz, remeasured=remeasured)


def again(rows, found, best_mhz=2000):
    """The offers that are measured again, and the case's rows then; `found` has the next row of each offer."""
    clocks = CaseClocks(lambda: Reading(sm_clock_mhz=best_mhz))
    clocks.steadily(lambda during: during() or [])
    asked = []

    def measure(offer, steadily):
        asked.append((offer, steadily.keywords["repeats"]))
        return found[offer]

    case = [(row.algorithm, row) for row in rows]
    for offer, step in second_pass.low_clocks_again(case, clocks, measure):
        row = step()
        assert (offer, row) in case, "the row that counts is that of the case"
    return asked, dict(case)


def test_rows_from_before_the_best_clock_are_measured_again_and_the_higher_clock_counts():
    rows = [clocked("auto", 1899), clocked("two_stage", 1900), clocked("fp16x3", 1800, us=20.0)]
    found = {"auto": clocked("auto", 2000, us=9.0), "fp16x3": clocked("fp16x3", 1700, remeasured=2, us=21.0)}
    asked, case = again(rows, found)
    assert asked == [("auto", 2), ("fp16x3", 2)], "to measure it again is the first of three repeats"
    assert (case["auto"].mean_us, case["auto"].remeasured) == (9.0, 1)
    assert (case["fp16x3"].mean_us, case["fp16x3"].sm_clock_mhz, case["fp16x3"].remeasured) == (20.0, 1800, 3)


def test_times_over_the_limit_are_measured_again_at_a_low_clock_as_all_others():
    over = [clocked("fft", mhz, us=us, status="workspace_exceeded") for mhz, us in ((1800, 20.0), (2000, 9.0))]
    asked, case = again(over[:1], {"fft": over[1]})
    assert asked == [("fft", 2)] and case["fft"].mean_us == 9.0
    _, case = again(over[1:], {"fft": over[0]}, best_mhz=2200)
    assert (case["fft"].mean_us, case["fft"].sm_clock_mhz) == (9.0, 2000)


def test_three_repeats_are_the_most():
    asked, _ = again([clocked("auto", 1000, remeasured=3)], {})
    assert asked == []
    asked, case = again([clocked("auto", 1000, remeasured=2)], {"auto": clocked("auto", 1100)})
    assert asked == [("auto", 0)] and case["auto"].remeasured == 3


def test_rows_of_long_runs_are_not_measured_again():
    asked, _ = again([clocked("auto", 1000, us=4e6)], {})  # three runs of 4 s
    assert asked == []


def test_what_fails_when_it_is_measured_again_has_failed():
    _, case = again([clocked("auto", 1000)], {"auto": row("auto", status="error")})
    assert case["auto"].status == "error"


def test_rows_without_a_clock_are_not_measured_again():
    asked, _ = again([row("auto", 1.0), row("fp16x3", status="error")], {})
    assert asked == []
