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

from harness.store.csv_file import csv_text
from harness.store.times import COLD, at_time, hot_runs
from harness.sweep.records import Measurement, ResultsError, ResultsFolder, columns_of, read

ROW = Measurement(
    networks="googlenet;resnet50",
    layers="conv2_red;c2_1x1a",
    batch=8,
    h=56,
    w=56,
    c=64,
    m=64,
    k=1,
    pad=0,
    provider="cuconv",
    algorithm="two_stage",
    precision="fp32",
    status="ok",
    detail="rows=8, grid=12",
    workspace_bytes=0,
    rel_l2_error=3e-7,
    max_abs_error=1e-5,
    runs_us=tuple(10.0 + i for i in range(9)),
    timing="graph",
    calls_per_run=30,
    timestamp="2026-01-01T00:00:00+00:00",
    environment="abcd1234",
)
FAILED = replace(ROW, algorithm="auto", status="error", detail="out of memory", runs_us=(), rel_l2_error=None)


def lines_of(folder):
    with open(folder / "measurements.csv", newline="") as file:
        return list(csv.reader(file))


TIMED_THRICE = replace(
    ROW,
    separated_runs_us=(11.0, 13.0),
    cold_runs_us=(20.0, 21.0, 22.0),
    sm_clock_mhz=1980,
    memory_clock_mhz=3201,
    power_w=612.25,
    throttle="power_cap;thermal",
    remeasured=2,
)


COLUMNS = columns_of()


def cells_of(row):
    """A row's line in a file of nine runs."""
    return [row.cells().get(column, "") for column in COLUMNS]


def test_columns_are_the_contract():
    assert COLUMNS[:20] == (
        *("networks", "layers", "batch", "h", "w", "c", "m", "k", "pad", "stride", "dilation", "groups"),
        *("provider", "algorithm", "precision", "status", "detail", "workspace_bytes", "rel_l2_error", "max_abs_error"),
    )
    assert COLUMNS[20:30] == (*(f"run_{i}_us" for i in range(1, 10)), "mean_us")
    assert COLUMNS[30:34] == ("timing", "calls_per_run", "timestamp", "environment")
    assert COLUMNS[34:] == (
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


def test_a_row_comes_back_as_written(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder.append(FAILED)
    frame = read(tmp_path / "measurements.csv")
    ok, failed = frame.iloc[0], frame.iloc[1]
    assert ok["networks"] == "googlenet;resnet50" and ok["detail"] == "rows=8, grid=12"
    assert ok["run_9_us"] == 18.0 and ok["mean_us"] == 14.0 and ok["rel_l2_error"] == 3e-7
    assert failed["status"] == "error" and failed[["run_1_us", "mean_us", "rel_l2_error"]].isna().all()


def test_a_row_over_the_limit_has_times_or_not(tmp_path):
    over = replace(ROW, status="workspace_exceeded", detail="needs 9 bytes", workspace_bytes=9)
    with ResultsFolder(tmp_path) as folder:
        folder.append(over)
        folder.append(replace(over, algorithm="auto", runs_us=(), rel_l2_error=None, workspace_bytes=None))
    frame = read(tmp_path / "measurements.csv")
    assert frame.mean_us.isna().tolist() == [False, True] and frame.workspace_bytes[0] == 9


def test_three_times_and_the_clocks_come_back_as_written(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(TIMED_THRICE)
        folder.append(FAILED)
    frame = read(tmp_path / "measurements.csv")
    ok, failed = frame.iloc[0], frame.iloc[1]
    assert (ok["mean_us"], ok["separated_us"], ok["cold_us"]) == (14.0, 12.0, 21.0)
    assert (ok["separated_run_2_us"], ok["cold_run_3_us"]) == (13.0, 22.0)
    assert ok[["separated_run_3_us", "cold_run_4_us"]].isna().all()
    assert (ok["sm_clock_mhz"], ok["memory_clock_mhz"], ok["power_w"], ok["remeasured"]) == (1980, 3201, 612.25, 2)
    assert (ok["throttle"], failed["throttle"]) == ("power_cap;thermal", "")
    assert failed[["separated_us", "cold_us", "sm_clock_mhz", "power_w", "remeasured"]].isna().all()


@pytest.mark.parametrize("name", ["12345678", "01234567", "1234e567", "nan"])
def test_text_that_looks_like_a_number_stays_text(tmp_path, name):
    with ResultsFolder(tmp_path) as folder:
        folder.append(replace(ROW, environment=name))
    assert read(tmp_path / "measurements.csv")["environment"].tolist() == [name]


def test_rows_are_in_the_file_while_the_folder_is_open(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        assert len(lines_of(tmp_path)) == 2


def test_a_newer_row_replaces_the_older_one(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder.append(FAILED)
    with ResultsFolder(tmp_path) as folder:
        folder.append(replace(ROW, runs_us=(5.0,), timestamp="later"))
        assert len(read(tmp_path / "measurements.csv")) == 2, "even before the file is rewritten"
    assert len(lines_of(tmp_path)) == 3
    assert read(tmp_path / "measurements.csv")["mean_us"].min() == 5.0


def test_a_row_of_another_precision_stands_beside(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder.append(replace(ROW, precision="tf32", runs_us=(5.0,)))
    with ResultsFolder(tmp_path) as folder:
        folder.append(replace(ROW, precision="tf32", runs_us=(6.0,)))
    assert read(tmp_path / "measurements.csv").set_index("precision")["mean_us"].to_dict() == {
        "fp32": 14.0,
        "tf32": 6.0,
    }


def test_a_compressed_file_is_read_and_a_run_that_adds_rows_writes_it_plain(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
    plain, packed = tmp_path / "measurements.csv", tmp_path / "measurements.csv.gz"
    before = read(plain)
    subprocess.run(["gzip", plain], check=True)
    assert read(plain).equals(before) and not plain.exists()
    plain.touch()  # a run was killed before it wrote a row
    with ResultsFolder(tmp_path) as folder:
        folder.append(FAILED)
    assert plain.exists() and not packed.exists()
    assert set(read(plain).status) == {ROW.status, FAILED.status}


def test_a_file_in_both_forms_is_refused(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
    plain = tmp_path / "measurements.csv"
    subprocess.run(["gzip", "--keep", plain], check=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    both = re.escape(f"{plain} and measurements.csv.gz are both there: delete the one that is out of date")
    with pytest.raises(ResultsError, match=both):
        read(plain)
    with pytest.raises(ResultsError, match=both), ResultsFolder(tmp_path):
        pass
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_half_a_row_of_a_killed_run_is_dropped(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
    path = tmp_path / "measurements.csv"
    path.write_text(path.read_text() + "googlenet,3a_1x1,1,28,28,19")
    with ResultsFolder(tmp_path) as folder:
        assert list(folder.rows) == [ROW.key]
        folder.append(FAILED)
    assert len(read(path)) == 2


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
        with pytest.raises(ResultsError, match=r"in use by another run.*--out"), ResultsFolder(tmp_path):
            pass
    finally:
        release.set()
        other.join()
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)


def test_files_that_are_no_measurements(tmp_path):
    path = tmp_path / "measurements.csv"
    with pytest.raises(ResultsError, match="does not exist"):
        read(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ResultsError, match="lacks the column 'networks'"):
        read(path)
    with pytest.raises(ResultsError, match="other columns"), ResultsFolder(tmp_path):
        pass
    assert path.read_text() == "a,b\n1,2\n", "a foreign file is left as it was"


LINE = ",".join(["x"] * len(COLUMNS))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda lines: [*lines[:2], lines[2].replace(",", ',"', 1), *lines[3:]], "line 3: "),
        (lambda lines: [*lines[:2], lines[2] + ",1", *lines[3:]], f"line 3: {len(COLUMNS) + 1} cells"),
        (lambda lines: [*lines[:2], "", "half of a row,1,2", *lines[3:]], "line 4: 3 cells"),
        (lambda lines: [*lines, LINE], "line 8: 'x' in the column 'batch'"),
        (lambda lines: [line.replace(",ok,", ",well,") for line in lines], "line 2: 'well' in the column 'status'"),
    ],
)
def test_a_damaged_line_stops_the_next_run_and_costs_no_row(tmp_path, damage, reason):
    with ResultsFolder(tmp_path) as folder:
        for batch in range(1, 7):
            folder.append(replace(ROW, batch=batch, detail='a "plan", with commas'))
    path = tmp_path / "measurements.csv"
    damaged = "\n".join(damage(path.read_text().splitlines())) + "\n"
    path.write_text(damaged)
    with (
        pytest.raises(ResultsError, match=f"measurements.csv is not readable as CSV .*{reason}"),
        ResultsFolder(tmp_path),
    ):
        pass
    assert path.read_text() == damaged


@pytest.mark.parametrize("content", [b"\xff\xfea\x00b\x00", b"\x00" * 100 + b"\n"])
def test_what_is_no_text_stays_as_it_was(tmp_path, content):
    path = tmp_path / "measurements.csv"
    path.write_bytes(content)
    with pytest.raises(ResultsError, match="is not readable as CSV"), ResultsFolder(tmp_path):
        pass
    assert path.read_bytes() == content


def test_a_folder_in_the_place_of_the_file(tmp_path):
    (tmp_path / "measurements.csv").mkdir()
    with pytest.raises(ResultsError, match="is not readable as CSV"), ResultsFolder(tmp_path):
        pass


class FullDisk(io.FileIO):
    """A file on which nothing more can be written: not what it has taken into its buffer either."""

    def write(self, data):
        return len(data)

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_and_the_rows_before_are_kept(tmp_path):
    told = r"\(No space left on device\): the rows before are kept.*--resume"
    with pytest.raises(ResultsError, match=told), ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder._file.close()
        folder._file = FullDisk(folder.csv_path, "a")
        folder.append(FAILED)
    assert len(read(tmp_path / "measurements.csv")) == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch": "0"}, "'0' in the column 'batch': must be a whole number of at least 1"),
        ({"batch": "1.0"}, "'1.0' in the column 'batch'"),
        ({"batch": ""}, "'' in the column 'batch'"),
        ({"batch": "01"}, "'01' in the column 'batch'"),
        ({"k": "-1"}, "'-1' in the column 'k'"),
        ({"h": "9" * 21}, f"'{'9' * 21}' in the column 'h'"),
        ({"h": str(2**31)}, "'2147483648' in the column 'h'"),
        ({"c": "1.5"}, "'1.5' in the column 'c'"),
        ({"precision": "fp8"}, "'fp8' in the column 'precision': must be one of fp32, tf32"),
        ({"run_1_us": "nan"}, "'nan' in the column 'run_1_us': must be a finite number of more than 0"),
        ({"run_1_us": "0"}, "'0' in the column 'run_1_us'"),
        ({"mean_us": "-3"}, "'-3' in the column 'mean_us'"),
        ({"cold_run_2_us": "inf"}, "'inf' in the column 'cold_run_2_us'"),
        ({"mean_us": ""}, "'ok' with '' in 'mean_us'"),
        ({"status": "error"}, "'error' with '10' in 'run_1_us'"),
    ],
)
def test_rows_that_no_sweep_writes_are_told_by_both_doors(tmp_path, changes, told):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
    path = tmp_path / "measurements.csv"
    cells = dict(zip(COLUMNS, cells_of(ROW), strict=True)) | changes
    path.write_text(path.read_text() + csv_text(cells.values(), ()))
    before = path.read_text()
    for enter in (lambda: read(path), lambda: ResultsFolder(tmp_path).__enter__()):
        with pytest.raises(ResultsError, match=re.escape(f"(line 3: {told}")):
            enter()
    assert path.read_text() == before


def test_rows_of_a_contender_that_is_gone_are_left_out_by_readers_and_kept_by_writers(tmp_path, capsys):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder.append(replace(ROW, provider="magic"))
    with ResultsFolder(tmp_path) as folder:
        folder.append(FAILED)
    assert "magic" in (tmp_path / "measurements.csv").read_text()
    assert set(read(tmp_path / "measurements.csv").provider) == {ROW.provider, FAILED.provider}
    assert "1 rows of magic" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["\n", ""])
def test_a_whole_last_row_is_kept_where_its_line_has_no_end(tmp_path, ending):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder.append(FAILED)
    path = tmp_path / "measurements.csv"
    path.write_text(path.read_text().rstrip("\n") + ending)
    with ResultsFolder(tmp_path) as folder:
        assert list(folder.rows) == [ROW.key, FAILED.key]
    assert len(read(path)) == 2


def test_an_error_of_any_text_is_a_row_that_can_be_read(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(replace(FAILED, detail="not UTF-8: \udcff, " + "and so on, " * 20_000))
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
    (detail,) = read(tmp_path / "measurements.csv").query("status == 'error'").detail
    assert detail.startswith("not UTF-8: \\udcff, and so on")


GEOMETRY, LATER = ("stride", "dilation", "groups"), COLUMNS[34:]


@pytest.mark.parametrize("absent", [GEOMETRY, LATER, (*GEOMETRY, *LATER)], ids=["geometry", "times", "both"])
def test_files_of_older_versions_lack_columns_and_get_them(tmp_path, absent):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        folder.append(FAILED)
    path = tmp_path / "measurements.csv"
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame.drop(columns=list(absent)).to_csv(path, index=False)
    old = read(path)
    assert old[list(GEOMETRY)].values.tolist() == [[1, 1, 1]] * 2
    assert old[["separated_us", "cold_run_9_us", "sm_clock_mhz", "remeasured"]].isna().all(axis=None)
    assert list(old.throttle) == ["", ""] and old.mean_us[0] == 14.0
    with ResultsFolder(tmp_path) as folder:
        assert list(folder.rows) == [ROW.key, FAILED.key]
        folder.append(replace(TIMED_THRICE, algorithm="fp16x3"))
    assert lines_of(tmp_path)[:3] == [list(COLUMNS), cells_of(ROW), cells_of(FAILED)]
    assert read(path).separated_us[2] == 12.0


def test_columns_in_another_order_are_no_older_version(tmp_path):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
    path = tmp_path / "measurements.csv"
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame[[*COLUMNS[1:], COLUMNS[0]]].to_csv(path, index=False)
    before = path.read_text()
    with pytest.raises(ResultsError, match="has other columns than this version writes"), ResultsFolder(tmp_path):
        pass
    assert path.read_text() == before


MANY = replace(ROW, algorithm="winograd", runs_us=tuple(float(i) for i in range(1, 100)), cold_runs_us=(5.0, 6.0))


def test_a_disk_that_is_full_while_the_file_grows_costs_no_row(tmp_path, monkeypatch):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        write = folder._locked.write
        monkeypatch.setattr(folder._locked, "write", lambda *_: (_ for _ in ()).throw(ResultsError("full")))
        with pytest.raises(ResultsError, match="full"):
            folder.append(MANY)
        monkeypatch.setattr(folder._locked, "write", write)
        folder.append(FAILED)
        assert len(read(tmp_path / "measurements.csv")) == 3, "at once"
    assert read(tmp_path / "measurements.csv").run_99_us.max() == 99.0


@pytest.mark.parametrize("at_once", [True, False], ids=["in one sweep", "resumed"])
def test_a_row_of_99_runs_stands_beside_rows_of_nine(tmp_path, at_once):
    with ResultsFolder(tmp_path) as folder:
        folder.append(ROW)
        if at_once:
            folder.append(MANY)
    if not at_once:
        with ResultsFolder(tmp_path) as folder:
            folder.append(MANY)
    with ResultsFolder(tmp_path) as folder:
        folder.append(FAILED)
    header, *lines = lines_of(tmp_path)
    assert header == list(columns_of(99)) and {len(line) for line in lines} == {len(header)}
    nine, many, failed = (row for _, row in read(tmp_path / "measurements.csv").iterrows())
    assert (nine.run_9_us, nine.mean_us, many.run_99_us, many.mean_us) == (18.0, 14.0, 99.0, 50.0)
    assert pd.isna([nine.run_10_us, many.cold_run_3_us, failed.run_99_us]).all() and many.cold_us == 5.5
    assert hot_runs(at_time(read(tmp_path / "measurements.csv"), COLD)).loc[1].dropna().tolist() == [5.0, 6.0]
