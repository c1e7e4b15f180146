"""The one reader of CSV files: columns that must be there, numbers and text told apart, errors in one sentence."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from harness.errors import ResultsError


def read_csv(path: Path, columns: Sequence[str], *, text: Collection[str] = (), name: str, remedy: str) -> pd.DataFrame:
    """The rows of a CSV file, with at least these columns.

    Cells of the columns in `text` are kept as they are: a text may be "nan" or "1e5". The other columns hold numbers;
    an empty cell or "nan" is NaN there. Raises ResultsError where the file is missing or is something else.

    name: what the file is called, such as "accuracy.csv". remedy: how to get it, such as "measure first with ...".
    """
    if not path.exists():
        raise ResultsError(f"{path} does not exist: {remedy}")
    numeric = [column for column in columns if column not in text]
    try:
        frame = pd.read_csv(
            path,
            keep_default_na=False,
            na_values={column: ["", "nan"] for column in numeric},
            dtype=dict.fromkeys(text, str),
        )
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise ResultsError(f"{path} is not readable as CSV ({error}): restore or delete it") from None
    if missing := [column for column in columns if column not in frame.columns]:
        raise ResultsError(f"{path} lacks the column {missing[0]!r}: it is no {name} of this project")
    for column in numeric:
        frame[column] = _numbers(path, frame[column])
    return frame


def _numbers(path: Path, cells: pd.Series) -> pd.Series:
    try:
        return pd.to_numeric(cells)
    except (ValueError, TypeError):
        wrong = next(cell for cell in cells if pd.isna(pd.to_numeric(cell, errors="coerce")) and isinstance(cell, str))
        reason = f"{wrong!r} in the column {cells.name!r} is no number"
        raise ResultsError(f"{path} is not readable as CSV ({reason}): restore or delete it") from None
