"""The steps of the evidence: commands that exist, each run once, shared by all GPUs, with one of its own, or alone."""

from importlib import import_module

import pytest

from harness import evidence
from harness.__main__ import VERBS
from harness.command import verb
from harness.evidence import STEPS, Ended, Step, measure
from harness.store import environment

FACTS = {"gpu": "a GPU", "code": "1"}
# A step that fails where another has the same GPU or folder, or where it is to be alone and is not; it notes its name.
WORKS = """
import os, sys, time
folder, name, kind, alone = sys.argv[1:]
gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
locks = [os.path.join(folder, "lock-" + what) for what in ("gpu" + gpu, kind)]
if alone == "True":
    assert not [one for one in os.listdir(folder) if one.startswith("lock-")]
for lock in locks:
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
time.sleep(0.1)
for lock in locks:
    os.unlink(lock)
with open(os.path.join(folder, "done"), "a") as done:
    print(name, gpu, file=done)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The project's folder, and commands that are Python programs: those in a step's words."""
    monkeypatch.setattr(evidence, "FOLDER", tmp_path / "build" / "evidence")
    monkeypatch.setattr(evidence, "command_of", lambda step, processes, gpus: ["python", "-c", *step.words])
    monkeypatch.setattr(evidence.environment, "ROOT", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("a", "b", "c", "others"):
        (tmp_path / "results" / "a-gpu" / name).mkdir(parents=True)
    return tmp_path


def works(folder, name, kind="", alone=False):
    return Step(name, 1, (WORKS, str(folder), name, kind, str(alone)), kind, shared=not kind, alone=alone)


def done(folder):
    """The steps that have worked, in order, each with its GPU."""
    return [tuple(line.split()) for line in (folder / "done").read_text().splitlines()]


def ended(**facts):
    return Ended(evidence.FOLDER, FACTS | facts, "a-gpu")


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_is_a_command_and_fills_the_folder_that_it_names(step, capsys):
    words = [word for word in step.words if word != "--resume"]
    assert verb("harness", VERBS, [*words, "--dry-run"]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out
    if step.folder:
        assert import_module(VERBS[step.words[0]][0]).EXPERIMENT.tables[0].folder == step.folder


def test_sweeps_come_first_and_experiments_have_a_gpu_and_a_folder_for_themselves(folder):
    experiments = [works(folder, f"{kind}{i}", kind) for kind in "abc" for i in range(3)]
    alone = [works(folder, "alone", "others", alone=True)]
    sweeps = [works(folder, "first"), works(folder, "second")]
    assert measure([*alone, *experiments, *sweeps], ["2", "GPU-3"], 4, ended()) == []
    names = [name for name, _ in done(folder)]
    assert names[:2] == ["first", "second"] and names[-1] == "alone"
    assert sorted(names[2:-1]) == [step.name for step in experiments]
    assert {gpu for _, gpu in done(folder)[2:]} == {"2", "GPU-3"}


def test_the_gpus_are_those_that_the_process_sees(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,9")  # there is no GPU 9
    assert environment.visible_gpus() == ["2", "3"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert environment.visible_gpus() == ["0", "1"]


def test_a_step_that_fails_keeps_no_other_from_running_and_is_tried_again(folder):
    good, bad, sweep = (
        works(folder, "good", "a"),
        Step("bad", 1, ("import sys; sys.exit('lost')",), "a"),
        works(folder, "s"),
    )
    assert measure([bad, good, sweep], ["0"], 1, ended()) == ["bad"]
    assert "lost" in evidence.log_of(bad).read_text()
    assert [ended().has(step) for step in (good, bad, sweep)] == [True, False, False]
    assert not ended(code="2").has(good) and not ended().has(good._replace(words=("other",)))
    (folder / "results" / "a-gpu" / "a").rmdir()
    assert not ended().has(good)


def test_the_command_leaves_out_what_has_ended_and_tells_what_failed(folder, monkeypatch, capsys):
    steps = (works(folder, "good", "a"), Step("bad", 1, ("import sys; sys.exit(3)",), "b"))
    monkeypatch.setattr(evidence, "STEPS", steps)
    monkeypatch.setattr(evidence, "DRAWING", ())
    monkeypatch.setattr(evidence.environment, "visible_gpus", lambda: ["0"])
    for name, value in (("current_gpu", None), ("report", FACTS), ("device_slug", "a-gpu")):
        monkeypatch.setattr(evidence.environment, name, lambda *_, value=value: value)
    for _ in range(2):
        assert evidence.main([]) == 2
        assert "bad" in capsys.readouterr().err
    assert len(done(folder)) == 1


def test_all_gpus_share_sweeps_and_whole_networks():
    for step in STEPS:
        words = evidence.command_of(step, 32, 4)
        if not step.folder:
            assert words[words.index("--nproc-per-node") + 1] == "32" and words[-len(step.words) :] == [*step.words]
        assert step.shared == (not step.folder or step.folder == "networks")
        assert (words[-2:] == ["--gpus", "4"]) == (step.folder == "networks")


def test_a_step_that_does_not_exist_is_refused(capsys):
    assert evidence.main(["--only", "paper-fp23"]) == 2
    assert "paper-fp23" in capsys.readouterr().err


def test_a_dry_run_prints_what_was_asked_for(capsys):
    assert evidence.main(["--dry-run", "--only", "copies", "vae-fp32"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["vae-fp32", "copies"]
