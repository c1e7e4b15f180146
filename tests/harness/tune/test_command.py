"""`python -m harness tune` without a GPU: what is measured is fitted, printed and written, mistakes are told."""

import shutil
from dataclasses import astuple, replace
from math import log

import pytest
import torch

from cuconv.algorithms import ALGORITHMS, offering
from cuconv.core import costs
from cuconv.device import H200
from harness.cases.catalogue import load_sweep
from harness.store import environment
from harness.sweep.comparisons import CASE
from harness.tune import candidates, command, costs_file
from tests.harness.tune.toys import measured, report, write
from tests.helpers import commands

NAMES = ("tf32x3_gemm", "tf32x3_wgmma")
SLOWER = 1.5  # time of a made-up GPU over that predicted by the constants in use


def slower_gpu(folder, precision="fp32"):
    """A folder of candidates whose times are SLOWER than predicted; returns it, and the times by case and candidate."""
    times = []
    for case in load_sweep("smoke", batches=[1, 8]).cases:
        problem = replace(case.problem, precision=precision)
        for name in NAMES:
            configs = ALGORITHMS[name].candidates(problem, H200)[::9]
            predicted = [ALGORITHMS[name].predicted_us(problem, H200, config) for config in configs]
            times += [(case, name, config, SLOWER * us) for config, us in zip(configs, predicted, strict=True)]
    return write(folder, times, report(commit="a" * 40), report(commit="b" * 40)), times


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Copies of the files of costs, which may be written."""
    paths = {precision: tmp_path / path.name for precision, path in costs.PATHS.items()}
    for precision, path in paths.items():
        shutil.copy(costs.PATHS[precision], path)
    monkeypatch.setattr(costs, "PATHS", paths)
    return paths


@pytest.mark.parametrize(("precision", "other"), [("fp32", "tf32"), ("tf32", "fp32")])
def test_fit_only_prints_the_regret_and_writes_the_constants(files, tmp_path, capsys, precision, other):
    folder, times = slower_gpu(tmp_path, precision)
    before = {precision: path.read_text() for precision, path in files.items()}
    assert command.main(["--fit-only", "--precision", precision, "--out", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "hold-out" in printed and ("two_stage" in printed) == (precision == "fp32")

    written = files[precision].read_text()
    assert files[other].read_text() == before[other]
    assert ("--precision tf32" in written) == (precision == "tf32") and "commit bbbbbbbbbbbb" in written, "the last"
    of_small = sum(name == "tf32x3_gemm" for _, name, _, _ in times)
    assert f"[tf32x3_gemm]  # fitted to {of_small} configurations of " in written
    for name in offering(precision):
        fitted, used = costs.load(ALGORITHMS[name].costs_type, name, precision), ALGORITHMS[name].costs(precision)
        assert (fitted == used) == (name not in NAMES), "without rows: as it was"
        assert len(astuple(fitted)) == len(astuple(used))
    errors = []
    for case, name, config, us in times:
        fitted = costs.load(ALGORITHMS[name].costs_type, name, precision)
        problem = replace(case.problem, precision=precision)
        errors.append(abs(log(ALGORITHMS[name].predicted_us(problem, H200, config, fitted) / us)))
    assert sum(errors) / len(errors) < 0.05 and max(errors) < 0.2, "from 0.4 in all"


def test_candidates_of_one_precision_are_not_fitted_to_in_the_other(files, tmp_path, capsys):
    largest = next(case for case in load_sweep("tuning").cases if case.layer.k == 9)
    config = ALGORITHMS["two_stage"].candidates(largest.problem, H200)[0]
    folder = write(tmp_path, [(largest, "two_stage", config, 1.0)])
    assert command.main(["--fit-only", "--precision", "tf32", "--out", str(folder)]) == 2
    assert "no tf32 configuration" in capsys.readouterr().err


def test_a_fit_refuses_fewer_rows_than_a_model_has_constants(files, tmp_path, capsys):
    case = load_sweep("smoke", batches=[1]).cases[0]
    configs = ALGORITHMS["tf32x3_gemm"].candidates(case.problem, H200)[:2]
    folder = write(tmp_path, [(case, "tf32x3_gemm", config, 1.0) for config in configs])
    before = files["fp32"].read_text()
    assert command.main(["--fit-only", "--out", str(folder)]) == 2
    assert "2 rows of tf32x3_gemm" in capsys.readouterr().err and files["fp32"].read_text() == before


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--fit-only", "--out", "nowhere"], "nowhere"),
        (["--config", "tuninq"], "torch sees none"),
        (["--fit-only", "--add"], "--add"),
        (["--fit-only", "--out", "two"], "on which GPU"),
    ],
)
def test_mistakes_and_two_kinds_of_gpu_are_told_in_a_sentence(arguments, why, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two").mkdir()
    write(tmp_path / "two", [], report(), report(multiprocessors=114))
    assert command.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and why in message


def test_candidates_are_written_with_what_they_depend_on(made_up_gpu, tmp_path, monkeypatch):
    def measure(cases, device, spec, path, *limits):
        write(path.parent / "..", measured())
        shutil.copy(path.parent.parent / "candidates.csv.gz", path)
        return 0

    monkeypatch.setattr(command, "device_spec", lambda index: H200)
    monkeypatch.setattr(candidates, "measure", measure)
    monkeypatch.setattr(costs_file, "write_fitted", lambda *arguments: None)
    arguments = ["--out", str(tmp_path / "new")]
    assert command.main(arguments) == command.main([*arguments, "--add"]) == 0
    typed = f"python -m harness tune --out {tmp_path}/new"
    assert commands(tmp_path / "new") == [typed, f"{typed} --add"]


@pytest.mark.parametrize(
    ("precision", "folder"),
    [("fp32", "tune"), ("tf32", "tune-tf32"), ("tf32_channels_last", "tune-tf32-channels-last")],
)
def test_each_section_of_the_constants_tells_its_rows(precision, folder):
    frame = candidates.read(environment.ROOT / "results" / "nvidia-h200" / folder / "candidates.csv.gz")
    text = costs.PATHS[precision].read_text()
    for name, rows in frame.groupby("algorithm"):
        cases = len(rows.drop_duplicates(CASE))
        assert f"[{name}]  # fitted to {len(rows)} configurations of {cases} cases\n" in text
