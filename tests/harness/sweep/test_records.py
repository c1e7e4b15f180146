"""measurements.csv: what a row may hold, and a folder that loses nothing."""

import csv
import errno
import io
import multiprocessing
import os
import re
import subprocess
from dataclasses import replace

import pandas as pd
import pytest

from harness.errors import ResultsError
from harness.store.csv_file import csv_text
from harness.store.times import COLD, at_time, hot_runs
from harness.sweep.records import CSV, MEASUREMENTS, Measurement, ResultsFolder, read

ROW = Measurement(
    networks="googlenet;resnet50", layers="conv2_red;c2_1x1a", batch=8, h=56, w=56, c=64, m=64, k=1, pad=0,
    kw=1, pad_w=0, provider="cuconv", algorithm="two_stage", precision="fp32", status="ok", detail="rows=8, grid=12",
    workspace_bytes=0, rel_l2_error=3e-7, max_abs_error=1e-5, runs_us=tuple(10.0 + i for i in range(9)),
    timing="graph", calls_per_run=30, timestamp="2026-01-01T00:00:00+00:00", environment="abcd1234",
)  # fmt: skip
FAILED = replace(ROW, algorithm="auto", status="error", detail="out of memory", runs_us=(), rel_l2_error=None)
OVER = replace(ROW, status="workspace_exceeded", detail="needs 9 bytes", workspace_bytes=9)
TIMED_THRICE = replace(
    ROW, algorithm="fp16x3", separated_runs_us=(11.0, 13.0), cold_runs_us=(20.0, 21.0, 22.0), sm_clock_mhz=1980,
    memory_clock_mhz=3201, power_w=612.25, throttle="power_cap;thermal", remeasured=2,
)  # fmt: skip
MANY = replace(ROW, algorithm="winograd", runs_us=tuple(float(i) for i in range(1, 100)), cold_runs_us=(5.0, 6.0))
COLUMNS = MEASUREMENTS.columns


def write(path, *rows):
    """Add rows to the results folder `path`, and return its file."""
    with ResultsFolder(path) as folder:
        for row in rows:
            folder.append(row)
    return path / CSV


def lines_of(folder):
    with open(folder / CSV, newline="") as file:
        return list(csv.reader(file))


def cells_of(row):
    """A row's line in a file of nine runs."""
    return [MEASUREMENTS.cells(row).get(column, "") for column in COLUMNS]


def is_refused(path, told, reader=True):
    """Whether readers and writers tell what is wrong with a file, which stays as it is."""
    before = path.read_bytes() if path.is_file() else None
    for enter in (lambda: read(path), lambda: ResultsFolder(path.parent))[0 if reader else 1 :]:
        with pytest.raises(ResultsError, match=re.escape(told)):
            enter()
    return before == (path.read_bytes() if path.is_file() else None)


def test_columns_are_the_contract():
    assert COLUMNS[:22] == (
        *("networks", "layers", "batch", "h", "w", "c", "m", "k", "pad", "stride", "dilation", "groups", "kw", "pad_w"),
        *("provider", "algorithm", "precision", "status", "detail", "workspace_bytes", "rel_l2_error", "max_abs_error"),
    )
    assert COLUMNS[22:32] == (*(f"run_{i}_us" for i in range(1, 10)), "mean_us")
    assert COLUMNS[32:36] == ("timing", "calls_per_run", "timestamp", "environment")
    assert COLUMNS[36:] == (
        *(*(f"separated_run_{i}_us" for i in range(1, 10)), "separated_us"),
        *(*(f"cold_run_{i}_us" for i in range(1, 10)), "cold_us"),
        *("sm_clock_mhz", "memory_clock_mhz", "power_w", "throttle", "remeasured"),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"status": "fine"},
        {"runs_us": ()},
        {"rel_l2_error": None},
        {"runs_us": (1.0,) * 100},
        {"status": "incorrect", "detail": "error 2"},
        {"status": "error", "detail": "", "runs_us": ()},
        {"cold_runs_us": (1.0,) * 100},
        {"status": "incorrect", "runs_us": (), "separated_runs_us": (1.0,)},
        {"status": "workspace_exceeded", "detail": "needs 9 bytes", "separated_runs_us": (1.0,)},
        {"status": "workspace_exceeded", "detail": "needs 9 bytes", "rel_l2_error": None},
        {"status": "workspace_exceeded", "detail": ""},
        {"runs_us": (1.0, 0.0)},
        {"runs_us": (float("nan"),)},
        {"cold_runs_us": (-1.0,)},
        {"separated_runs_us": (float("inf"),)},
    ],
    ids=str,
)
def test_a_row_cannot_contradict_itself(change):
    with pytest.raises(ValueError):
        replace(ROW, **change)


LONG = "and so on, " * 20_000
NO_TIMES = dict.fromkeys(["run_1_us", "mean_us", "separated_us", "cold_us", "sm_clock_mhz", "power_w", "remeasured"])


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (ROW, {"networks": "googlenet;resnet50", "detail": "rows=8, grid=12", "run_9_us": 18.0, "mean_us": 14.0}),
        (ROW, {"rel_l2_error": 3e-7, "workspace_bytes": 0}),
        (FAILED, {"status": "error", "rel_l2_error": None, "throttle": "", **NO_TIMES}),
        (OVER, {"mean_us": 14.0, "workspace_bytes": 9}),
        (replace(OVER, runs_us=(), rel_l2_error=None, workspace_bytes=None), {"mean_us": None}),
        (TIMED_THRICE, {"mean_us": 14.0, "separated_us": 12.0, "cold_us": 21.0}),
        (TIMED_THRICE, {"separated_run_2_us": 13.0, "cold_run_3_us": 22.0}),
        (TIMED_THRICE, {"separated_run_3_us": None, "cold_run_4_us": None}),
        (TIMED_THRICE, {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "power_w": 612.25, "remeasured": 2}),
        (TIMED_THRICE, {"throttle": "power_cap;thermal"}),
        *((replace(ROW, environment=x), {"environment": x}) for x in ("12345678", "01234567", "1234e567", "nan")),
        (replace(FAILED, detail="not UTF-8: \udcff"), {"detail": r"not UTF-8: \udcff"}),
        (replace(FAILED, detail=LONG), {"detail": f"{LONG[:9997]}..."}),
    ],
    ids=lambda value: "" if isinstance(value, Measurement) else str(value)[:40],
)
def test_a_row_comes_back_as_written(tmp_path, row, expected):
    write(tmp_path, row)
    row = read(write(tmp_path, replace(ROW, batch=1))).iloc[0]
    assert {column: None if pd.isna(row[column]) else row[column] for column in expected} == expected


def test_rows_are_in_the_file_while_the_folder_is_open(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        assert len(lines_of(tmp_path)) == 2


def test_a_newer_row_replaces_the_older_one(tmp_path):
    in_tf32 = replace(ROW, precision="tf32", runs_us=(6.0,))
    path = write(tmp_path, ROW, FAILED, in_tf32)
    with ResultsFolder(tmp_path) as folder:
        folder.append(replace(ROW, runs_us=(5.0,), timestamp="later"))
        assert read(path).mean_us.dropna().tolist() == [6.0, 5.0], "even before the file is rewritten"
    assert len(lines_of(tmp_path)) == 4
    assert read(path).mean_us.dropna().tolist() == [5.0, 6.0]


def test_a_compressed_file_is_read_and_a_run_that_adds_rows_writes_it_plain(tmp_path):
    plain, packed = write(tmp_path, ROW), tmp_path / f"{CSV}.gz"
    before = read(plain)
    subprocess.run(["gzip", plain], check=True)
    assert read(plain).equals(before) and not plain.exists()
    plain.touch()  # a run was killed before it wrote a row
    write(tmp_path, FAILED)
    assert plain.exists() and not packed.exists()
    assert set(read(plain).status) == {ROW.status, FAILED.status}


def test_a_file_in_both_forms_is_refused(tmp_path):
    plain = write(tmp_path, ROW)
    subprocess.run(["gzip", "--keep", plain], check=True)
    packed = (tmp_path / f"{CSV}.gz").read_bytes()
    assert is_refused(plain, f"{plain} and {CSV}.gz are both there: delete the one that is out of date")
    assert packed == (tmp_path / f"{CSV}.gz").read_bytes()


@pytest.mark.parametrize(("cut", "kept"), [(0, 2), (1, 2), (40, 1)], ids=["none", "the line end", "half of a row"])
def test_of_a_killed_run_only_half_a_row_is_dropped(tmp_path, cut, kept):
    path = write(tmp_path, ROW, FAILED)
    os.truncate(path, path.stat().st_size - cut)
    assert len(read(path)) == kept
    with ResultsFolder(tmp_path) as folder:
        assert list(folder.rows) == [ROW.key, FAILED.key][:kept]
        folder.append(TIMED_THRICE)
    assert len(read(path)) == kept + 1


def hold(folder, held, release):
    with ResultsFolder(folder):
        held.set()
        release.wait(30)


def test_a_second_writer_is_refused(tmp_path):
    context = multiprocessing.get_context("forkserver")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path, held, release))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(ResultsError, match=r"in use by another run.*--out"):
            ResultsFolder(tmp_path)
    finally:
        release.set()
        other.join()
    write(tmp_path, ROW)


def test_a_missing_file_is_told_with_its_remedy(tmp_path):
    with pytest.raises(ResultsError, match=r"does not exist: measure first with 'python -m harness\.run'"):
        read(tmp_path / CSV)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(",", ',"', 1), *lines[3:]], "(line 3: "),
        (lambda lines: [*lines[:2], lines[2] + ",1", *lines[3:]], f"(line 3: {len(COLUMNS) + 1} cells"),
        (lambda lines: [*lines[:2], "", "half of a row,1,2", *lines[3:]], "(line 4: 3 cells"),
        (lambda lines: [*lines, ",".join(["x"] * len(COLUMNS))], "(line 8: 'x' in the column 'batch'"),
        (lambda lines: ["a,b", "1,2"], " column"),
        (lambda lines: ["\xff\0"], "is not readable as CSV"),
        (lambda lines: ["\0" * 100], "is not readable as CSV"),
    ],
)
def test_a_wrong_file_stops_the_next_run_and_costs_no_row(tmp_path, damage, told):
    path = write(tmp_path, *(replace(ROW, batch=batch, detail='a "plan", with commas') for batch in range(1, 7)))
    path.write_text("\n".join(damage(path.read_text().splitlines())) + "\n", encoding="latin-1")
    assert is_refused(path, told)


def test_a_folder_in_the_place_of_the_file(tmp_path):
    (tmp_path / CSV).mkdir()
    assert is_refused(tmp_path / CSV, "is not readable as CSV")


@pytest.mark.parametrize(
    ("column", "cell", "told"),
    [
        ("batch", "0", ": must be a whole number of at least 1"),
        ("batch", "1.0", ""),
        ("batch", "", ""),
        ("batch", "01", ""),
        ("k", "-1", ""),
        ("kw", "0", ""),
        ("pad_w", "", ": must be a whole number of at least 0"),
        ("h", "9" * 21, ""),
        ("h", str(2**31), ""),
        ("c", "1.5", ""),
        ("precision", "fp8", ": must be one of fp32, tf32"),
        ("status", "well", ": must be one of ok, "),
        ("status", "error", ": must be one that fits the times"),
        ("run_1_us", "nan", ": must be a finite number of more than 0"),
        ("run_1_us", "0", ""),
        ("mean_us", "-3", ""),
        ("cold_run_2_us", "inf", ""),
    ],
)
def test_a_cell_that_no_sweep_writes_is_told_by_readers_and_writers(tmp_path, column, cell, told):
    path = write(tmp_path, ROW)
    cells = dict(zip(COLUMNS, cells_of(ROW), strict=True)) | {column: cell}
    path.write_text(path.read_text() + csv_text(cells.values(), ()))
    assert is_refused(path, f"(line 3: {cell!r} in the column {column!r}{told}")


def test_a_row_that_is_ok_must_have_a_mean(tmp_path):
    path = write(tmp_path, ROW)
    path.write_text(path.read_text().replace(",14,graph", ",,graph"))
    assert is_refused(path, "(line 2: 'ok' in the column 'status': must be one that fits the times")


class FullDisk(io.FileIO):
    """A file on which nothing more can be written: not what it has taken into its buffer either."""

    def write(self, data):
        return len(data)

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_and_no_row_is_lost_once_there_is_space(tmp_path):
    told = r"\(No space left on device\): the rows before are kept.*--resume"
    with pytest.raises(ResultsError, match=told), ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder._file.close()
        folder._file = FullDisk(folder.csv_path, "a")
        with pytest.raises(ResultsError, match=told):
            folder.append(FAILED)
        assert len(read(tmp_path / CSV)) == 1
        folder.append(TIMED_THRICE)
    assert len(read(tmp_path / CSV)) == 3


def test_rows_of_a_contender_that_is_gone_are_left_out_by_readers_and_kept_by_writers(tmp_path, capsys):
    write(tmp_path, ROW, replace(ROW, provider="magic"))
    path = write(tmp_path, FAILED)
    assert "magic" in path.read_text()
    assert set(read(path).provider) == {ROW.provider, FAILED.provider}
    assert "1 rows of magic" in capsys.readouterr().err


GEOMETRY, SECOND, LATER = ("stride", "dilation", "groups"), ("kw", "pad_w"), COLUMNS[36:]


@pytest.mark.parametrize(
    "absent", [GEOMETRY, SECOND, LATER, (*GEOMETRY, *SECOND, *LATER)], ids=["geometry", "second", "times", "all"]
)
def test_files_of_older_versions_lack_columns_and_get_them(tmp_path, absent):
    path = write(tmp_path, ROW, FAILED)
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame.drop(columns=list(absent)).to_csv(path, index=False)
    old = read(path)
    assert old[list(GEOMETRY)].values.tolist() == [[1, 1, 1]] * 2
    assert old[["k", "pad", *SECOND]].values.tolist() == [[1, 0, 1, 0]] * 2
    assert old[["separated_us", "cold_run_9_us", "sm_clock_mhz", "remeasured"]].isna().all(axis=None)
    assert list(old.throttle) == ["", ""] and old.mean_us[0] == 14.0
    with ResultsFolder(tmp_path) as folder:
        assert list(folder.rows) == [ROW.key, FAILED.key]
        folder.append(TIMED_THRICE)
    assert lines_of(tmp_path)[:3] == [list(COLUMNS), cells_of(ROW), cells_of(FAILED)]
    assert read(path).separated_us[2] == 12.0


def test_rows_of_oblong_filters_stand_beside_those_of_an_older_version(tmp_path):
    path = write(tmp_path, ROW)
    pd.read_csv(path, dtype=str, keep_default_na=False).drop(columns=list(SECOND)).to_csv(path, index=False)
    filters = [(1, 1, 0, 0), (1, 7, 0, 3), (7, 1, 3, 0)]  # of the first, the older row is replaced
    rows = [replace(ROW, k=k, kw=kw, pad=pad, pad_w=pad_w) for k, kw, pad, pad_w in filters]
    write(tmp_path, *rows)
    assert lines_of(tmp_path) == [list(COLUMNS), *map(cells_of, rows)]
    assert list(read(path)[["k", "kw", "pad", "pad_w"]].itertuples(index=False, name=None)) == filters


def test_columns_in_another_order_are_no_older_version(tmp_path):
    path = write(tmp_path, ROW)
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame[[*COLUMNS[1:], COLUMNS[0]]].to_csv(path, index=False)
    assert is_refused(path, "has other columns than this version writes", reader=False)


def test_a_disk_that_is_full_while_the_file_grows_costs_no_row(tmp_path, monkeypatch):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        with monkeypatch.context() as full:
            full.setattr(folder, "write", lambda *_: (_ for _ in ()).throw(ResultsError("full")))
            with pytest.raises(ResultsError, match="full"):
                folder.append(MANY)
        folder.append(FAILED)
        assert len(read(tmp_path / CSV)) == 3, "at once"
    assert read(tmp_path / CSV).run_99_us.max() == 99.0


@pytest.mark.parametrize("sweeps", [[[ROW, MANY], [FAILED]], [[ROW], [MANY], [FAILED]]], ids=["at once", "resumed"])
def test_a_row_of_99_runs_stands_beside_rows_of_nine(tmp_path, sweeps):
    for rows in sweeps:
        path = write(tmp_path, *rows)
    header, *lines = lines_of(tmp_path)
    assert header == list(replace(MEASUREMENTS, runs=99).columns) and {len(line) for line in lines} == {len(header)}
    nine, many, failed = (row for _, row in read(path).iterrows())
    assert (nine.run_9_us, nine.mean_us, many.run_99_us, many.mean_us) == (18.0, 14.0, 99.0, 50.0)
    assert pd.isna([nine.run_10_us, many.cold_run_3_us, failed.run_99_us]).all() and many.cold_us == 5.5
    assert hot_runs(at_time(read(path), COLD)).loc[1].dropna().tolist() == [5.0, 6.0]
