"""All steps of the evidence: commands that exist, each run once, with a GPU of its own or shared by all."""

import os

import pytest

from harness import evidence
from harness.__main__ import VERBS
from harness.command import verb
from harness.evidence import STEPS, Ended, Step, measure

# Fails where another process has the same GPU, and notes the GPU.
ALONE = """
import os, sys, time
folder, name = sys.argv[1:]
lock = os.path.join(folder, "gpu" + os.environ["CUDA_VISIBLE_DEVICES"])
os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
time.sleep(0.1)
os.unlink(lock)
open(os.path.join(folder, name), "x").close()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for logs, and commands that are Python programs: those in a step's words."""
    monkeypatch.setattr(evidence, "FOLDER", tmp_path / "logs")
    monkeypatch.setattr(evidence, "words_of", lambda step, processes=0: ["python", "-c", *step.words])
    return tmp_path


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_is_a_command(step, capsys):
    words = [word for word in step.words if word != "--resume"]
    assert verb("harness", VERBS, [*words, "--dry-run"]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_experiments_have_a_gpu_each_and_those_of_a_folder_take_turns(folder):
    steps = [Step(f"{kind}{i}", 1, (ALONE, str(folder), f"{kind}{i}"), kind) for kind in "abc" for i in range(3)]
    ended = []
    assert measure(steps, 2, 4, ended.append) == []
    assert sorted(ended) == steps and {f"{kind}{i}" for kind in "abc" for i in range(3)} <= {*os.listdir(folder)}


def test_a_step_that_fails_keeps_no_other_from_running_and_is_tried_again(folder):
    good, bad = Step("good", 1, ("print(1)",)), Step("bad", 1, ("import sys; sys.exit('lost')",))
    other = Step("other", 1, ("print(2)",), "others")
    facts = {"gpu": "a GPU", "code": "1"}
    ended = Ended(evidence.FOLDER, facts)
    assert measure([bad, good, other], 1, 1, ended.add) == [bad]
    assert "lost" in evidence.log_of(bad).read_text()
    again = Ended(evidence.FOLDER, facts)
    assert [again.has(step) for step in (good, bad, other)] == [True, False, True]
    assert not Ended(evidence.FOLDER, facts | {"code": "2"}).has(good)


def test_all_gpus_share_a_sweep():
    sweep = next(step for step in STEPS if not step.folder)
    words = evidence.words_of(sweep, 8)
    assert words[words.index("--nproc-per-node") + 1] == "8" and words[-len(sweep.words) :] == [*sweep.words]


def test_a_step_that_does_not_exist_is_refused(capsys):
    assert evidence.main(["--only", "paper-fp23"]) == 2
    assert "paper-fp23" in capsys.readouterr().err


def test_a_dry_run_prints_what_was_asked_for(capsys):
    assert evidence.main(["--dry-run", "--only", "copies", "vae-fp32"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["vae-fp32", "copies"]
