"""The one reader of CSV files: columns that must be there, numbers and text told apart, errors in one sentence.

A row is one line. So a line that is damaged, by a stray quotation mark for example, takes no other line with it: its
number is told, and nothing is read.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.errors import ResultsError

REMEDY = "restore or delete it"
GEOMETRY = ("stride", "dilation", "groups")  # columns that a file may lack; all are 1 then
ABSENT_GEOMETRY = dict.fromkeys(GEOMETRY, "1")


def rows_of(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file with their line numbers, the header first; empty lines are left out.

    A last line without an end is left out too: a killed run leaves one. Raises ResultsError where the file cannot be
    read, or a line is no row of as many cells as the header has.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ResultsError(f"{path} is not readable as CSV ({reason}): {REMEDY}") from None
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        if not line.strip():
            continue
        cells = _cells(path, number, line.removesuffix("\r"))
        if rows and len(cells) != len(rows[0][1]):
            raise damaged(path, number, f"{len(cells)} cells, the header has {len(rows[0][1])}")
        rows.append((number, cells))
    if not rows:
        raise ResultsError(f"{path} is not readable as CSV (it is empty): {REMEDY}")
    return rows


def _cells(path: Path, number: int, line: str) -> list[str]:
    if "\0" in line:
        raise damaged(path, number, "it has a NUL character")
    try:
        (cells,) = csv.reader([line], strict=True)
    except csv.Error as error:  # a quotation mark too many
        raise damaged(path, number, str(error)) from None
    return cells


def csv_text(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Rows below a header as the text of a CSV file, each on a line of its own."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def damaged(path: Path, number: int, reason: str) -> ResultsError:
    """The error of a file in which one line is wrong."""
    return ResultsError(f"{path} is not readable as CSV (line {number}: {reason}): mend or delete that line")


def read_csv(
    path: Path,
    columns: Sequence[str],
    *,
    text: Collection[str] = (),
    absent: Mapping[str, str] = ABSENT_GEOMETRY,
    name: str,
    remedy: str,
) -> pd.DataFrame:
    """The rows of a CSV file, with at least these columns.

    Cells of the columns in `text` are kept as they are: a text may be "nan" or "1e5". The other columns hold numbers;
    an empty cell or "nan" is NaN there. Raises ResultsError where the file is missing or is something else.

    absent: the columns that a file may lack, with the text of their cells there.
    name: what the file is called, such as "accuracy.csv". remedy: how to get it, such as "measure first with ...".
    """
    if not path.exists():
        raise ResultsError(f"{path} does not exist: {remedy}")
    (_, header), *rows = rows_of(path)
    frame = pd.DataFrame([cells for _, cells in rows], columns=header, dtype=object)
    lacking = {column: cell for column, cell in absent.items() if column in columns and column not in frame.columns}
    frame = frame.assign(**lacking)
    if missing := [column for column in columns if column not in frame.columns]:
        raise ResultsError(f"{path} lacks the column {missing[0]!r}: it is no {name} of this project")
    numbers = [number for number, _ in rows]
    for column in columns:
        frame[column] = frame[column].astype("str") if column in text else _numbers(path, frame[column], numbers)
    return frame


def _numbers(path: Path, cells: pd.Series, lines: Sequence[int]) -> pd.Series:
    cells = cells.where(~cells.isin(["", "nan"]), None)
    found = pd.to_numeric(cells, errors="coerce")
    wrong = found.isna() & cells.notna()
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        raise damaged(path, lines[at], f"{cells.iloc[at]!r} in the column {cells.name!r} is no number")
    return found
