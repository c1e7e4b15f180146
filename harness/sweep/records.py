"""measurements.csv: one row per case, algorithm and precision, and the folder that keeps the file whole.

Rows are appended and flushed as they are measured, so that a crash keeps them. A line that is no row stops a command
before it writes. A newer row of the same case, algorithm and precision replaces the older one. Closing the folder
rewrites the file without the replaced rows, atomically. Times have nine significant digits, because the event timer is
a 32-bit float. Files of older versions lack the columns in ABSENT; opening their folder adds them.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from harness.contenders.registry import PROVIDERS
from harness.errors import ResultsError
from harness.store.csv_file import ABSENT_GEOMETRY, csv_text, damaged, read_csv, rows_of
from harness.store.files import write_whole
from harness.store.times import COLD, HOT, MAX_RUNS, SEPARATED, mean_column, run_columns

__all__ = [
    "CASE_COLUMNS",
    "COLUMNS",
    "KEY_COLUMNS",
    "MAX_RUNS",
    "RUN_COLUMNS",
    "STATUSES",
    "Measurement",
    "ResultsError",
    "ResultsFolder",
    "read",
]

STATUSES = ("ok", "unsupported", "workspace_exceeded", "incorrect", "error", "timeout")
CASE_COLUMNS = ("batch", "h", "w", "c", "m", "k", "pad", "stride", "dilation", "groups")
KEY_COLUMNS = (*CASE_COLUMNS, "provider", "algorithm", "precision")
RUN_COLUMNS = run_columns(HOT)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row: the result of one algorithm on one case, in one precision. A time exists only where status is "ok".

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
        if (self.status == "ok") != bool(self.runs_us):
            raise ValueError(
                f"status {self.status!r} with {len(self.runs_us)} runs: exactly the rows that are ok carry times"
            )
        if (most := max(len(runs) for runs in self._runs().values())) > MAX_RUNS:
            raise ValueError(f"{most} runs: at most {MAX_RUNS}")
        if self.status != "ok" and (self.separated_runs_us or self.cold_runs_us):
            raise ValueError(f"status {self.status!r} with separated or cold runs: only rows that are ok have times")
        if self.status == "ok" and self.rel_l2_error is None:
            raise ValueError("a time without a verified error is no measurement")
        if self.status != "ok" and not self.detail:
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
        """Whether the row has separated and cold runs beside the hot ones."""
        return bool(self.separated_runs_us and self.cold_runs_us)

    @property
    def case(self) -> tuple[int, ...]:
        """The values of CASE_COLUMNS."""
        return tuple(getattr(self, column) for column in CASE_COLUMNS)

    def cells(self) -> list[str]:
        """The row as text, in the order of COLUMNS."""
        times: dict[str, str] = {}
        for time, runs in self._runs().items():
            cells = [_text(run) for run in runs] + [""] * (MAX_RUNS - len(runs))
            times |= dict(zip(run_columns(time), cells, strict=True))
            times[mean_column(time)] = _text(fmean(runs) if runs else None)
        return [times[column] if column in times else _text(getattr(self, column)) for column in COLUMNS]

    def _runs(self) -> dict[str, tuple[float, ...]]:
        return {HOT: self.runs_us, SEPARATED: self.separated_runs_us, COLD: self.cold_runs_us}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    return " ".join(str(value).split())


_RUNS_OF = {"runs_us": HOT, "separated_runs_us": SEPARATED, "cold_runs_us": COLD}


def _columns() -> tuple[str, ...]:
    """The fields of Measurement in their order; the runs of a time take a column each, and their mean follows."""
    names: list[str] = []
    for name in (f.name for f in fields(Measurement)):
        time = _RUNS_OF.get(name)
        names += [name] if time is None else [*run_columns(time), mean_column(time)]
    return tuple(names)


COLUMNS = _columns()
_KEY_AT = [COLUMNS.index(column) for column in KEY_COLUMNS]
ABSENT = ABSENT_GEOMETRY | dict.fromkeys(COLUMNS[COLUMNS.index("environment") + 1 :], "")
"""The columns that files of older versions lack, with the text of their cells there."""
_TEXT = (  # an environment may be called 12345678 or 1e5
    *("networks", "layers", "provider", "algorithm", "precision", "status", "detail"),
    *("timing", "timestamp", "environment", "throttle"),
)
_NUMERIC = tuple(column for column in COLUMNS if column not in _TEXT)


def read(csv_path: Path) -> pd.DataFrame:
    """The measurements of one CSV file: the newest row of each case, algorithm and precision.

    Raises ResultsError where the file is missing or is no measurements.csv.
    """
    remedy = "measure first with 'python -m harness.run'"
    frame = read_csv(csv_path, COLUMNS, text=_TEXT, absent=ABSENT, name="measurements.csv", remedy=remedy)
    for column in CASE_COLUMNS:
        sizes, least = frame[column], 0 if column == "pad" else 1
        whole = sizes.ge(least) & sizes.lt(2**31) & sizes.mod(1).eq(0)
        _all_are(csv_path, sizes, whole, f"a whole number of at least {least}")
    _all_are(csv_path, frame["provider"], frame["provider"].isin(PROVIDERS), f"one of {', '.join(PROVIDERS)}")
    return frame.drop_duplicates(list(KEY_COLUMNS), keep="last").reset_index(drop=True)


def _all_are(path: Path, cells: pd.Series, right: pd.Series, allowed: str) -> None:
    """Raise ResultsError unless all cells of a column are right."""
    if not right.all():
        raise ResultsError(
            f"{path} has {cells[~right].iloc[0]!s} in the column {cells.name!r}: must be {allowed}; "
            "use the version that measured it, or delete such rows"
        )


class ResultsFolder:
    """An open results folder: locked against a second writer, appended to row by row.

    Use as a context manager. `rows` maps the key of each row to its cells, read from the file at the start.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.csv_path = folder / "measurements.csv"
        self.rows: dict[tuple[str, ...], list[str]] = {}

    def __enter__(self) -> ResultsFolder:
        self._take()
        try:
            self._load()
            self._file = open(self.csv_path, "a", newline="")
        except BaseException:
            self._lock.close()
            raise
        return self

    def _take(self) -> None:
        """Make the folder where it is missing, and lock it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.folder / ".lock", "w")  # noqa: SIM115, closed by __exit__
        except OSError as error:
            raise ResultsError(
                f"cannot write to {self.folder} ({error.strerror}): choose another folder with --out"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ResultsError(
                f"{self.folder} is in use by another run: wait for it, or give this one its own folder with --out"
            ) from None

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):  # a full disk: `append` has told it, and _rewrite writes all rows
            self._file.close()
        try:
            self._rewrite()
        finally:
            self._lock.close()

    def cell(self, key: tuple[str, ...], column: str) -> str:
        """The text of one column of a stored row."""
        return self.rows[key][COLUMNS.index(column)]

    def append(self, row: Measurement) -> None:
        """Write the row at once, so that nothing measured is lost; raises ResultsError where it cannot be written."""
        cells = row.cells()
        if not self.csv_path.exists():
            self._make_again()
        try:
            self._file.write(csv_text(cells, ()))
            self._file.flush()
        except OSError as error:
            raise ResultsError(
                f"cannot write to {self.csv_path} ({error.strerror}): the rows before are kept; free some space and go "
                "on with --resume"
            ) from None
        self.rows[row.key] = cells

    def _make_again(self) -> None:
        """Write a folder that somebody moved or deleted anew, with all rows."""
        print(f"{self.folder} was moved or deleted: it is made again, with all rows", file=sys.stderr)
        self._file.close()
        self._lock.close()
        self._take()
        self._rewrite()
        self._file = open(self.csv_path, "a", newline="")  # noqa: SIM115

    def _load(self) -> None:
        if self.csv_path.exists() and (self.csv_path.is_dir() or self.csv_path.stat().st_size):
            (_, header), *lines = rows_of(self.csv_path)
            if header != [column for column in COLUMNS if column in header or column not in ABSENT]:
                raise ResultsError(
                    f"{self.csv_path} has other columns than this version writes: move it away, or use --out"
                )
            for number, found in lines:
                row = ABSENT | dict(zip(header, found, strict=True))
                cells = [row[column] for column in COLUMNS]
                self._check(number, cells)
                self.rows[tuple(cells[i] for i in _KEY_AT)] = cells
        self._rewrite()

    def _check(self, number: int, cells: list[str]) -> None:
        """Raise ResultsError for a row that no version has written."""
        for column, cell in zip(COLUMNS, cells, strict=True):
            if column in _NUMERIC and not _is_number(cell):
                raise damaged(self.csv_path, number, f"{cell!r} in the column {column!r} is no number")
        if (status := cells[COLUMNS.index("status")]) not in STATUSES:
            raise damaged(self.csv_path, number, f"{status!r} is no status")

    def _rewrite(self) -> None:
        """Replace the file by its current rows in one step."""
        write_whole(self.csv_path, csv_text(COLUMNS, self.rows.values()))


def _is_number(cell: str) -> bool:
    """Whether a cell of a numeric column is a number, or empty."""
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True
