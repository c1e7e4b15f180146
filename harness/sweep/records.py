"""measurements.csv: one row per case, algorithm and precision, and the folder that keeps the file whole.

Rows are appended and flushed as they are measured, so that a crash keeps them. A line that is no row stops a command
before it writes. A newer row of the same case, algorithm and precision replaces the older one. Closing the folder
rewrites the file without the replaced rows, atomically. Files of older versions lack some columns, and opening their
folder adds them. A file has columns for nine runs of a time, and for more where a row has more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import count
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import pandas as pd

from harness.contenders.registry import PROVIDERS
from harness.errors import ResultsError
from harness.precision import MEASURED
from harness.store.csv_file import ABSENT_GEOMETRY, Rule, one_of, whole_number
from harness.store.files import encoded, open_regular, write_whole
from harness.store.locked_folder import FolderReplaced, LockedFolder
from harness.store.table import Cells, Key, Table, runs_of
from harness.store.times import COLD, HOT, MOST_RUNS, SEPARATED, mean_column

CSV = "measurements.csv"
OK, EXCEEDED = "ok", "workspace_exceeded"
STATUSES = (OK, "unsupported", EXCEEDED, "incorrect", "error", "timeout")
CASE_COLUMNS = ("batch", "h", "w", "c", "m", "k", "pad", "stride", "dilation", "groups", "kw", "pad_w")
KEY_COLUMNS = (*CASE_COLUMNS, "provider", "algorithm", "precision")
_WHO_HAS_TIMES = f"the rows that are {OK!r} have times, and those that are {EXCEEDED!r} may have them"


def _fits_times(frame: pd.DataFrame, column: str) -> pd.Series:
    run, mean = frame["run_1_us"].ne(""), frame[mean_column(HOT)].ne("")
    return frame[column].eq(EXCEEDED) | (run.eq(mean) & run.eq(frame[column].eq(OK)))


Size = Annotated[int, whole_number(1)]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row: the result of one algorithm on one case, in one precision.

    A row that is "ok" has hot times. One that is "workspace_exceeded" has them where the memory sufficed: they are
    shown, and never compared. No other row has times, and no other than "ok" has separated or cold ones.

    Sizes are in elements, the workspace is in bytes, times are microseconds of device time per call. The last fields
    are empty where they were not measured: the separated and cold runs, and the GPU's sensors during the hot runs.
    remeasured is how often runs were repeated.
    """

    networks: str
    layers: str
    batch: Size
    h: Size
    w: Size
    c: Size
    m: Size
    k: Size
    pad: Annotated[int, whole_number(0)]
    stride: Size = field(default=1, kw_only=True)
    dilation: Size = field(default=1, kw_only=True)
    groups: Size = field(default=1, kw_only=True)
    kw: Size = field(kw_only=True)
    pad_w: Annotated[int, whole_number(0)] = field(kw_only=True)
    provider: str
    algorithm: str
    precision: Annotated[str, one_of(MEASURED)]
    status: Annotated[str, one_of(STATUSES), Rule(f"one that fits the times: {_WHO_HAS_TIMES}", _fits_times)]
    detail: str = ""
    workspace_bytes: int | None = None
    rel_l2_error: float | None = None
    max_abs_error: float | None = None
    runs_us: Annotated[tuple[float, ...], runs_of(HOT)] = ()
    timing: str = ""
    calls_per_run: int | None = None
    timestamp: str = ""
    environment: str = ""
    separated_runs_us: Annotated[tuple[float, ...], runs_of(SEPARATED)] = ()
    cold_runs_us: Annotated[tuple[float, ...], runs_of(COLD)] = ()
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
        if wrong := [run for runs in self._runs for run in runs if not 0 < run < inf]:
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
    def key(self) -> Key:
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
        return max(map(len, self._runs))

    @property
    def _runs(self) -> tuple[tuple[float, ...], ...]:
        return self.runs_us, self.separated_runs_us, self.cold_runs_us


_NAMES = [one.name for one in fields(Measurement)]
_LATER = _NAMES[_NAMES.index("environment") + 1 :]  # files of older versions lack them
MEASUREMENTS = Table(
    "paper", CSV, Measurement, "harness.run", ABSENT_GEOMETRY | dict.fromkeys(_LATER, ""), KEY_COLUMNS,
    digits=6,  # a millionth is less than the clock resolves
)  # fmt: skip


def read(csv_path: Path) -> pd.DataFrame:
    """The measurements of one CSV file: the newest row of each case, algorithm and precision.

    Rows of contenders that this version lacks are left out, and a line on standard error says so. Raises ResultsError
    where the file is missing or is no measurements.csv.
    """
    frame = MEASUREMENTS.read(csv_path)
    known = frame["provider"].isin(PROVIDERS)
    if not known.all():
        names = ", ".join(sorted(set(frame["provider"][~known])))
        print(
            f"{csv_path}: left out {(~known).sum()} rows of {names}: to see them name the file by --contender",
            file=sys.stderr,
        )
    return frame[known].drop_duplicates(list(KEY_COLUMNS), keep="last").reset_index(drop=True)


class ResultsFolder(LockedFolder):
    """A locked results folder, whose measurements.csv grows row by row.

    Use as a context manager. `rows` maps the key of each row to its cells, read from the file at the start.
    """

    def __init__(self, path: Path):
        super().__init__(path)
        self.csv_path = path / CSV
        self._replaced: FolderReplaced | None = None
        try:
            self._table, groups = MEASUREMENTS.groups(self.csv_path)
            self.rows: dict[Key, Cells] = {key: newest for key, (*_, newest) in groups.items()}
            write_whole(self.csv_path, self._table.content(self.rows.values()))
            self._open()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self._rewrite()
        finally:
            self.close()

    def append(self, row: Measurement) -> None:
        """Write the row at once, so that nothing measured is lost; raises ResultsError where it cannot be written."""
        cells = self.rows[row.key] = MEASUREMENTS.cells(row)
        if not self._file.closed:
            try:  # a row of more runs than the file has columns for is cut, until the file is replaced below
                self._file.write(encoded(self._table.line(cells)))
                self._file.flush()
            except OSError as error:
                raise ResultsError(
                    f"cannot write to {self.csv_path} ({error.strerror}): the rows before are kept; free some space "
                    "and go on with --resume"
                ) from None
        if not (self.is_ours() and self._is_open() and row.most_runs <= self._table.runs):
            self._table = replace(self._table, runs=max(row.most_runs, self._table.runs))
            self._rewrite()
            self._open()

    def is_ours(self) -> bool:
        """Whether the path still names this folder, as LockedFolder says. Keeps all rows where another is there."""
        if self._replaced is None:
            try:
                return super().is_ours()
            except FolderReplaced as error:
                self._replaced = FolderReplaced(f"{error}; the rows of this run are in {self._kept()}")
        raise self._replaced

    def _open(self) -> None:
        """Open the file for more rows."""
        self._file = open(open_regular(self.csv_path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), "ab")  # noqa: SIM115

    def _rewrite(self) -> None:
        """Replace the file by its current rows in one step. The open one, which may be too narrow, is closed."""
        try:
            self.write(CSV, self._table.content(self.rows.values()))
        finally:
            with suppress(OSError):  # a full disk: `append` has told it, and this writes all rows
                self._file.close()

    def _is_open(self) -> bool:
        """Whether the file that is open is the one that the path names."""
        try:
            return os.path.samestat(self.csv_path.lstat(), os.fstat(self._file.fileno()))
        except (OSError, ValueError):  # the latter where it was closed
            return False

    def _kept(self) -> str:
        """Keep all rows next to a folder that is not ours, and name the place: the open file, or else a new folder."""
        if not self._file.closed and os.fstat(self._file.fileno()).st_nlink:
            return "the folder that was moved"
        names = (self.path.with_name(f"{self.path.name}-{number}") for number in count(2))
        aside = next(folder for folder in names if not folder.exists())
        write_whole(aside / CSV, self._table.content(self.rows.values()))
        return str(aside)
