"""The reader of CSV files: texts stay texts, numbers are numbers, and a wrong file is told in one sentence."""

import math
from dataclasses import dataclass

import pytest

from harness.errors import ResultsError
from harness.store.csv_file import csv_text
from harness.store.files import write_whole
from harness.store.table import Table


@dataclass
class Time:
    case: int
    name: str
    us: float


TIMES = Table("times", "times.csv", Time, "harness times")
COLUMNS = TIMES.columns


def read(tmp_path, text):
    path = tmp_path / "times.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return TIMES.read(path)


@pytest.mark.parametrize("name", ["nan", "", "1e5", "007", "NA", "a, b"])
def test_a_text_is_kept_as_it_is(tmp_path, name):
    assert read(tmp_path, f'case,name,us\n1,"{name}",2.5\n').name.tolist() == [name]


def test_numbers_are_numbers_and_empty_cells_are_nan(tmp_path):
    frame = read(tmp_path, "case,name,us\n1,a,2.5\n2,b,\n")
    assert frame.case.tolist() == [1, 2] and frame.case.dtype == int
    assert frame.us[0] == 2.5 and math.isnan(frame.us[1])
    assert math.isnan(read(tmp_path, "case,name,us\nnan,a,1\n").case[0])


@pytest.mark.parametrize("time", ["nan", "0", "-1.5", "inf", "-inf", "1e999", "fast"])
def test_a_time_that_no_clock_tells_reaches_no_table(tmp_path, time):
    with pytest.raises(ResultsError, match=f"line 3: '{time}' in the column 'us'"):
        read(tmp_path, f"case,name,us\n1,a,2.5\n2,b,{time}\n")


def test_a_column_that_stands_twice_is_told(tmp_path):
    with pytest.raises(ResultsError, match="'us' twice"):
        read(tmp_path, "case,name,us,us\n1,a,2.5,3.5\n")


def test_more_columns_may_follow(tmp_path):
    assert read(tmp_path, "case,name,us,more\n1,a,2.5,x\n").more.tolist() == ["x"]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("case,name,us\n", []),
        ("case,name,us", []),
        ("case,name,us\n1,a,2.5\n2,b", [2.5]),  # a killed run left half a row
        ("case,name,us\n1,a,2.5\n2,b,3.5", [2.5, 3.5]),
        ("\ufeffcase,name,us\r\n1,a,2.5\r\n\r\n", [2.5]),  # a spreadsheet wrote it
    ],
)
def test_what_ends_and_begins_a_file_is_no_row(tmp_path, text, us):
    frame = read(tmp_path, text)
    assert frame.us.tolist() == us and frame.columns.tolist() == list(COLUMNS)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is not readable as CSV", "restore or delete it"]),
        (b"\xff\xfe\x00", ["is not readable as CSV", "restore or delete it"]),
        ("case,us\n1,2\n", ["lacks the column 'name'", "no times.csv of this project"]),
        ("case,name,us\n1,a,fast\n", ["'fast' in the column 'us'", "more than 0", "delete that line"]),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path, text, parts):
    with pytest.raises(ResultsError) as error:
        read(tmp_path, text)
    told = str(error.value)
    assert told.startswith(str(tmp_path / "times.csv")) and "\n" not in told
    assert [part for part in parts if part not in told] == []


def test_a_missing_file_is_told_with_its_remedy(tmp_path):
    with pytest.raises(ResultsError, match=r"times\.csv does not exist: measure first"):
        TIMES.read(tmp_path / "times.csv")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('2,"b,3.5', "line 3: unexpected end of data"),
        ('2,"b"x,3.5', "line 3: ',' expected after '\"'"),
        ("2,b", "line 3: 2 cells, the header has 3"),
        ("2,b,3.5,4", "line 3: 4 cells, the header has 3"),
        ("2,b,fast", "line 3: 'fast' in the column 'us'"),
        ("2,\0,1", "line 3: it has a NUL character"),
    ],
)
def test_a_damaged_line_is_told_by_its_number(tmp_path, line, reason):
    with pytest.raises(ResultsError) as error:
        read(tmp_path, f'case,name,us\n1,"a, b",2.5\n{line}\n3,"c, d",4.5\n')
    assert reason in str(error.value) and "mend or delete that line" in str(error.value)


def test_what_is_written_can_be_read(tmp_path):
    rows = [[1, "a" * 200_000, 2.5], [2, "bad \udc80 byte", 3.5], [3, 'a\0b\r\n"c"', 4.5]]
    write_whole(tmp_path / "times.csv", csv_text(COLUMNS, rows))
    long, escaped, line = TIMES.read(tmp_path / "times.csv").name
    assert long.startswith("aaa") and escaped == r"bad \udc80 byte" and line == 'a b "c"'


def test_a_folder_is_no_file(tmp_path):
    (tmp_path / "times.csv").mkdir()
    with pytest.raises(ResultsError, match="is not readable as CSV"):
        TIMES.read(tmp_path / "times.csv")
