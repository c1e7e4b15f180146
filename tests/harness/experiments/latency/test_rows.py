"""latency.csv: rows come back as they were written, and newer rows replace those of their group alone."""

import math

import pytest

from harness.errors import ResultsError
from harness.experiments.latency.rows import COLUMNS, CSV, Latency, LatencyFile, read
from harness.store.csv_file import csv_text

ROWS = [
    Latency("size", "resnet18", "cuconv", "empty", 96, 640, 1234.56789, 12.5, 0.987654321, "e1"),
    Latency("size", "resnet18", "cuconv", "empty", 97, 100, 2.0, 1.5, 1.0, "e1"),
    Latency("size", "resnet18", "torch", "-", 96, 640, 20.5, 2.5, 1.5, "e1"),
    Latency("start", "resnet50", "torch", "-", 224, 224, 3500.25, environment="e2"),
]


def test_rows_come_back_as_they_were_written(tmp_path):
    LatencyFile(tmp_path / "new").replace(ROWS)
    frame = read(tmp_path / "new" / CSV)
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
    LatencyFile(tmp_path).replace(ROWS)
    file = LatencyFile(tmp_path)
    assert file.environments == {"e1", "e2"}
    file.replace([Latency("size", "resnet18", "cuconv", "empty", 300, 300, 5.0, 4.5, 4.0, "e3")])
    frame = read(file.path)
    assert frame.height.to_list() == [96, 224, 300]
    assert file.environments == {"e1", "e2", "e3"}
    file.replace([Latency("size", "resnet18", "cuconv", "full", 300, 300, 5.0, 4.5, 4.0, "e3")])
    assert len(read(file.path)) == 4


def test_no_rows_change_nothing(tmp_path):
    LatencyFile(tmp_path / "none").replace([])
    assert not (tmp_path / "none").exists()
    LatencyFile(tmp_path).replace(ROWS)
    LatencyFile(tmp_path).replace([])
    assert len(read(tmp_path / CSV)) == 4


def test_another_file_of_the_name_is_refused(tmp_path):
    (tmp_path / CSV).write_text(csv_text(["batch"], [[1]]))
    with pytest.raises(ResultsError, match="has other columns than this version writes: move it away, or use --out"):
        LatencyFile(tmp_path)
    with pytest.raises(ResultsError, match="lacks the column 'what'"):
        read(tmp_path / CSV)


def test_a_missing_file_says_what_to_run(tmp_path):
    with pytest.raises(ResultsError, match=r"measure first with 'python -m harness\.latency' on a GPU"):
        read(tmp_path / CSV)
