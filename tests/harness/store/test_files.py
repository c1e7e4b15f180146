"""Files that are written whole: the old one stays until the new one is there."""

import errno
import gzip
import os

import pytest

from harness.errors import ResultsError
from harness.store.files import inflated, read_json, read_regular, write_whole


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


def test_a_link_in_the_place_of_the_new_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a.csv.new").symlink_to(victim)
    write_whole(tmp_path / "a.csv", "text")
    assert victim.read_text() == "precious" and (tmp_path / "a.csv").read_text() == "text"
    assert not (tmp_path / "a.csv").is_symlink() and not (tmp_path / "a.csv.new").is_symlink()


def test_a_text_is_utf_8_and_a_lone_surrogate_its_escape(tmp_path):
    write_whole(tmp_path / "a.txt", "größe \udc80")
    assert read_regular(tmp_path / "a.txt") == b"gr\xc3\xb6\xc3\x9fe \\udc80"


def no_file(tmp_path, kind):
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["fifo", "folder", "device"])
def test_what_is_no_regular_file_is_not_read(tmp_path, kind):
    with pytest.raises(OSError, match="no regular file"):
        read_regular(no_file(tmp_path, kind))
    with pytest.raises(ResultsError, match=r"cannot be read \(it is no regular file\): delete it"):
        read_json(tmp_path / kind, "delete it")


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "\udcff", ""])
def test_what_is_no_json_is_one_sentence(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ResultsError, match=r"^[^\n]*a\.json cannot be read \([^\n]*\): delete it$"):
        read_json(path, "delete it")


def test_a_compressed_file_may_have_several_members_and_be_cut_off():
    whole = gzip.compress(b"one\n") + gzip.compress(b"two\n" * 1000)
    assert inflated(whole) == b"one\n" + b"two\n" * 1000
    cut = inflated(whole[:-9])
    assert cut.startswith(b"one\ntwo\n")
