"""Files that are written whole: the old one stays until the new one is there."""

import errno
import os

import pytest

from harness.errors import ResultsError
from harness.store.files import write_whole


def full_disk(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_folders_are_made(tmp_path):
    write_whole(tmp_path / "a" / "b.txt", "text\n")
    assert (tmp_path / "a" / "b.txt").read_text() == "text\n"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "page.md"
    path.write_text("old\n")
    monkeypatch.setattr(os, step, full_disk)
    with pytest.raises(
        ResultsError, match=r"cannot write .*page\.md \(No space left on device\), which stays as it was"
    ):
        write_whole(path, "new\n")
    assert path.read_text() == "old\n" and os.listdir(tmp_path) == ["page.md"]


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot write"):
        write_whole(tmp_path / "file" / "a.csv", "")
    assert (tmp_path / "file").read_text() == ""
