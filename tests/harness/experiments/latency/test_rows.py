"""latency.csv: rows come back as they were written, and newer rows replace those of their group alone."""

import math
from dataclasses import astuple

import pytest

from harness.errors import ResultsError
from harness.experiments.latency.rows import COLUMNS, LATENCY, Latency
from harness.store.csv_file import csv_text
from harness.store.locked_folder import LockedFolder
from harness.store.table import GroupedRows

ROWS = [
    Latency("size", "resnet18", "cuconv", "empty", 96, 640, 1234.56789, 12.5, 0.987654321, "e1"),
    Latency("size", "resnet18", "cuconv", "empty", 97, 100, 2.0, 1.5, 1.0, "e1"),
    Latency("size", "resnet18", "torch", "-", 96, 640, 20.5, 2.5, 1.5, "e1"),
    Latency("start", "resnet50", "torch", "-", 224, 224, 3500.25, environment="e2"),
]


def write(folder, *rows):
    """Write rows of latency.csv, and return the open file."""
    with LockedFolder(folder) as locked:
        stored = GroupedRows(locked, LATENCY)
        stored.replace(map(astuple, rows))
    return stored


def test_rows_come_back_as_they_were_written(tmp_path):
    frame = LATENCY.read(write(tmp_path / "new", *ROWS).path)
    assert tuple(frame.columns) == COLUMNS and len(frame) == 4
    assert frame.iloc[0].to_list() == [
        "size",
        "resnet18",
        "cuconv",
        "empty",
        96,
        640,
        1234.56789,
        12.5,
        0.987654321,
        "e1",
    ]
    assert frame.what.to_list() == ["size", "size", "size", "start"]
    assert frame.cache.to_list() == ["empty", "empty", "-", "-"]
    assert math.isnan(frame.again_ms[3]) and frame.first_ms[3] == 3500.25


def test_newer_rows_replace_all_of_their_group_and_no_others(tmp_path):
    assert write(tmp_path, *ROWS).environments == {"e1", "e2"}
    stored = write(tmp_path, Latency("size", "resnet18", "cuconv", "empty", 300, 300, 5.0, 4.5, 4.0, "e3"))
    assert LATENCY.read(stored.path).height.to_list() == [300, 96, 224]
    assert stored.environments == {"e1", "e2", "e3"}
    write(tmp_path, Latency("size", "resnet18", "cuconv", "full", 300, 300, 5.0, 4.5, 4.0, "e3"))
    assert len(LATENCY.read(stored.path)) == 4


def test_no_rows_change_nothing(tmp_path):
    assert not write(tmp_path).path.exists()
    write(tmp_path, *ROWS)
    assert len(LATENCY.read(write(tmp_path).path)) == 4


def test_another_file_of_the_name_is_refused(tmp_path):
    (tmp_path / LATENCY.name).write_text(csv_text(["batch"], [[1]]))
    with pytest.raises(ResultsError, match="has other columns than this version writes: move it away, or use --out"):
        write(tmp_path)
    with pytest.raises(ResultsError, match="lacks the column 'what'"):
        LATENCY.read(tmp_path / LATENCY.name)


def test_a_missing_file_says_what_to_run(tmp_path):
    with pytest.raises(ResultsError, match=r"measure first with 'python -m harness\.latency' on a GPU"):
        LATENCY.read(tmp_path / LATENCY.name)
