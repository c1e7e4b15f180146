"""measurements.csv: one row per case, algorithm and precision, and the folder that keeps the file whole.

Rows are appended and flushed as they are measured, so that a crash keeps them. A line that is no row stops a command
before it writes. A newer row of the same case, algorithm and precision replaces the older one. Closing the folder
rewrites the file without the replaced rows, atomically. Files of older versions lack the columns in ABSENT; opening
their folder adds them. A file has columns for nine runs of a time, and for more where a row has more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import count
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from harness.contenders.registry import PROVIDERS
from harness.errors import ResultsError
from harness.precision import MEASURED
from harness.store.csv_file import (
    ABSENT_GEOMETRY,
    check,
    csv_text,
    damaged,
    one_of,
    rows_of,
    rule_of,
    text_frame,
    whole_number,
    with_numbers,
)
from harness.store.files import encoded, is_empty, open_regular, stored, write_whole
from harness.store.locked_folder import FolderReplaced, LockedFolder
from harness.store.times import COLD, HOT, MOST_RUNS, RUNS, SEPARATED, mean_column, run_columns, runs_in

__all__ = [
    "CASE_COLUMNS",
    "KEY_COLUMNS",
    "STATUSES",
    "Measurement",
    "ResultsError",
    "ResultsFolder",
    "columns_of",
    "read",
]

CSV = "measurements.csv"
DIGITS = 6  # a number has six digits: a millionth is less than the clock resolves
OK, EXCEEDED = "ok", "workspace_exceeded"
STATUSES = (OK, "unsupported", EXCEEDED, "incorrect", "error", "timeout")
CASE_COLUMNS = ("batch", "h", "w", "c", "m", "k", "pad", "stride", "dilation", "groups")
KEY_COLUMNS = (*CASE_COLUMNS, "provider", "algorithm", "precision")
_WHO_HAS_TIMES = f"the rows that are {OK!r} have times, and those that are {EXCEEDED!r} may have them"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row: the result of one algorithm on one case, in one precision.

    A row that is "ok" has hot times. One that is "workspace_exceeded" has them where the memory sufficed: they are
    shown, and never compared. No other row has times, and no other than "ok" has separated or cold ones.

    Sizes are in elements, the workspace is in bytes, times are microseconds of device time per call. The last fields
    are empty where they were not measured: the separated and cold runs, and the GPU's sensors during the hot runs.
    remeasured is how often runs were repeated because of a low clock.
    """

    networks: str
    layers: str
    batch: int
    h: int
    w: int
    c: int
    m: int
    k: int
    pad: int
    stride: int = field(default=1, kw_only=True)
    dilation: int = field(default=1, kw_only=True)
    groups: int = field(default=1, kw_only=True)
    provider: str
    algorithm: str
    precision: str
    status: str
    detail: str = ""
    workspace_bytes: int | None = None
    rel_l2_error: float | None = None
    max_abs_error: float | None = None
    runs_us: tuple[float, ...] = field(default=())
    timing: str = ""
    calls_per_run: int | None = None
    timestamp: str = ""
    environment: str = ""
    separated_runs_us: tuple[float, ...] = field(default=())
    cold_runs_us: tuple[float, ...] = field(default=())
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    throttle: str = ""
    remeasured: int | None = None

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r}: must be one of {', '.join(STATUSES)}")
        if (self.status == OK and not self.runs_us) or (self.status not in (OK, EXCEEDED) and self.runs_us):
            raise ValueError(f"status {self.status!r} with {len(self.runs_us)} runs: {_WHO_HAS_TIMES}")
        if self.most_runs > MOST_RUNS:
            raise ValueError(f"{self.most_runs} runs: at most {MOST_RUNS}")
        if wrong := [run for runs in self._runs().values() for run in runs if not 0 < run < inf]:
            raise ValueError(f"a time of {wrong[0]:g} us: must be finite and more than 0")
        if self.status != OK and (self.separated_runs_us or self.cold_runs_us):
            raise ValueError(f"status {self.status!r} with separated or cold runs: only rows that are ok have them")
        if self.runs_us and self.rel_l2_error is None:
            raise ValueError("a time without a verified error is no measurement")
        if self.status != OK and not self.detail:
            raise ValueError(f"status {self.status!r} must say why in detail")

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Measurement:
        """The row that `dataclasses.asdict` gave and JSON brought, which has lists for tuples."""
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in fields.items()}
        return cls(**values)

    @property
    def key(self) -> tuple[str, ...]:
        """The cells of KEY_COLUMNS, by which a newer row replaces an older one."""
        return tuple(str(getattr(self, column)) for column in KEY_COLUMNS)

    @property
    def mean_us(self) -> float | None:
        """The mean of the hot runs, as the column mean_us has it; None without runs."""
        return fmean(self.runs_us) if self.runs_us else None

    @property
    def has_every_time(self) -> bool:
        """Whether the row has separated and cold runs in addition to the hot ones."""
        return bool(self.separated_runs_us and self.cold_runs_us)

    @property
    def case(self) -> tuple[int, ...]:
        """The values of CASE_COLUMNS."""
        return tuple(getattr(self, column) for column in CASE_COLUMNS)

    @property
    def most_runs(self) -> int:
        """The number of runs of the time that has the most."""
        return max(map(len, self._runs().values()))

    def cells(self) -> dict[str, str]:
        """The row as text, by column."""
        found: dict[str, str] = {}
        for name in (f.name for f in fields(self)):
            if (time := _RUNS_OF.get(name)) is None:
                found[name] = _text(getattr(self, name))
                continue
            runs = getattr(self, name)
            found |= dict(zip(run_columns(time, len(runs)), map(_text, runs), strict=True))
            found[mean_column(time)] = _text(fmean(runs) if runs else None)
        return found

    def _runs(self) -> dict[str, tuple[float, ...]]:
        return {HOT: self.runs_us, SEPARATED: self.separated_runs_us, COLD: self.cold_runs_us}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return " ".join(str(value).split())


_RUNS_OF = {"runs_us": HOT, "separated_runs_us": SEPARATED, "cold_runs_us": COLD}


def columns_of(runs: int = RUNS) -> tuple[str, ...]:
    """The columns of a file with room for `runs` runs of each time.

    They are the fields of Measurement in their order; the runs of a time take a column each, and their mean follows.
    """
    names: list[str] = []
    for name in (f.name for f in fields(Measurement)):
        time = _RUNS_OF.get(name)
        names += [name] if time is None else [*run_columns(time, runs), mean_column(time)]
    return tuple(names)


def _absent(columns: tuple[str, ...]) -> dict[str, str]:
    """The columns that files of older versions lack, with the text of their cells there."""
    return ABSENT_GEOMETRY | dict.fromkeys(columns[columns.index("environment") + 1 :], "")


_TEXT = (  # an environment may be called 12345678 or 1e5
    *("networks", "layers", "provider", "algorithm", "precision", "status", "detail"),
    *("timing", "timestamp", "environment", "throttle"),
)
_RULES = {column: whole_number(0 if column == "pad" else 1) for column in CASE_COLUMNS} | {
    "precision": one_of(MEASURED),
    "status": one_of(STATUSES),
}
"""The rules of a file's cells that are no plain numbers, for its readers and for a sweep that adds rows to it."""


def read(csv_path: Path) -> pd.DataFrame:
    """The measurements of one CSV file: the newest row of each case, algorithm and precision.

    Rows of contenders that this version lacks are left out, and a line on standard error says so. Raises ResultsError
    where the file is missing or is no measurements.csv.
    """
    frame = _checked(csv_path, rows_of(csv_path, "measure first with 'python -m harness.run'"))
    known = frame["provider"].isin(PROVIDERS)
    if not known.all():
        names = ", ".join(sorted(set(frame["provider"][~known])))
        print(f"{csv_path}: left out {(~known).sum()} rows of {names}, no contender of this version", file=sys.stderr)
        frame = frame[known]
    newest = frame.drop_duplicates(list(KEY_COLUMNS), keep="last").reset_index(drop=True)
    return with_numbers(newest, [column for column in columns_of(runs_in(frame.columns)) if column not in _TEXT])


def _checked(path: Path, rows: list[tuple[int, list[str]]]) -> pd.DataFrame:
    """Rows as a frame of texts; raises ResultsError for one that no sweep of this version writes."""
    columns = columns_of(_room(rows))
    frame, lines = text_frame(path, rows, columns, _absent(columns), CSV)
    check(path, frame, lines, {column: rule_of(column) for column in columns if column not in _TEXT} | _RULES)
    for column in ("run_1_us", mean_column(HOT)):
        empty = frame[column].eq("")
        wrong = (frame["status"].eq(OK) & empty) | (~frame["status"].isin((OK, EXCEEDED)) & ~empty)
        if wrong.any():
            at = int(wrong.to_numpy().argmax())
            status, cell = frame["status"].iloc[at], frame[column].iloc[at]
            raise damaged(path, lines[at], f"{status!r} with {cell!r} in {column!r}: {_WHO_HAS_TIMES}")
    return frame


def _room(rows: list[tuple[int, list[str]]]) -> int:
    """The number of runs that a file of these rows has columns for; no file of this project has fewer than RUNS."""
    return max(RUNS, runs_in(rows[0][1]))


class ResultsFolder:
    """An open results folder: locked against a second writer, appended to row by row.

    Use as a context manager. `rows` maps the key of each row to its cells, read from the file at the start. Other files
    of the folder are written by `write`.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.csv_path = folder / CSV
        self.rows: dict[tuple[str, ...], dict[str, str]] = {}
        self._runs = RUNS
        self._replaced: ResultsError | None = None

    def __enter__(self) -> ResultsFolder:
        self._locked = LockedFolder(self.folder)
        try:
            self._load()
            self._open()
        except BaseException:
            self._locked.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._rewrite()
        finally:
            with suppress(OSError):  # a full disk: `append` has told it, and _rewrite writes all rows
                self._file.close()
            self._locked.close()

    def cell(self, key: tuple[str, ...], column: str) -> str:
        """The text of one column of a stored row."""
        return self.rows[key][column]

    def append(self, row: Measurement) -> None:
        """Write the row at once, so that nothing measured is lost; raises ResultsError where it cannot be written."""
        cells = row.cells()
        if not (self._is_ours(cells) and self._is_open() and row.most_runs <= self._runs):
            self.rows[row.key] = cells  # written with all others
            self._runs = max(row.most_runs, self._runs)
            try:
                self._rewrite()
            finally:  # the file on disk is another one, or too narrow for the next row
                with suppress(OSError):
                    self._file.close()
            self._open()
            return
        try:
            self._file.write(encoded(self._line(cells)))
            self._file.flush()
        except OSError as error:
            raise ResultsError(
                f"cannot write to {self.csv_path} ({error.strerror}): the rows before are kept; free some space and go "
                "on with --resume"
            ) from None
        self.rows[row.key] = cells

    def write(self, name: str, content: str) -> None:
        """Replace another file of the folder in one step."""
        self._locked.write(name, content)

    def _open(self) -> None:
        """Open the file for more rows."""
        self._file = open(open_regular(self.csv_path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), "ab")  # noqa: SIM115

    def _load(self) -> None:
        if not is_empty(stored(self.csv_path)):
            rows = rows_of(self.csv_path)
            header, self._runs = rows[0][1], _room(rows)
            columns = columns_of(self._runs)
            if header != [column for column in columns if column in header or column not in _absent(columns)]:
                raise ResultsError(
                    f"{self.csv_path} has other columns than this version writes: move it away, or use --out"
                )
            frame = _checked(self.csv_path, rows)
            for line in frame[list(columns)].to_numpy(object).tolist():
                cells = dict(zip(columns, line, strict=True))
                self.rows[tuple(cells[column] for column in KEY_COLUMNS)] = cells
        self._rewrite()

    def _rewrite(self) -> None:
        """Replace the file by its current rows in one step."""
        self._is_ours()
        self._locked.write(CSV, self._text())

    def _text(self, *pending: dict[str, str]) -> str:
        """The file with all rows, and these below them."""
        lines = map(self._line, [*self.rows.values(), *pending])
        return csv_text(columns_of(self._runs), ()) + "".join(lines)

    def _line(self, cells: Mapping[str, str]) -> str:
        return csv_text((cells.get(column, "") for column in columns_of(self._runs)), ())

    def _is_open(self) -> bool:
        """Whether the file that is open is the one that the path names."""
        try:
            return os.path.samestat(self.csv_path.lstat(), os.fstat(self._file.fileno()))
        except (OSError, ValueError):  # the latter where it was closed
            return False

    def _is_ours(self, *pending: dict[str, str]) -> bool:
        """Whether the folder is still there. Raises ResultsError where another one is in its place.

        pending: the cells of a row that no file has yet, which is kept then as well.
        """
        if self._replaced is None:
            try:
                return self._locked.is_ours()
            except FolderReplaced as error:
                self._replaced = ResultsError(f"{error}; the rows of this run are in {self._kept(*pending)}")
        raise self._replaced

    def _kept(self, *pending: dict[str, str]) -> str:
        """Keep all rows next to a folder that is not ours, and name the place: the open file, or else a new folder."""
        self._file.write(encoded("".join(map(self._line, pending))))
        self._file.flush()
        if os.fstat(self._file.fileno()).st_nlink:
            return "the folder that was moved"
        names = (self.folder.with_name(f"{self.folder.name}-{number}") for number in count(2))
        aside = next(folder for folder in names if not folder.exists())
        write_whole(aside / CSV, self._text(*pending))
        return str(aside)
