"""The command line: what a user types, mistypes, interrupts and resumes."""

import json
import os
import shlex
import signal
import time
from types import SimpleNamespace

import pytest
import torch

from harness import run
from harness.cases.catalogue import load_sweep
from harness.errors import UsageError
from harness.report import tables
from harness.sweep.records import ResultsFolder, read
from tests.harness import forking

SLICE = ["--device", "cpu", "--config", "smoke", "--layer", "5a_5x5red", "--runs", "2"]


def harness(*arguments):
    return run.main([str(argument) for argument in arguments])


def test_a_slice_is_measured_and_summarised(tmp_path, capsys):
    assert harness(*SLICE, "--batch", 1, "--out", tmp_path) == 0
    printed = capsys.readouterr().out
    assert "geometric mean" in printed and "4 rows: 4 ok" in printed
    assert str(tmp_path / "measurements.csv") in printed
    assert "Labels are HW-N-K-M-C" in printed and "\nnext: " in printed
    assert "no claim about cuConv" in printed and "results/nvidia-h200" in printed, "a CPU's numbers are put in place"
    frame = read(tmp_path / "measurements.csv")
    environments = json.loads((tmp_path / "environment.json").read_text())["environments"]
    assert set(frame["environment"]) == set(environments)
    (facts,) = environments.values()
    assert facts["torch"] and facts["python"] and facts["code"] and facts["commands"][0]["date"]


def test_slices_fill_one_folder(tmp_path):
    assert harness(*SLICE, "--batch", 1, "--algorithm", "native", "--out", tmp_path) == 0
    assert harness(*SLICE, "--batch", 2, "--algorithm", "native", "fft", "--out", tmp_path) == 0
    frame = read(tmp_path / "measurements.csv")
    assert sorted(zip(frame["batch"], frame["algorithm"], strict=True)) == [(1, "native"), (2, "fft"), (2, "native")]
    (facts,) = json.loads((tmp_path / "environment.json").read_text())["environments"].values()
    assert len(facts["commands"]) == 2


def mark(path):
    """Give the row of a file a time that no machine measures: it stays as long as the row is not measured again."""
    before = read(path).iloc[0]
    path.write_text(path.read_text().replace(f"{before.run_1_us:.9g}", MARKED))


MARKED = "123456789"


def test_resume_measures_only_what_is_missing(tmp_path):
    path = tmp_path / "measurements.csv"
    assert harness(*SLICE, "--batch", 1, "--algorithm", "native", "--out", tmp_path) == 0
    mark(path)
    assert harness(*SLICE, "--batch", 1, "--out", tmp_path, "--resume") == 0
    frame = read(path).set_index("algorithm")
    assert len(frame) == 4
    assert frame.loc["native", "run_1_us"] == float(MARKED)
    assert harness(*SLICE, "--batch", 1, "--out", tmp_path) == 0
    assert read(path).set_index("algorithm").loc["native", "run_1_us"] < float(MARKED)


@pytest.mark.parametrize(("options", "other_times"), [(["--hot-only"], False), ([], True)])
def test_hot_only_leaves_the_other_times_out(tmp_path, monkeypatch, options, other_times):
    asked = []
    monkeypatch.setattr(run.second_pass, "has_other_times", lambda device: True)
    monkeypatch.setattr(run.session, "measure", lambda sweep, settings, *rest, **more: asked.append(settings))
    assert harness(*SLICE, "--out", tmp_path, *options) == 0
    assert [settings.other_times for settings in asked] == [other_times]


def test_resume_does_not_trust_rows_of_other_code(tmp_path):
    assert harness(*SLICE, "--batch", 1, "--algorithm", "native", "--out", tmp_path) == 0
    mark(tmp_path / "measurements.csv")
    path = tmp_path / "environment.json"
    path.write_text(path.read_text().replace('"code": "', '"code": "other'))
    assert harness(*SLICE, "--batch", 1, "--algorithm", "native", "--out", tmp_path, "--resume") == 0
    assert read(tmp_path / "measurements.csv").iloc[0]["run_1_us"] < float(MARKED)


@pytest.fixture
def many_small_cases(tmp_path):
    """A sweep of one small layer at 40 batch sizes, which takes a second or two."""
    path = tmp_path / "many.yaml"
    batches = ", ".join(map(str, range(1, 41)))
    path.write_text(f"layers: [{{name: tiny, hw: 3, c: 2, m: 2, k: 1, pad: 0}}]\nbatch_sizes: [{batches}]\n")
    return path


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)], ids=["killed", "Ctrl-C"]
)
def test_a_killed_run_keeps_its_rows_and_is_resumed(tmp_path, many_small_cases, how, code):
    common = ["--device", "cpu", "--config", str(many_small_cases), "--algorithm", "native"]
    out = tmp_path / "out"
    path = out / "measurements.csv"
    process = forking.started("harness.run", *common, "--out", out, said=tmp_path / "said")
    try:
        while not (path.exists() and path.read_text().count("\n") > 3):
            assert process.is_alive(), "the run must be under way"
            time.sleep(0.01)
        os.kill(process.pid, how)
        process.join(60)
        assert process.exitcode == code
    finally:
        process.kill()
    told = (tmp_path / "said").read_text()
    assert ("--resume" in told) == (how == signal.SIGINT) and "Traceback" not in told

    kept = read(path).set_index("batch")["run_1_us"]
    assert 3 <= len(kept) < 40
    assert harness(*common, "--out", out, "--resume") == 0
    after = read(path).set_index("batch")["run_1_us"]
    assert len(after) == 40
    assert (after[kept.index] == kept).all(), "rows of the killed run stand as they were"


def test_dry_run_and_list_measure_nothing(tmp_path, capsys):
    assert (
        harness("--device", "cpu", "--config", "paper", "--net", "resnet50", "--dry-run", "--out", tmp_path / "x") == 0
    )
    printed = capsys.readouterr().out
    assert "84 cases" in printed and "Labels are HW-N-K-M-C" in printed
    assert harness("--device", "cpu", "--list", "--out", tmp_path / "x") == 0
    printed = capsys.readouterr().out
    assert "provider cpu: two_stage, onednn, native, fft" in printed and "14-1-3-208-96" in printed
    assert "Labels are HW-N-K-M-C: input height and width" in printed
    assert not (tmp_path / "x").exists()


def test_every_layer_that_list_counts_has_a_line(capsys):
    assert harness("--device", "cpu", "--config", "paper", "--list") == 0
    printed = capsys.readouterr().out
    assert "86 layers of paper" in printed
    assert sum(line.startswith("  ") for line in printed.splitlines()) == 86


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        ([], "The sweep is smoke, a small one, because a CPU takes long"),
        (["--net", "alexnet", "--batch", "1"], "The sweep is a slice of paper, by --net and --batch, instead of smoke"),
        (["--config", "smoke", "--batch", "1"], ""),
    ],
)
def test_a_cpu_is_told_the_sweep_that_it_did_not_name(arguments, note, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(run, "_measure", lambda *_: None)
    assert harness(*arguments) == 0
    (first,) = [line for line in capsys.readouterr().out.splitlines() if "No GPU found" in line]
    assert note in first and ("The sweep is" in first) == bool(note)


@pytest.mark.parametrize("option", ["--dry-run", "--list"])
def test_what_a_gpu_measures_is_shown_without_one(option, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert harness(option) == 0
    shown = capsys.readouterr().out
    assert "602 cases" in shown or "86 layers of paper" in shown
    assert "cudnn_engine" in shown and "No GPU found" not in shown


def test_figures_find_a_folder_of_out_that_is_called_as_they_expect(tmp_path, capsys):
    assert harness(*SLICE, "--batch", 1, "--out", tmp_path / "mine") == 0
    where = tmp_path / "mine" / "cpu" / "smoke"
    assert f"'--out {where}' fills" in capsys.readouterr().out
    assert harness(*SLICE, "--batch", 1, "--out", where) == 0
    command = shlex.split(capsys.readouterr().out.split("next: '")[1].split("'")[0])
    assert command[:5] == ["python", "-m", "harness", "report", "tables"] and tables.main(command[5:]) == 0
    assert "## cpu, sweep smoke" in capsys.readouterr().out


def test_the_next_commands_are_of_the_folder_that_was_filled(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert harness(*SLICE, "--batch", 1, "--algorithm", "native") == 0
    printed = capsys.readouterr().out
    assert "results/cpu/smoke/measurements.csv" in printed
    for module in ("tables", "figures"):
        assert f"'python -m harness report {module} --device cpu --sweep smoke'" in printed


def test_against_best_without_measurements_names_the_command_that_makes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["--device", "cpu", "--batch", "1", "--layer", "5a_5x5red", "--algorithm", "native", "--runs", "1"]
    assert harness(*arguments, "--against", "best") == 2
    said = capsys.readouterr().err
    assert "--against best: results/cpu/paper/measurements.csv does not exist" in said and said.count("\n") == 1
    named = shlex.split(said.split("'")[1])
    assert named[:3] == ["python", "-m", "harness.run"]
    assert harness(*named[3:], "--runs", "1") == 0
    assert harness(*arguments, "--against", "best") == 0, "the command helped"


def test_against_best_warns_of_cases_without_a_measured_rival(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert harness(*SLICE, "--batch", 1) == 0
    capsys.readouterr()
    assert harness(*SLICE, "--batch", 1, "--against", "best") == 0
    assert "Warning" not in capsys.readouterr().out
    assert harness(*SLICE, "--batch", 1, 2, "--against", "best") == 0
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning")]
    assert "results/cpu/smoke/measurements.csv has no time of a rival for 1 of 2 cases" in warning
    assert harness(*shlex.split(warning.split("'")[1])[3:], "--runs", 1) == 0
    capsys.readouterr()
    assert harness(*SLICE, "--batch", 1, 2, "--against", "best") == 0
    assert "Warning" not in capsys.readouterr().out, "the command helped"


def test_an_unknown_layer_is_told_with_a_few_that_resemble_it(capsys):
    assert harness("--device", "cpu", "--config", "paper", "--layer", "4a_3x", "--dry-run") == 2
    said = capsys.readouterr().err
    assert "'4a_3x'" in said and "did you mean 4a_3x3" in said and "--list" in said
    assert len(said) < 200, "not every layer"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--net", "lenet"], ["lenet", "googlenet", "squeezenet"]),
        (["--config", "nowhere"], ["nowhere", "paper"]),
        (["--net", "alexnet"], ["alexnet", "googlenet, squeezenet", "--config full"]),
        (["--provider", "cudnn"], ["--provider cudnn: it needs a GPU", "cpu"]),
        (["--provider", "nobody"], ["--provider nobody", "cpu"]),
        (["--algorithm", "winograd"], ["winograd: it is of cudnn and needs a GPU", "two_stage, onednn, native, fft"]),
        (["--algorithm", "fp16x3"], ["fp16x3: it is of cuconv and needs a GPU", "two_stage, onednn, native, fft"]),
        (["--algorithm", "eng3"], ["eng3: it is of cudnn_engine and needs a GPU", "two_stage, onednn, native, fft"]),
        (["--algorithm", "nothing"], ["nothing: the algorithms of cpu are two_stage, onednn, native, fft"]),
        (["--layer", "nolayer"], ["nolayer", "5a_5x5red"]),
        (["--filter-size", "11"], ["11", "3, 5, 1"]),
        (["--batch", "0"], ["0"]),
        (["--runs", "100"], ["100", "1 to 99"]),
        (["--device", "cuda:99"], ["cuda:99", "cpu"]),
        (["--precision", "tf32"], ["--precision tf32", "cpu", "fp32", "use a GPU"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_wrong_value_is_one_sentence_with_the_allowed_ones(arguments, parts, capsys, tmp_path):
    common = [] if "--config" in arguments else ["--config", "smoke"]
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert harness(*common, *device, *arguments, "--out", tmp_path) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for part in parts:
        assert part in said


@pytest.mark.parametrize("arguments", [["--batch", "one"], ["--bogus"], ["--runs"], ["--precision", "fp8"]], ids=str)
def test_what_the_parser_itself_refuses_exits_with_2(arguments):
    with pytest.raises(SystemExit) as stop:
        harness(*arguments)
    assert stop.value.code == 2


def test_a_sweep_with_tf32_allowed_is_of_those_who_offer_it():
    everybody = SimpleNamespace(precision="tf32", provider=None)
    there = run._providers(everybody, "cuda")
    assert {"cudnn", "cudnn_engine", "torch", "cublas"} <= set(there) and "cpu" not in there
    with pytest.raises(UsageError, match="--provider cpu: on cuda in tf32 there are"):
        run._providers(SimpleNamespace(precision="tf32", provider=["cpu"]), "cuda")


def test_an_optional_contender_takes_part_where_it_is_named():
    by_default = run._providers(SimpleNamespace(precision="fp32", provider=None), "cuda")
    assert "cuconv" in by_default and "cutlass" not in by_default
    named = SimpleNamespace(precision="fp32", provider=["cuconv", "cutlass"])
    assert run._providers(named, "cuda") == ("cuconv", "cutlass")


def test_an_optional_contender_is_listed_as_such(capsys):
    run._print_list(load_sweep("smoke"), "cuda", "fp32")
    said = capsys.readouterr().out
    assert "provider cutlass, only where --provider names it: fast_fp32" in said
    assert "provider cublas: bmm" in said


def test_an_engine_of_cudnn_may_have_any_number():
    wanted = SimpleNamespace(algorithm=["eng3_k11=2"], precision="fp32")
    assert run._algorithms(wanted, ("cuconv", "cudnn_engine")) == {"eng3_k11=2"}
    with pytest.raises(UsageError, match=r"--algorithm eng3_k11=2: the algorithms of cuconv are auto"):
        run._algorithms(wanted, ("cuconv",))


def test_an_algorithm_of_two_contenders_is_named_once():
    wanted = SimpleNamespace(algorithm=["bogus"], precision="fp32")
    with pytest.raises(UsageError) as error:
        run._algorithms(wanted, ("cuconv", "cuconv_prepared"))
    assert str(error.value).count("auto") == 1


def test_a_slice_by_name_needs_no_config_without_a_gpu(capsys):
    assert harness("--device", "cpu", "--net", "resnet50", "--batch", 1, "--dry-run") == 0
    assert "12 cases" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert harness(*SLICE, "--out", tmp_path / "file") == 2
    assert "--out" in capsys.readouterr().err


def test_a_folder_in_use(tmp_path, capsys):
    with ResultsFolder(tmp_path):
        assert harness(*SLICE, "--out", tmp_path) == 2
    assert "in use by another run" in capsys.readouterr().err


def test_a_users_own_layers(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("layers:\n  - {name: wide, h: 5, w: 9, c: 3, m: 4, k: 7, pad: 3}\nbatch_sizes: [2]\n")
    out = tmp_path / "out"
    assert harness("--device", "cpu", "--config", own, "--runs", 1, "--out", out) == 0
    frame = read(out / "measurements.csv")
    assert set(frame["status"]) == {"ok"} and set(frame["w"]) == {9} and set(frame["k"]) == {7}


def test_a_users_file_may_not_take_the_name_of_a_sweep(tmp_path, capsys):
    own = tmp_path / "paper.yaml"
    own.write_text("layers:\n  - {name: one, hw: 5, c: 3, m: 4, k: 3, pad: 1}\nbatch_sizes: [1]\n")
    assert harness("--device", "cpu", "--config", own, "--dry-run") == 2
    assert "rename the file, or choose a folder with --out" in capsys.readouterr().err
    assert harness("--device", "cpu", "--config", own, "--runs", 1, "--out", tmp_path / "out") == 0
    assert harness("--device", "cpu", "--config", "configs/smoke.yaml", "--dry-run") == 0


def test_the_summary_of_a_folder_without_rows_says_so(tmp_path, capsys):
    with ResultsFolder(tmp_path):
        pass
    run._print_summary(tmp_path, load_sweep("smoke"), "cpu", SimpleNamespace(precision="fp32"))
    assert "0 rows" in capsys.readouterr().out


def test_a_sweep_of_errors_alone_is_no_success(tmp_path, capsys):
    own = tmp_path / "mine.yaml"
    own.write_text("layers:\n  - {name: vast, hw: 1000000000, c: 3, m: 4, k: 3, pad: 1}\nbatch_sizes: [1]\n")
    out = tmp_path / "out"
    assert harness("--device", "cpu", "--config", own, "--runs", 1, "--out", out) == 2
    told = capsys.readouterr().err
    assert "rows are errors, the first one: the case's tensors cannot be made" in told and "Traceback" not in told
    assert len(read(out / "measurements.csv")) == 4


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--algorithm", "bogus", "--dry-run"], "--algorithm bogus: the algorithms of cpu are"),
        (["--algorithm", "bogus", "--list"], "--algorithm bogus: the algorithms of cpu are"),
        (["--provider", "bogus", "--list"], "--provider bogus"),
        (["--runs", "100", "--list"], "--runs 100"),
    ],
)
def test_options_are_checked_where_nothing_is_measured(arguments, why, capsys):
    assert harness("--device", "cpu", *arguments) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_folder(name, capsys):
    with pytest.raises(SystemExit) as end:
        harness("--device", "cpu", "--out", name)
    assert end.value.code == 2 and "argument --out: it is empty: name a folder" in capsys.readouterr().err
