"""Hostile input at the doors of a sweep: one sentence, exit code 2, and nothing is lost."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from harness import run
from harness.sweep import session
from harness.sweep.records import read
from tests.harness import forking

SLICE = ["--device", "cpu", "--config", "smoke", "--layer", "5a_5x5red", "--batch", "1", "--runs", "2"]
SLICE += ["--algorithm", "native"]


def harness(*arguments):
    return run.main([str(argument) for argument in arguments])


def folder_of_one_row(tmp_path, monkeypatch):
    """A folder that a sweep has filled, and a harness that would fail if anything were measured."""
    assert harness(*SLICE, "--out", tmp_path) == 0
    monkeypatch.setattr(session.supervisor, "run", None)
    return tmp_path / "measurements.csv"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("5a_5x5red,1,", "5a_5x5red,1.0,"),
        ("5a_5x5red,1,", "5a_5x5red,,"),
        (",fp32,ok,", ",fp32,error,"),
        (",fp32,ok,", ",fp32,ok\0,"),
    ],
)
@pytest.mark.parametrize("options", [["--resume"], []], ids=["resumed", "begun"])
def test_a_wrong_row_is_told_before_anything_is_measured(tmp_path, monkeypatch, capsys, old, new, options):
    path = folder_of_one_row(tmp_path, monkeypatch)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    before = path.read_bytes()
    capsys.readouterr()
    assert harness(*SLICE, "--out", tmp_path, *options) == 2
    assert capsys.readouterr().err.count("\n") == 1 and path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--config", ""], "''"),
        (["--config", "n" * 300], "nnn"),
        (["--config", "/dev/zero"], "/dev/zero"),
        (["--device", "/etc"], "/etc"),
        (["--device", ""], "--device "),
        (["--net", ""], "''"),
        (["--layer", "\udcff"], "\\udcff"),
    ],
)
def test_a_hostile_value_is_one_sentence(arguments, value, capsys, tmp_path):
    assert harness("--device", "cpu", *arguments, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and value in said and not (tmp_path / "out").exists()


def test_streams_that_are_closed_cost_no_row(tmp_path):
    """A process that is spawned must not take its pipes for them."""
    line = shlex.join([sys.executable, "-m", "harness.run", *SLICE, "--out", str(tmp_path)])
    assert subprocess.run(f"{line} <&- >&- 2>&-", shell=True).returncode == 0
    assert len(read(tmp_path / "measurements.csv")) == 1


@pytest.mark.parametrize(("full", "code"), [(2, 0), (1, 2)], ids=["stderr", "stdout"])
def test_a_full_stream_costs_no_row(tmp_path, full, code):
    process = forking.started("harness.run", *SLICE, "--out", tmp_path / "out", said=tmp_path / "said", full=full)
    process.join()
    told = (tmp_path / "said").read_text()
    assert process.exitcode == code and len(read(tmp_path / "out" / "measurements.csv")) == 1
    assert "Traceback" not in told and ("No space left on device" in told) == (code == 2)


# Two commands of a user in one process.
LISTED_AND_MEASURED = """
import sys
from harness import isolation, run
isolation.START = "fork"
sys.exit(run.main([*sys.argv[3:], "--list"]) or run.main(sys.argv[3:]))
"""


def test_a_name_that_the_terminal_has_no_letter_for_is_printed_and_written(tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("layers:\n  - {name: größe, hw: 3, c: 2, m: 2, k: 1, pad: 0}\n", encoding="utf-8")
    command = [sys.executable, "-c", LISTED_AND_MEASURED, "-m", "harness.run", "--device", "cpu"]
    command += ["--config", str(own), "--algorithm", "native", "--out", str(tmp_path / "out")]
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment = os.environ | ascii_only
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and r"gr\xf6\xdfe" in done.stdout, done.stderr
    assert read(tmp_path / "out" / "measurements.csv").layers.tolist() == ["größe"]


def test_a_sweep_that_was_put_in_the_place_of_the_folder_is_told_and_stays(tmp_path, monkeypatch, capsys):
    out, moved = tmp_path / "paper", tmp_path / "moved"

    def replaced(problems, work, options):
        out.rename(moved)
        shutil.copytree(moved, out)
        (out / "measurements.csv").write_text("theirs\n")
        (out / "environment.json").write_text("theirs\n")

    monkeypatch.setattr(session.supervisor, "run", replaced)
    assert harness(*SLICE, "--out", out) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and str(out) in said and "the folder that was moved" in said
    assert {(out / name).read_text() for name in ("measurements.csv", "environment.json")} == {"theirs\n"}
