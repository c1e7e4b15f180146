"""The reader of CSV files: texts stay texts, numbers are numbers, and a wrong file is told in one sentence."""

import math

import pytest

from harness.errors import ResultsError
from harness.results.csv_file import read_csv

COLUMNS = ("case", "name", "us")


def read(tmp_path, text):
    path = tmp_path / "times.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_csv(path, COLUMNS, text=["name"], name="times.csv", remedy="measure first")


@pytest.mark.parametrize("name", ["nan", "", "1e5", "007", "NA", "a, b"])
def test_a_text_is_kept_as_it_is(tmp_path, name):
    assert read(tmp_path, f'case,name,us\n1,"{name}",2.5\n').name.tolist() == [name]


def test_numbers_are_numbers_and_empty_cells_are_nan(tmp_path):
    frame = read(tmp_path, "case,name,us\n1,a,2.5\n2,b,\n3,c,nan\n")
    assert frame.case.tolist() == [1, 2, 3] and frame.case.dtype == int
    assert frame.us[0] == 2.5 and math.isnan(frame.us[1]) and math.isnan(frame.us[2])


def test_more_columns_may_follow(tmp_path):
    assert read(tmp_path, "case,name,us,more\n1,a,2.5,x\n").more.tolist() == ["x"]


def test_a_file_without_rows_has_the_columns(tmp_path):
    assert read(tmp_path, "case,name,us\n").columns.tolist() == list(COLUMNS)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["is not readable as CSV", "restore or delete it"]),
        (b"\xff\xfe\x00", ["is not readable as CSV", "restore or delete it"]),
        ("case,us\n1,2\n", ["lacks the column 'name'", "no times.csv of this project"]),
        ("case,name,us\n1,a,fast\n", ["'fast' in the column 'us' is no number", "restore or delete it"]),
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
        read_csv(tmp_path / "times.csv", COLUMNS, name="times.csv", remedy="measure first")
