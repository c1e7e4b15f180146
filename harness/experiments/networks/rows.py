"""networks.csv and breakdown.csv: the times of whole networks, and their kernels by kind.

A row of networks.csv is one contender on one network and batch, in one precision and mode. A row of breakdown.csv is
one kind of kernel of a contender. Each file is written again, atomically, with every new row, so an interrupted
command keeps its rows. A newer row of the same key replaces the older one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd

from harness.errors import ResultsError
from harness.store.csv_file import csv_text, read_csv, rows_of
from harness.store.locked_folder import LockedFolder
from harness.store.times import HOT, RUNS, run_columns

FOLDER, CSV, BREAKDOWN_CSV = "networks", "networks.csv", "breakdown.csv"  # in results/DEVICE
GRAPH, EAGER = MODES = ("graph", "eager")
OK, ERROR = "ok", "error"
TORCH_COMPILE = "torch_compile"
TORCH_COMPILE_FROZEN = "torch_compile_frozen"
TORCH_CONTENDERS = ("torch", "torch_channels_last", TORCH_COMPILE, TORCH_COMPILE_FROZEN)
CUCONV, CUCONV_ENABLED = "cuconv", "cuconv_enabled"
TORCHVISION = "torchvision"

KEY_COLUMNS = ("network", "source", "batch", "contender", "precision", "mode")
_MEASURED = ("rel_l2_error", "peak_memory_bytes", "first_forward_s", *run_columns(HOT), "mean_us")
COLUMNS = (*KEY_COLUMNS, "status", "detail", *_MEASURED, "environment")
_TEXT = ("network", "source", "contender", "precision", "mode", "status", "detail", "environment")
REMEDY = "measure first with 'python -m harness.networks' on a GPU"

BREAKDOWN_KEY = ("network", "batch", "contender", "precision", "kind")
BREAKDOWN_COLUMNS = (*BREAKDOWN_KEY, "kernels", "us")
DETAIL_LENGTH = 200


@dataclass(frozen=True, slots=True)
class NetworkTime:
    """One row of networks.csv. runs_us has the microseconds of a forward in each run, and none where it failed.

    peak_memory_bytes counts weights, activations and workspace of the contender alone. first_forward_s is in seconds
    of wall clock.
    """

    network: str
    source: str
    batch: int
    contender: str
    precision: str
    mode: str
    status: str
    detail: str = ""
    rel_l2_error: float | None = None
    peak_memory_bytes: int | None = None
    first_forward_s: float | None = None
    runs_us: tuple[float, ...] = ()
    environment: str = ""

    def __post_init__(self) -> None:
        if (self.status == OK) != bool(self.runs_us) or self.status not in (OK, ERROR):
            raise ValueError(f"status {self.status!r} with {len(self.runs_us)} runs: exactly the rows that are ok have")
        if len(self.runs_us) > RUNS:
            raise ValueError(f"{len(self.runs_us)} runs: at most {RUNS}")

    def cells(self) -> list[str]:
        """The row as text, in the order of COLUMNS."""
        runs = [*self.runs_us, *[None] * (RUNS - len(self.runs_us))]
        times = {
            **dict(zip(run_columns(HOT), runs, strict=True)),
            "mean_us": fmean(self.runs_us) if self.runs_us else None,
        }
        values = {**times, "detail": " ".join(self.detail.split())[:DETAIL_LENGTH]}
        return [_text(values[column] if column in values else getattr(self, column)) for column in COLUMNS]


@dataclass(frozen=True, slots=True)
class KernelsOfKind:
    """One row of breakdown.csv: launches of one kind in a forward, and their device microseconds together."""

    network: str
    batch: int
    contender: str
    precision: str
    kind: str
    kernels: float
    us: float

    def cells(self) -> list[str]:
        """The row as text, in the order of BREAKDOWN_COLUMNS."""
        return [_text(getattr(self, column)) for column in BREAKDOWN_COLUMNS]


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def label(network: str, source: str) -> str:
    """The name of a network as a user types it: "resnet50", "timm:resnest14d"."""
    return network if source == TORCHVISION else f"{source}:{network}"


def read(path: Path) -> pd.DataFrame:
    """The rows of a networks.csv. Raises ResultsError where the file is missing or is something else."""
    return read_csv(path, COLUMNS, text=_TEXT, name=CSV, remedy=REMEDY)


class NetworksFolder:
    """An open results folder of whole networks, locked against a second writer.

    Use as a context manager. Raises ResultsError where the folder is in use, cannot be written, or has other files.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def __enter__(self) -> NetworksFolder:
        self._locked = LockedFolder(self.folder)
        try:
            self._times = _Rows(self._locked, CSV, COLUMNS, len(KEY_COLUMNS))
            self._kernels = _Rows(self._locked, BREAKDOWN_CSV, BREAKDOWN_COLUMNS, len(BREAKDOWN_KEY))
        except BaseException:
            self._locked.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._locked.close()

    def write(self, name: str, content: str) -> None:
        """Replace another file of the folder in one step."""
        self._locked.write(name, content)

    def add(self, row: NetworkTime) -> None:
        """Write a row of networks.csv at once, in the place of an older one of its key."""
        self._times.put([row.cells()])

    def replace_kernels(self, rows: list[KernelsOfKind]) -> None:
        """Write the rows of one network, batch, contender and precision into breakdown.csv, in place of the older."""
        cells = [row.cells() for row in rows]
        same = {tuple(row[: len(BREAKDOWN_KEY) - 1]) for row in cells}
        self._kernels.drop(same)
        self._kernels.put(cells)

    @property
    def environments(self) -> set[str]:
        """The identifiers of the environments that the rows of networks.csv were measured in."""
        return {cells[-1] for cells in self._times.rows.values()}


class _Rows:
    """The rows of one CSV file, whose first `keys` columns are the key."""

    def __init__(self, folder: LockedFolder, name: str, columns: tuple[str, ...], keys: int):
        self._folder, self._name, self._columns, self._keys = folder, name, columns, keys
        self.rows: dict[tuple[str, ...], list[str]] = {}
        path = folder.path / name
        if not path.exists() or (path.is_file() and not path.stat().st_size):
            return
        (_, header), *rows = rows_of(path)
        if tuple(header) != columns:
            raise ResultsError(f"{path} has other columns than this version writes: move it away, or use --out")
        self._keep([cells for _, cells in rows])

    def put(self, rows: list[list[str]]) -> None:
        """Add rows, and write the file."""
        self._keep(rows)
        self._folder.write(self._name, csv_text(self._columns, self.rows.values()))

    def drop(self, starts: set[tuple[str, ...]]) -> None:
        """Forget the rows whose key without its last cell is one of these."""
        self.rows = {key: cells for key, cells in self.rows.items() if key[:-1] not in starts}

    def _keep(self, rows: list[list[str]]) -> None:
        self.rows |= {tuple(cells[: self._keys]): cells for cells in rows}
