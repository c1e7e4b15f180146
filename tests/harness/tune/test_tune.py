"""Tuning without a GPU: times made up by known constants are fitted, and rows read as they were written."""

import csv
import json
import random
import tomllib
from dataclasses import astuple, replace
from functools import partial
from math import hypot, log

import pytest
import torch

from cuconv import costs, jit
from cuconv.algorithms import ALGORITHMS, offering
from cuconv.algorithms.common.implicit_gemm import tf32x3_gemm
from cuconv.algorithms.common.implicit_gemm import tf32x3_wgmma
from cuconv.device import H200
from harness.tune.__main__ import candidates
from harness.tune.__main__ import fit as fitting
from harness.tune.__main__ import refine as refining
from harness.tune.__main__ import __main__ as tune
from harness.catalogue import load_sweep
from harness.results.records import ResultsError
from tests.helpers import commands

MODULES = {"tf32x3_gemm": tf32x3_gemm, "tf32x3_wgmma": tf32x3_wgmma}
# Not those in use, so that no refit changes what is tested here.
START = {
    "tf32x3_gemm": tf32x3_gemm.Costs(
        start=1.41, block=1.47, cluster=0.107, write=0.519, exchange=0.499, memory=0.35, taps=0.5, fetch=0.0404,
        pointwise_fetch=0.00023, warp_group=0.0351, multiply=0.268, columns=0.125, weights=0.137,
    ),
    "tf32x3_wgmma": tf32x3_wgmma.Costs(
        start=0.0997, block=0.32, cluster=0.205, write=0.517, exchange=0.906, memory=0.104, traffic=0.0178,
        turn=0.17, turn_filters=0.293, turn_warpgroup=0.091, pointwise_turn=0.0102, work=0.135,
        work_filters=0.128, work_single=0.0415, unaligned=0.053, gather=0.518,
    ),
}  # fmt: skip
TRUTH = {
    "tf32x3_gemm": replace(START["tf32x3_gemm"], multiply=0.5, fetch=0.15, exchange=4.0, cluster=1.0),
    "tf32x3_wgmma": replace(START["tf32x3_wgmma"], turn_filters=0.6, write=1.4, cluster=1.5, traffic=0.03),
}


@pytest.fixture
def start(monkeypatch):
    """The constants that a fit in this process starts from."""
    for name, constants in START.items():
        monkeypatch.setitem(MODULES[name].COSTS, "fp32", constants)


def made_up(folder, precision="fp32"):
    """A folder as harness.tune writes it; the times are those of the TRUTH."""
    with open(folder / "candidates.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(candidates.COLUMNS)
        for case in load_sweep("smoke", batches=[1, 4]).cases:
            problem = replace(case.problem, precision=precision)
            for name, module in MODULES.items():
                for config in module.candidates(problem, H200):
                    us = module.predicted_us(problem, H200, config, TRUTH[name])
                    writer.writerow([*case.key, name, config, 1.0, us, us, us, us])
    facts = {"gpu": H200.name, "compute_capability": "9.0", "multiprocessors": H200.sm_count, "commit": None}
    (folder / "environment.json").write_text(json.dumps({"environments": {"1": facts}}))
    return folder


each_precision = pytest.mark.parametrize("precision", ["fp32", "tf32"])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return made_up(tmp_path_factory.mktemp("tune"))


def rows_of(folder, algorithm):
    rows, unknown = fitting.rows_of(candidates.read(folder / "candidates.csv"), H200)
    assert unknown == 0
    return [row for row in rows if row.algorithm == algorithm]


@pytest.mark.parametrize("name", MODULES)
def test_a_fit_predicts_the_times_that_it_was_given(measured, start, name):
    rows = rows_of(measured, name)
    before = fitting.regret(rows, H200, {name: START[name]})
    fitted = fitting.fit(rows, H200)
    after = fitting.regret(rows, H200, {name: fitted})
    assert 1 <= after.geometric <= max(1.001, (1 + before.geometric) / 2)
    predicted = [MODULES[name].predicted_us(row.problem, H200, row.config, fitted) for row in rows]
    errors = [abs(log(us / row.us)) for us, row in zip(predicted, rows, strict=True)]
    assert max(errors) < 0.2 and hypot(*errors) / len(errors) ** 0.5 < 0.07, "at most, and root mean square"


def test_regret_is_the_time_of_the_choice_over_the_best(measured):
    rows = rows_of(measured, "tf32x3_wgmma")
    found = fitting.regret(rows, H200, TRUTH)
    assert (found.geometric, found.worst) == (1, 1)
    assert found.cases == len({row.problem for row in rows})
    chosen = min((r for r in rows if r.problem == rows[0].problem), key=lambda row: row.us)
    slower = [replace(row, us=3 * row.us) if row is chosen else row for row in rows]
    assert fitting.regret(slower, H200, TRUTH).at == rows[0].problem.label
    assert fitting.regret(slower, H200, TRUTH).worst > 1


def test_refined_constants_choose_faster_and_the_right_ones_stay(measured):
    rows = [row for name in MODULES for row in rows_of(measured, name)]
    gemm, wgmma = TRUTH.values()
    wrong = {
        "tf32x3_gemm": replace(gemm, multiply=0.5 * gemm.multiply, start=0.5 * gemm.start),
        "tf32x3_wgmma": replace(wgmma, write=3 * wgmma.write, turn_filters=2 * wgmma.turn_filters),
    }
    before = fitting.regret(rows, H200, wrong)
    after = fitting.regret(rows, H200, refining.refine(rows, H200, wrong))
    assert log(after.geometric) < 0.7 * log(before.geometric)
    assert fitting.regret(rows, H200, refining.refine(rows, H200, TRUTH)).geometric < 1.001


def test_layers_are_held_out_at_every_batch_size(measured):
    training, held_out = fitting.split(rows_of(measured, "tf32x3_gemm"), seed=1)
    assert training and held_out
    assert not {astuple(r.problem)[1:] for r in training} & {astuple(r.problem)[1:] for r in held_out}


def test_fit_only_reports_and_writes_the_constants(measured, tmp_path, monkeypatch, capsys):
    path = tmp_path / "costs.toml"
    monkeypatch.setitem(costs.PATHS, "fp32", path)
    assert tune.main(["--fit-only", "--out", str(measured)]) == 0
    printed = capsys.readouterr().out
    assert "on the held-out 1/4" in printed and "| auto " in printed
    written = tomllib.loads(path.read_text())
    assert set(written) == set(ALGORITHMS)
    assert written["two_stage"]["planes"] == ALGORITHMS["two_stage"].COSTS["fp32"].planes  # not measured: as it was
    assert written["tf32x3_gemm"]["multiply"] == pytest.approx(0.5, rel=0.1)
    for name, module in ALGORITHMS.items():
        costs.load(module.Costs, name)


def test_constants_of_tf32_are_fitted_to_what_was_measured_in_tf32(tmp_path, monkeypatch, capsys):
    paths = {precision: tmp_path / f"{precision}.toml" for precision in costs.PATHS}
    monkeypatch.setattr(costs, "PATHS", paths)
    arguments = ["--fit-only", "--precision", "tf32", "--out", str(made_up(tmp_path, "tf32"))]
    assert tune.main(arguments) == 0
    assert "two_stage" not in capsys.readouterr().out
    assert not paths["fp32"].exists()
    assert "in TF32. Written by: python -m harness.tune --precision tf32\n" in paths["tf32"].read_text()
    written = tomllib.loads(paths["tf32"].read_text())
    assert tuple(written) == offering("tf32")
    assert written["tf32x3_gemm"]["multiply"] == pytest.approx(0.5, rel=0.1)
    assert written["fp16x3"]["multiply"] == ALGORITHMS["fp16x3"].COSTS["tf32"].multiply  # not measured: as it was


def test_what_was_measured_in_one_precision_is_not_fitted_to_in_the_other(measured, capsys):
    assert tune.main(["--fit-only", "--precision", "tf32", "--out", str(measured)]) == 2
    assert "no tf32 configuration of this version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--fit-only", "--out", "nowhere"], "measure"),
        (["--config", "tuninq"], "no GPU|not found"),
        (["--fit-only", "--add"], "leave one of them out"),
    ],
)
def test_mistakes_are_told_in_a_sentence(arguments, why, capsys, monkeypatch):
    monkeypatch.setattr(tune.torch.cuda, "is_available", lambda: False)
    assert tune.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and any(part in message for part in why.split("|"))


def test_rows_of_configurations_that_are_gone_are_counted(measured, tmp_path):
    frame = candidates.read(measured / "candidates.csv")
    frame.loc[0, "config"] = "tile=1x1"
    frame.loc[1, "algorithm"] = "gone"
    rows, unknown = fitting.rows_of(frame, H200)
    assert unknown == 2 and len(rows) == len(frame) - 2


FOR_LARGER_FILTERS = {"fp16x3", "fp16x3_winograd"}  # than 1x1
POINTWISE = {"fp16x3_pointwise", "tf32x3_stationary"}


def computing(problem):
    """The algorithms that compute a problem: some of fp16x3's family do not, according to the filter."""
    refusing = FOR_LARGER_FILTERS if problem.filter_area == 1 else POINTWISE
    if problem.kw not in (3, 5) or problem.kh > 5:
        refusing = refusing | {"fp16x3_winograd"}
    in_rows = problem.filter_area == 1 or problem.out_w % 4 == 0
    if problem.c * problem.filter_area > 32 or not in_rows or problem.out_pixels < 32:
        refusing = refusing | {"tf32x3_shallow"}
    return {name: ALGORITHMS[name] for name in offering(problem.precision) if name not in refusing}


@each_precision
def test_what_is_measured_is_the_best_by_prediction_and_some_others(precision):
    problem = replace(load_sweep("smoke", batches=[1]).cases[0].problem, precision=precision)
    found = candidates.candidates_of(problem, H200, random.Random(1))
    assert found == candidates.candidates_of(problem, H200, random.Random(1))
    assert {one.algorithm for one in found} == set(computing(problem))
    for name, module in computing(problem).items():
        mine = [one for one in found if one.algorithm == name]
        assert module.configure(problem, H200) in [one.config for one in mine]
        assert len(mine) <= candidates.PER_ALGORITHM
        assert max(one.predicted_us for one in mine) <= candidates.MAX_RATIO * min(one.predicted_us for one in mine)


def test_configurations_of_a_case_print_differently():
    for sweep in ("smoke", "unseen"):
        for case in load_sweep(sweep, batches=[1, 64]).cases:
            for module in computing(case.problem).values():
                texts = [str(config) for config in module.candidates(case.problem, H200)]
                assert len(set(texts)) == len(texts)


def test_kernels_to_compile_are_those_that_the_candidates_launch():
    problem = load_sweep("smoke", batches=[1]).cases[0].problem
    found = candidates.candidates_of(problem, H200, random.Random(1))
    kernels = candidates._kernels(problem, found)
    assert {source for source, _ in kernels} == {ALGORITHMS[one.algorithm].SOURCE for one in found}
    assert len(set(kernels)) == len(kernels) > len(ALGORITHMS)


def test_unseen_shapes_are_in_no_tuning_run():
    tuned = {case.key[1:] for case in load_sweep("tuning").cases}
    unseen = load_sweep("unseen").cases
    assert not tuned & {case.key[1:] for case in unseen}
    assert any(case.layer.h != case.layer.w for case in unseen) and {2, 3, 5, 12} <= {case.batch for case in unseen}


@pytest.fixture
def without_a_gpu(monkeypatch):
    """Nothing is compiled, and every configuration is torch's convolution."""

    def call(problem, candidate, operands, workspace, spec):
        padding = (problem.pad_h, problem.pad_w)
        convolve = partial(torch.conv2d, operands.input, operands.weight, padding=padding)
        return lambda: operands.output.copy_(convolve())

    monkeypatch.setattr(jit, "cubin", lambda *kernel: None)
    monkeypatch.setattr(candidates, "_call", call)
    monkeypatch.setattr(candidates, "PER_ALGORITHM", 2)
    return call


def pointwise_cases():
    return [case for case in load_sweep("smoke", batches=[1]).cases if case.layer.k == 1]


def measure(path, minutes=10.0, precision="fp32"):
    return candidates.measure(pointwise_cases(), torch.device("cpu"), H200, path, minutes, 1, precision)


@each_precision
def test_what_is_measured_can_be_fitted(without_a_gpu, tmp_path, precision):
    path = tmp_path / "new" / "candidates.csv"
    assert measure(path, precision=precision) == 0
    frame = candidates.read(path)
    rows, unknown = fitting.rows_of(frame, H200, precision)
    expected = {name for case in pointwise_cases() for name in computing(replace(case.problem, precision=precision))}
    assert unknown == 0 and {row.algorithm for row in rows} == expected
    assert {row.problem.precision for row in rows} == {precision}
    assert (frame.best_us == frame[["run_1_us", "run_2_us", "run_3_us"]].min(axis=1)).all()


def test_a_case_that_nothing_computes_is_passed_over(without_a_gpu, tmp_path):
    """In TF32 the largest filters: two_stage, which computes everything, is of FP32."""
    cases = [case for case in load_sweep("tuning").cases if case.layer.k == 9][:1]
    assert cases and not candidates.candidates_of(replace(cases[0].problem, precision="tf32"), H200, random.Random(1))
    path = tmp_path / "candidates.csv"
    assert candidates.measure(cases, torch.device("cpu"), H200, path, 10.0, 1, "tf32") == 0
    assert len(candidates.read(path)) == 0


def test_wrong_output_is_left_out_and_counted(without_a_gpu, tmp_path, monkeypatch, capsys):
    def call(problem, candidate, operands, workspace, spec):
        right = without_a_gpu(problem, candidate, operands, workspace, spec)
        return (lambda: right().mul_(1.001)) if candidate.algorithm == "two_stage" else right

    monkeypatch.setattr(candidates, "_call", call)
    assert measure(tmp_path / "candidates.csv") == 2
    assert "two_stage" not in set(candidates.read(tmp_path / "candidates.csv").algorithm)
    assert "wrong, left out: two_stage" in capsys.readouterr().out


def test_an_interrupted_measurement_keeps_its_rows(without_a_gpu, tmp_path, monkeypatch):
    measured, time_problem = [], candidates._time_problem

    def interrupted(problem, *arguments):
        if measured:
            raise KeyboardInterrupt
        measured.append(problem)
        return time_problem(problem, *arguments)

    monkeypatch.setattr(candidates, "_time_problem", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "candidates.csv")
    assert len(candidates.read(tmp_path / "candidates.csv")) > 0


def test_other_cases_are_kept_where_more_is_added(measured, tmp_path):
    before = candidates.read(measured / "candidates.csv")
    first = before[before.batch == 1]
    path = tmp_path / "candidates.csv"
    first.assign(best_us=0.5).to_csv(path, index=False)
    candidates.add_other_cases(path, before)
    after = candidates.read(path)
    assert len(after) == len(before) and (after[after.batch == 1].best_us == 0.5).all()
    others = [frame[frame.batch != 1].reset_index(drop=True) for frame in (before, after)]
    assert len(others[0]) and others[0].equals(others[1])


def test_candidates_are_written_with_what_they_depend_on(made_up_gpu, measured, tmp_path, monkeypatch):
    def measure(cases, device, spec, path, *limits):
        path.write_bytes((measured / "candidates.csv").read_bytes())
        return 0

    monkeypatch.setattr(tune, "device_spec", lambda index: H200)
    monkeypatch.setattr(candidates, "measure", measure)
    monkeypatch.setattr(tune, "_fit", lambda *arguments: None)
    arguments = ["--out", str(tmp_path / "new")]
    assert tune.main(arguments) == tune.main([*arguments, "--add"]) == 0
    typed = f"python -m harness.tune --out {tmp_path}/new"
    assert commands(tmp_path / "new") == [typed, f"{typed} --add"]


def test_several_runs_are_fitted_to_together_if_they_were_on_one_kind_of_gpu(measured, tmp_path):
    facts = json.loads((measured / "environment.json").read_text())["environments"]["1"]
    later = facts | {"commit": "b" * 40}
    (tmp_path / "environment.json").write_text(json.dumps({"environments": {"1": facts, "2": later}}))
    assert tune._measured_on(tmp_path) == (later, H200)
    other = facts | {"multiprocessors": 114}
    (tmp_path / "environment.json").write_text(json.dumps({"environments": {"1": facts, "2": other}}))
    with pytest.raises(ResultsError, match="does not say on which GPU"):
        tune._measured_on(tmp_path)


def test_no_case_is_begun_when_the_time_is_over(without_a_gpu, tmp_path):
    measure(tmp_path / "candidates.csv", minutes=1e-9)
    assert len(candidates.read(tmp_path / "candidates.csv")) == 0
