"""Which configurations are measured, and what candidates.csv.gz then has: on the CPU, with torch's convolution."""

import gzip
import random
from dataclasses import replace
from math import inf
from pathlib import Path

import pandas as pd
import pytest
import torch

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.base import CallOptions
from cuconv.core.launch import KernelVariant
from cuconv.device import H200
from harness.cases.catalogue import Case, Layer, load_sweep
from harness.errors import ResultsError
from harness.stopwatch import timing
from harness.tune import candidates, fit
from tests.harness.tune.toys import TOYS, Large, ToyConfig, ToyCosts, cases, measured, write

each_precision = pytest.mark.parametrize("precision", ["fp32", "tf32"])


class Crowd(Large):
    """An algorithm of many configurations, predicted at 1, 2, 3, ... microseconds."""

    source = Path("toy_crowd.cu")
    in_use = ToyCosts(1.0, 1.0, 1.0)

    def candidates(self, problem, device):
        return [ToyConfig(tile, 1) for tile in range(20, 0, -1)] + [ToyConfig(1000 + tile, 1) for tile in range(40)]

    def estimate_us(self, problem, device, config, costs):
        return 20 + config.tile


def test_the_best_by_prediction_are_measured_and_some_of_the_others(toys, monkeypatch):
    crowd = Crowd()
    monkeypatch.setitem(ALGORITHMS, crowd.name, crowd)
    problem = cases()[0].problem
    found = candidates.candidates_of(problem, H200, random.Random(1))
    assert found == candidates.candidates_of(problem, H200, random.Random(1))
    assert {one.algorithm for one in found} == {*TOYS, crowd.name}
    mine = [one for one in found if one.algorithm == crowd.name]
    assert len(mine) == candidates.PER_ALGORITHM == len(set(mine))
    assert {one.config.tile for one in mine} >= set(range(1, 9)), "the better half by prediction"
    assert max(one.predicted_us for one in mine) <= candidates.MAX_RATIO * min(one.predicted_us for one in mine)


@each_precision
def test_the_configuration_that_an_algorithm_would_choose_is_measured(precision):
    problem = replace(load_sweep("smoke", batches=[1]).cases[0].problem, precision=precision)
    found = candidates.candidates_of(problem, H200, random.Random(1))
    names = {one.algorithm for one in found}
    assert names and names <= set(offering(precision))
    for name in names:
        chosen = ALGORITHMS[name].configure(problem, H200)
        is_less_special = 1 < ALGORITHMS[name].slowdown(problem, H200, chosen, CallOptions()) < inf
        assert is_less_special or chosen in [one.config for one in found if one.algorithm == name]


def test_unseen_shapes_are_in_no_tuning_run():
    tuned = {case.key[1:] for case in load_sweep("tuning").cases}
    unseen = load_sweep("unseen").cases
    assert not tuned & {case.key[1:] for case in unseen}
    assert any(case.layer.h != case.layer.w for case in unseen) and {2, 3, 5, 12} <= {case.batch for case in unseen}


def measure(path, some=None, minutes=10.0, precision="fp32"):
    """Measure some of the made-up cases, by default the first three."""
    some = cases()[:3] if some is None else some
    return candidates.measure(some, torch.device("cpu"), H200, path, minutes, 1, precision)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """A run on the CPU is one call; two of them need not agree."""
    monkeypatch.setattr(timing, "CPU_FILL_US", 1.0)
    monkeypatch.setattr(fit, "AGREEMENT", 1e9)


@each_precision
def test_what_is_measured_can_be_fitted(toys, on_the_cpu, tmp_path, precision):
    path = tmp_path / "new" / "candidates.csv.gz"
    assert measure(path, precision=precision) == 0
    frame = candidates.read(path)
    rows, known = fit.rows_of(frame, H200, precision)
    assert len(known) == len(frame) and {row.algorithm for row in rows} == set(TOYS)
    assert {row.problem for row in rows} == {replace(case.problem, precision=precision) for case in cases()[:3]}
    assert (frame.best_us == frame[["run_1_us", "run_2_us", "run_3_us"]].min(axis=1)).all()


def test_configurations_of_the_library_are_read_as_they_were_written(on_the_cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(candidates, "PER_ALGORITHM", 2)
    smallest = min(load_sweep("smoke", batches=[1]).cases, key=lambda case: case.problem.flop)
    assert measure(tmp_path / "candidates.csv.gz", [smallest]) == 0
    frame = candidates.read(tmp_path / "candidates.csv.gz")
    rows, known = fit.rows_of(frame, H200)
    found = candidates.candidates_of(smallest.problem, H200, random.Random(1))
    assert len(known) == len(frame) and {row.algorithm for row in rows} == {one.algorithm for one in found}


def test_the_kernels_that_are_measured_are_compiled_once_before(toys, on_the_cpu, tmp_path):
    measure(tmp_path / "candidates.csv.gz")
    frame = candidates.read(tmp_path / "candidates.csv.gz")
    launched = {
        KernelVariant.of(TOYS[name].source, H200.arch, {"TILE": int(config.removeprefix("tile="))})
        for name, config in zip(frame.algorithm, frame.config, strict=True)
    }
    assert len(on_the_cpu) == len(set(on_the_cpu)) and set(on_the_cpu) == launched


def test_a_case_that_no_algorithm_computes_is_passed_over(on_the_cpu, tmp_path):
    """In TF32 this is a filter of more rows than tf32x3 computes, with groups, which fp16x3 does not compute."""
    layer = Layer(("user",), ("large",), 40, 40, 3, 9, 33, 0, 2, 1, 3, 33, 0)
    assert measure(tmp_path / "candidates.csv.gz", [Case(layer, 1)], precision="tf32") == 0
    assert len(candidates.read(tmp_path / "candidates.csv.gz")) == 0


def test_wrong_output_is_left_out_and_counted(toys, on_the_cpu, tmp_path, monkeypatch, capsys):
    right = candidates.prepare

    def prepare(problem, candidate, *arguments):
        call = right(problem, candidate, *arguments)
        return (lambda: call().mul_(1.001)) if candidate.algorithm == "toy_small" else call

    monkeypatch.setattr(candidates, "prepare", prepare)
    assert measure(tmp_path / "candidates.csv.gz", cases()[:1]) == len(TOYS["toy_small"].variants("sm_90a"))
    assert set(candidates.read(tmp_path / "candidates.csv.gz").algorithm) == {"toy_large"}
    assert "wrong, left out: toy_small" in capsys.readouterr().out


def test_an_interrupted_measurement_keeps_its_rows_and_one_out_of_time_begins_no_case(
    toys, on_the_cpu, tmp_path, monkeypatch
):
    path = tmp_path / "candidates.csv.gz"
    measure(path, minutes=1e-9)
    assert len(candidates.read(path)) == 0
    right, seen = candidates.prepare, set()

    def prepare(problem, *arguments):
        seen.add(problem)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return right(problem, *arguments)

    monkeypatch.setattr(candidates, "prepare", prepare)
    with pytest.raises(KeyboardInterrupt):
        measure(path)
    assert len(candidates.read(path).groupby(["batch", "h", "m"])) == 1


def test_other_cases_are_kept_where_more_is_added(tmp_path):
    old = write(tmp_path, measured()) / "candidates.csv.gz"
    frame = pd.read_csv(old)
    frame.drop(columns=["stride", "dilation", "groups"]).to_csv(old, index=False)  # as files once were
    before = candidates.read(old)[frame.columns]
    path = tmp_path / "new.csv"
    before[before.batch == 1].assign(best_us=0.5).to_csv(path, index=False)
    candidates.add_other_cases(path, candidates.read(old))
    after = candidates.read(path)
    assert len(after) == len(before) and (after[after.batch == 1].best_us == 0.5).all()
    others = [frame[frame.batch != 1].reset_index(drop=True) for frame in (before, after)]
    assert len(others[0]) and others[0].equals(others[1])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "does not exist"),
        (b"batch,h\n1,7\n", "no gzip file"),
        (gzip.compress(b"batch,h\n1,7\n", mtime=0), "lacks the column 'w'"),
    ],
    ids=["missing", "not compressed", "other columns"],
)
def test_a_file_that_is_something_else_is_refused(tmp_path, content, why):
    path = tmp_path / "candidates.csv.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ResultsError, match=why):
        candidates.read(path)
