"""The text of CSV files: its lines, what their cells may hold, and errors in one sentence.

A row is one line. So a line that is damaged, by a stray quotation mark for example, takes no other line with it: its
number is told, and nothing is read.
"""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

import pandas as pd

from harness.errors import ResultsError
from harness.store.files import inflated, read_regular, stored

REMEDY = "restore or delete it"
GEOMETRY = ("stride", "dilation", "groups")  # columns that a file may lack; all are 1 then
# Without the columns kw and pad_w, all filters of a file and their padding are square.
ABSENT_GEOMETRY = dict.fromkeys(GEOMETRY, "1") | {"kw": itemgetter("k"), "pad_w": itemgetter("pad")}
DIGITS = 9  # significant digits of a written number
LONGEST = 10_000  # characters in a written cell; Python's reader takes 131072


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a column's cells. `holds` takes a frame of texts and the column, and returns which cells are right."""

    allowed: str  # it ends the sentence "X in the column Y: must be ..."
    holds: Callable[[pd.DataFrame, str], pd.Series]


def whole_number(least: int) -> Rule:
    """The rule of a size, written without sign, point and leading zeros: equal sizes are equal texts."""

    def holds(frame: pd.DataFrame, column: str) -> pd.Series:
        written = frame[column].str.fullmatch("0|[1-9][0-9]{0,9}")
        return written & pd.to_numeric(frame[column].where(written, "-1")).between(least, 2**31 - 1)

    return Rule(f"a whole number of at least {least} and at most {2**31 - 1}", holds)


def one_of(values: Sequence[str]) -> Rule:
    """The rule of a column of names."""
    return Rule(f"one of {', '.join(values)}", lambda frame, column: frame[column].isin(values))


def _is_positive(frame: pd.DataFrame, column: str) -> pd.Series:
    found = pd.to_numeric(frame[column], errors="coerce")
    return frame[column].eq("") | (found.gt(0) & found.lt(float("inf")))


def _is_number(frame: pd.DataFrame, column: str) -> pd.Series:
    return frame[column].isin(["", "nan"]) | pd.to_numeric(frame[column], errors="coerce").notna()


_NO_PART_OF_A_LINE = re.compile("[\0\r\n]+")
_POSITIVE = Rule("a finite number of more than 0, or empty", _is_positive)
_NUMBER = Rule("a number, or empty", _is_number)
_MORE_THAN_0 = re.compile("(.*_)?(us|ms)|mj_per_image")  # the names of such fields


def rule_of(name: str) -> Rule:
    """The rule of a field of numbers, where it has no other; times and energies are more than 0."""
    return _POSITIVE if _MORE_THAN_0.fullmatch(name) else _NUMBER


def rows_of(path: Path, remedy: str = REMEDY) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file with their line numbers, the header first; empty lines are left out.

    A last line without an end is left out too unless it is a whole row: a killed run leaves one. Raises ResultsError
    where the file cannot be read, two columns have one name, or a line is no row of as many cells as the header has.

    remedy: what to do where there is no file. A file called ....gz, or stored as such, is compressed.
    """
    path = stored(path)
    try:
        content = read_regular(path)
        text = (inflated(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except FileNotFoundError:
        raise ResultsError(f"{path} does not exist: {remedy}") from None
    except zlib.error:
        raise ResultsError(f"{path} is not readable as CSV (it is no gzip file): {REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ResultsError(f"{path} is not readable as CSV ({reason}): {REMEDY}") from None
    rows: list[tuple[int, list[str]]] = []
    *lines, last = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        cells = _cells(path, number, line.removesuffix("\r"))
        if rows and len(cells) != len(rows[0][1]):
            raise damaged(path, number, f"{len(cells)} cells, the header has {len(rows[0][1])}")
        rows.append((number, cells))
    if (cells := _unended(path, len(lines) + 1, last)) and (not rows or len(cells) == len(rows[0][1])):
        rows.append((len(lines) + 1, cells))
    if not rows:
        raise ResultsError(f"{path} is not readable as CSV (it is empty): {REMEDY}")
    header = rows[0][1]
    if twice := [column for column in header if header.count(column) > 1]:
        raise ResultsError(f"{path} is not readable as CSV (it has the column {twice[0]!r} twice): {REMEDY}")
    return rows


def _cells(path: Path, number: int, line: str) -> list[str]:
    if "\0" in line:
        raise damaged(path, number, "it has a NUL character")
    if '"' not in line and "\r" not in line:  # most lines; this is faster
        return line.split(",")
    try:
        (cells,) = csv.reader([line], strict=True)
    except csv.Error as error:  # a quotation mark too many
        raise damaged(path, number, str(error)) from None
    return cells


def _unended(path: Path, number: int, line: str) -> list[str]:
    """The cells of a last line without an end; none where it is no row."""
    try:
        return _cells(path, number, line) if line.strip() else []
    except ResultsError:
        return []


def csv_text(header: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Rows below a header as the text of a CSV file, each on a line of its own. `cell_text` writes the cells."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cell_text, cells) for cells in (header, *rows))
    return text.getvalue()


def cell_text(cell: object, digits: int = DIGITS) -> str:
    """The text of a cell, which `rows_of` can read: None is empty, and a float has some significant digits.

    Line ends and NUL characters in a text become spaces, and a very long text is cut.
    """
    if isinstance(cell, float):
        return f"{cell:.{digits}g}"
    line = "" if cell is None else _NO_PART_OF_A_LINE.sub(" ", str(cell))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def damaged(path: Path, number: int, reason: str) -> ResultsError:
    """The error of a file in which one line is wrong."""
    return ResultsError(f"{path} is not readable as CSV (line {number}: {reason}): mend or delete that line")
