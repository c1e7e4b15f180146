"""The CSV files of experiments, results/DEVICE/FOLDER/NAME: what each has, how to get it, and how its rows are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import pandas as pd

from harness.errors import ResultsError
from harness.store.csv_file import check, csv_text, rows_of, rule_of, text_frame, with_numbers
from harness.store.files import is_empty, stored, write_whole
from harness.store.locked_folder import LockedFolder


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of CSV file in results/DEVICE/FOLDER.

    columns: all of them, in order. text: those that hold no numbers. command: the one that writes the file, such as
    "harness.latency". absent: the columns that files of older versions lack, with the text of their cells there.
    keys: the number of the first columns that name a group of rows, for `GroupedRows`.
    """

    folder: str
    name: str
    columns: tuple[str, ...]
    text: tuple[str, ...]
    command: str
    absent: Mapping[str, str] = field(default_factory=dict)
    keys: int = 0

    @property
    def remedy(self) -> str:
        """The end of a message that the file is missing."""
        return f"measure first with 'python -m {self.command}' on a GPU"

    def missing(self, device: str) -> str:
        """The sentence in the place of a table of a device that lacks the file."""
        return f"Not measured on {device}: {self.remedy}."

    def read(self, path: Path) -> pd.DataFrame:
        """The rows of a file. Raises ResultsError where it is missing or is something else.

        Cells of `text` are kept as they are: a text may be "nan" or "1e5". The others are numbers, as `rule_of` says.
        """
        frame, lines = text_frame(path, rows_of(path, self.remedy), self.columns, self.absent, self.name)
        numbers = [column for column in self.columns if column not in self.text]
        check(path, frame, lines, {column: rule_of(column) for column in numbers})
        return with_numbers(frame, numbers)

    def path(self, device: Path) -> Path:
        """The place of the file under results/DEVICE."""
        return device / self.folder / self.name

    def find(self, device: Path) -> pd.DataFrame | None:
        """The rows of the file under results/DEVICE, None where there is none. Raises ResultsError as `read` does."""
        path = self.path(device)
        return self.read(path) if stored(path).exists() else None

    def write(self, folder: Path, rows: Iterable[Iterable[object]]) -> Path:
        """Replace the file of a folder, when all rows are there, and return its path."""
        write_whole(folder / self.name, csv_text(self.columns, rows))
        return folder / self.name


class GroupedRows:
    """The rows of a table in a locked folder: newer rows of a group take the place of all its older ones.

    The file is written whole with every change, so an interrupted command keeps its rows.
    """

    def __init__(self, folder: LockedFolder, table: Table):
        """Raises ResultsError where the file is damaged or has other columns."""
        self.path = folder.path / table.name
        self._folder, self._table = folder, table
        self._groups: dict[tuple[str, ...], list[Sequence[object]]] = {}
        if is_empty(stored(self.path)):
            return
        (_, header), *rows = rows_of(self.path)
        if tuple(header) != table.columns:
            raise ResultsError(f"{self.path} has other columns than this version writes: move it away, or use --out")
        self._groups = self._grouped(cells for _, cells in rows)

    def replace(self, rows: Iterable[Sequence[object]]) -> None:
        """Write rows in the place of the older ones of their groups; without rows nothing changes."""
        if groups := self._grouped(rows):
            self._groups |= groups
            self._folder.write(self._table.name, csv_text(self._table.columns, self._rows()))

    @property
    def environments(self) -> set[str]:
        """The cells of the last column: the identifiers of the environments that rows were measured in."""
        return {str(cells[-1]) for cells in self._rows()}

    def _rows(self) -> Iterable[Sequence[object]]:
        return chain.from_iterable(self._groups.values())

    def _grouped(self, rows: Iterable[Sequence[object]]) -> dict[tuple[str, ...], list[Sequence[object]]]:
        groups: dict[tuple[str, ...], list[Sequence[object]]] = {}
        for cells in rows:
            groups.setdefault(tuple(map(str, cells[: self._table.keys])), []).append(cells)
        return groups
