"""The folder of a sweep that somebody moves, deletes, replaces or fills with links while it is open."""

import os
import shutil
from dataclasses import replace

import pytest

from harness.errors import ResultsError
from harness.sweep.records import ResultsFolder, read
from tests.harness.sweep.test_records import COLUMNS, FAILED, ROW, cells_of, lines_of


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "moved"])
def test_a_folder_that_vanishes_is_made_again_with_all_rows(tmp_path, capsys, deleted):
    out, other = tmp_path / "paper", tmp_path / "elsewhere"
    with ResultsFolder(out) as folder:
        folder.append(ROW)
        shutil.rmtree(out) if deleted else out.rename(other)
        folder.append(replace(ROW, algorithm="auto"))
        assert lines_of(out) == [list(COLUMNS), cells_of(ROW), cells_of(replace(ROW, algorithm="auto"))], "at once"
        with pytest.raises(ResultsError, match="in use by another run"), ResultsFolder(out):
            pass
    assert len(read(out / "measurements.csv")) == 2
    assert "was moved or deleted: it is made again, with all rows" in capsys.readouterr().err


@pytest.mark.parametrize("deleted", [False, True], ids=["moved", "deleted"])
@pytest.mark.parametrize("locked", [False, True], ids=["copied there", "measured there"])
@pytest.mark.parametrize("late", [False, True], ids=["before a row", "after the last row"])
def test_a_sweep_in_the_place_of_the_folder_is_not_written_over(tmp_path, deleted, locked, late):
    out, other, finished = tmp_path / "paper", tmp_path / "elsewhere", tmp_path / "finished"
    theirs, last = replace(ROW, batch=256), replace(ROW, algorithm="auto")
    with ResultsFolder(finished) as folder:
        folder.append(theirs)
    if not locked:
        (finished / ".lock").unlink()
    before = (finished / "measurements.csv").read_bytes()
    with pytest.raises(ResultsError, match="was replaced by another folder") as error, ResultsFolder(out) as folder:
        folder.append(ROW)
        if late:
            folder.append(last)
        shutil.rmtree(out) if deleted else out.rename(other)
        finished.rename(out)
        if not late:
            folder.append(last)
    assert (out / "measurements.csv").read_bytes() == before
    assert not (out / "environment.json").exists()
    kept = tmp_path / "paper-2" if deleted else other
    assert ("paper-2" in str(error.value)) == deleted
    assert list(read(kept / "measurements.csv").algorithm) == ["two_stage", "auto"]


@pytest.mark.parametrize("what", ["lock", "file"])
def test_what_is_taken_out_of_the_folder_comes_back(tmp_path, what):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        (tmp_path / {"lock": ".lock", "file": "measurements.csv"}[what]).unlink()
        folder.append(FAILED)
        assert len(read(tmp_path / "measurements.csv")) == 2
        with pytest.raises(ResultsError, match="in use by another run"), ResultsFolder(tmp_path):
            pass


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").symlink_to(victim)
    with pytest.raises(ResultsError, match="cannot write to"), ResultsFolder(tmp_path / "out"):
        pass
    assert victim.read_text() == "precious" and os.listdir(tmp_path / "out") == [".lock"]


@pytest.mark.parametrize("name", [".lock", "measurements.csv"])
def test_a_fifo_does_not_hold_a_sweep_up(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(ResultsError, match="it is no regular file"), ResultsFolder(tmp_path):
        pass
    assert (tmp_path / name).is_fifo()
