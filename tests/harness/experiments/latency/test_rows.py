"""latency.csv: rows come back as they were written, and newer rows replace those of their group alone."""

import math

import pytest

from harness.errors import ResultsError
from harness.experiments.latency.rows import LATENCY, Latency
from harness.store.csv_file import csv_text
from harness.store.locked_folder import LockedFolder
from harness.store.table import StoredRows

ROWS = [
    Latency("size", "resnet18", "cuconv", "empty", 96, 640, 1234.56789, 12.5, 0.987654321),
    Latency("size", "resnet18", "cuconv", "empty", 97, 100, 2.0, 1.5, 1.0),
    Latency("size", "resnet18", "torch", "-", 96, 640, 20.5, 2.5, 1.5),
    Latency("start", "resnet50", "torch", "-", 224, 224, 3500.25),
]


def write(folder, *rows):
    """Write rows of latency.csv, and return its path."""
    with LockedFolder(folder) as locked:
        StoredRows(locked, [LATENCY]).add(rows, "e1")
    return folder / LATENCY.name


def test_rows_come_back_as_they_were_written(tmp_path):
    frame = LATENCY.read(write(tmp_path / "new", *ROWS))
    assert tuple(frame.columns) == LATENCY.columns and len(frame) == 4
    first = ["size", "resnet18", "cuconv", "empty", 96, 640, 1234.56789, 12.5, 0.987654321, "e1"]
    assert frame.iloc[0].to_list() == first
    assert frame.what.to_list() == ["size", "size", "size", "start"]
    assert frame.cache.to_list() == ["empty", "empty", "-", "-"]
    assert math.isnan(frame.again_ms[3]) and frame.first_ms[3] == 3500.25


def test_newer_rows_replace_all_of_their_group_and_no_others(tmp_path):
    write(tmp_path, *ROWS)
    path = write(tmp_path, Latency("size", "resnet18", "cuconv", "empty", 300, 300, 5.0, 4.5, 4.0))
    assert LATENCY.read(path).height.to_list() == [300, 96, 224]
    write(tmp_path, Latency("size", "resnet18", "cuconv", "full", 300, 300, 5.0, 4.5, 4.0))
    assert len(LATENCY.read(path)) == 4


def test_no_rows_change_nothing(tmp_path):
    assert not write(tmp_path).exists()
    write(tmp_path, *ROWS)
    assert len(LATENCY.read(write(tmp_path))) == 4


def test_another_file_of_the_name_is_refused(tmp_path):
    (tmp_path / LATENCY.name).write_text(csv_text(["batch"], [[1]]))
    with pytest.raises(ResultsError, match="has other columns than this version writes: move it away, or use --out"):
        write(tmp_path)
    with pytest.raises(ResultsError, match="lacks the column 'what'"):
        LATENCY.read(tmp_path / LATENCY.name)


def test_a_missing_file_says_what_to_run(tmp_path):
    with pytest.raises(ResultsError, match=r"measure first with 'python -m harness latency'"):
        LATENCY.read(tmp_path / LATENCY.name)
