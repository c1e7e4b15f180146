"""The CSV files of results, results/DEVICE/FOLDER/NAME: what each has, how to get it, and how its rows are kept.

A file is a `Table` of a dataclass. A measured row becomes a mapping of texts (`Table.cells`) and then a line. A line
becomes a row of a frame, which a reader gets with numbers (`Table.read`), and a writer as texts (`Table.groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, get_type_hints

import pandas as pd

from harness.errors import ResultsError
from harness.store.csv_file import DIGITS, Rule, cell_text, csv_text, damaged, rows_of, rule_of
from harness.store.files import is_empty, shown, stored, write_whole
from harness.store.locked_folder import LockedFolder
from harness.store.times import RUNS, mean_column, run_columns, runs_in

ENVIRONMENT = "environment"  # the column with the identifier of the report in environment.json
Cells = Mapping[str, str]  # the texts of a row by their columns
Key = tuple[str, ...]  # the texts of the key columns
Groups = dict[Key, list[Cells]]
Lines = list[tuple[int, list[str]]]  # the lines of a file with their numbers, the header first


@dataclass(frozen=True, slots=True)
class Wide:
    """How a value with several cells is stored: a note in a field's type, Annotated[tuple[int, ...], wide(COLUMNS)].

    columns: those of a file with room for a number of runs. cells: those of a value.
    """

    columns: Callable[[int], tuple[str, ...]]
    cells: Callable[[Any], Sequence[object]]


def wide(columns: Sequence[str]) -> Wide:
    """A value, or a tuple of as many as there are columns."""
    return Wide(lambda runs: tuple(columns), lambda value: value if isinstance(value, tuple) else (value,))


def runs_of(time: str) -> Wide:
    """The microseconds of the runs of a time, one of times.TIMES, each in a column of its own, and then their mean."""
    return Wide(lambda runs: (*run_columns(time, runs), mean_column(time)), lambda us: (*us, fmean(us) if us else None))


class _Field(NamedTuple):
    name: str
    text: bool  # no number
    form: Wide
    rules: list[Rule]


@cache
def _fields(row: type) -> list[_Field]:
    types, noted, found = get_type_hints(row), get_type_hints(row, include_extras=True), []
    for name in (one.name for one in fields(row)):
        notes, text = getattr(noted[name], "__metadata__", ()), types[name] is str
        form = next((note for note in notes if isinstance(note, Wide)), wide((name,)))
        rules = [note for note in notes if isinstance(note, Rule)]
        found.append(_Field(name, text, form, rules or ([] if text else [rule_of(name)])))
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of CSV file in results/DEVICE/FOLDER, made of a dataclass.

    row: the dataclass. Its fields are the columns, in order. Those of type str hold texts, and the others numbers. A
    type may have notes (typing.Annotated): a `Rule` of the cells, or a `Wide`. command: the one that writes the file,
    such as "harness latency". absent: the columns, or fields of several, that files of older versions lack, with the
    text of their cells there, or a function that makes them of the file's frame. keys: the columns that name a group of
    rows. Newer rows of a group take the place of its older ones; without keys a command replaces the whole file when it
    has ended. takes: which rows of the dataclass are in this file. digits: the significant digits of a number. runs: a
    file has columns for so many runs of a time.
    """

    folder: str
    name: str
    row: type
    command: str
    absent: Mapping[str, Any] = field(default_factory=dict)
    keys: Sequence[str] = ()
    takes: Callable[[Any], bool] = lambda row: True
    digits: int = DIGITS
    runs: int = RUNS

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, in order."""
        return tuple(column for column, _ in self._columns)

    def cells(self, row: Any) -> dict[str, str]:
        """The cells of a row; those of runs that it lacks are left out."""
        found: dict[str, str] = {}
        for one in _fields(self.row):
            value = getattr(row, one.name)
            columns = one.form.columns(len(value) if isinstance(value, tuple) else 0)
            found |= zip(columns, (cell_text(cell, self.digits) for cell in one.form.cells(value)), strict=True)
        return found

    def line(self, cells: Cells) -> str:
        """A row's line in the file."""
        return csv_text((cells.get(column, "") for column in self.columns), ())

    def content(self, rows: Iterable[Cells]) -> str:
        """The text of a file with these rows."""
        columns = self.columns
        return csv_text(columns, ([cells.get(column, "") for column in columns] for cells in rows))

    @property
    def remedy(self) -> str:
        """The end of a message that the file is missing."""
        return f"measure first with 'python -m {self.command}'"

    def missing(self, device: str) -> str:
        """The sentence in the place of a table of a device that lacks the file."""
        return f"Not measured on {device}: {self.remedy} on a GPU."

    def read(self, path: Path) -> pd.DataFrame:
        """The rows of a file. Raises ResultsError where it is missing or is something else.

        Texts are kept as they are: one may be "nan" or "1e5". An empty cell or "nan" among numbers is NaN. More columns
        may follow, and are texts.
        """
        rows = rows_of(path, self.remedy)
        table = self._as_wide_as(rows)
        frame = table._checked(path, rows)
        numbers = (column for column, one in table._columns if not one.text)
        known = {column: frame[column].where(~frame[column].isin(["", "nan"]), None) for column in numbers}
        return frame.assign(**{column: pd.to_numeric(cells) for column, cells in known.items()})

    def groups(self, path: Path) -> tuple[Table, Groups]:
        """The rows of a file that a command writes again, and the table with room for them.

        Raises ResultsError where the file is damaged or has other columns.
        """
        if is_empty(stored(path)):
            return self, {}
        rows = rows_of(path)
        table, header = self._as_wide_as(rows), rows[0][1]
        columns, lacking = table.columns, table._lacking
        if header != [column for column in columns if column in header or column not in lacking]:
            raise ResultsError(f"{path} has other columns than this version writes: move it away, or use --out")
        lines = table._checked(path, rows)[list(columns)].to_numpy(object).tolist()
        return table, _grouped(table, (dict(zip(columns, cells, strict=True)) for cells in lines))

    def _as_wide_as(self, rows: Lines) -> Table:
        return replace(self, runs=max(self.runs, runs_in(rows[0][1])))

    @property
    def _columns(self) -> list[tuple[str, _Field]]:
        return [(column, one) for one in _fields(self.row) for column in one.form.columns(self.runs)]

    @property
    def _lacking(self) -> dict[str, Any]:
        """The columns that a file may lack, with what `absent` has for them."""
        named = ((column, name) for column, one in self._columns for name in (column, one.name) if name in self.absent)
        return {column: self.absent[name] for column, name in named}

    def _checked(self, path: Path, rows: Lines) -> pd.DataFrame:
        """The rows that `rows_of` returned, as a frame of texts. Raises ResultsError for one that breaks a rule."""
        (_, header), *lines = rows
        frame = pd.DataFrame([cells for _, cells in lines], columns=header, dtype="str")
        lacking = {column: cells for column, cells in self._lacking.items() if column not in header}
        if missing := [column for column in self.columns if column not in header and column not in lacking]:
            raise ResultsError(f"{path} lacks the column {missing[0]!r}: it is no {self.name} of this project")
        frame = frame.assign(**lacking)
        for column, rule in ((column, rule) for column, one in self._columns for rule in one.rules):
            right = rule.holds(frame, column).to_numpy()
            if not right.all():
                at = int((~right).argmax())
                told = f"{shown(frame[column].iloc[at])} in the column {column!r}: must be {rule.allowed}"
                raise damaged(path, lines[at][0], told)
        return frame

    def path(self, device: Path) -> Path:
        """The place of the file under results/DEVICE."""
        return device / self.folder / self.name

    def find(self, device: Path) -> pd.DataFrame | None:
        """The rows of the file under results/DEVICE, None where there is none. Raises ResultsError as `read` does."""
        path = self.path(device)
        return self.read(path) if stored(path).exists() else None

    def write(self, folder: Path, rows: Iterable[Any]) -> Path:
        """Write the file of a folder with these rows, whatever it held, and return its path."""
        write_whole(folder / self.name, self.content(map(self.cells, rows)))
        return folder / self.name


@dataclass(frozen=True, slots=True)
class Cleared:
    """A group of rows of a table with keys that is removed, unless new rows of it are added together with this.

    row: the dataclass of the table. key: the cells of the key columns.
    """

    row: type
    key: tuple[object, ...]


class StoredRows:
    """The rows of tables in a locked folder, where a command adds those that it measures.

    A table with keys is written whole with every change, so an interrupted command keeps its rows. One without keys is
    written by `end`.
    """

    def __init__(self, folder: LockedFolder, tables: Sequence[Table]):
        """Raises ResultsError as `Table.groups` does."""
        self._folder, self._tables = folder, list(tables)
        self._new: dict[str, list[Any]] = {}  # the rows of tables without keys, by their names
        self._replaced: set[str] = set()
        self._groups: dict[str, Groups] = {}
        for place, table in enumerate(tables):
            if table.keys:
                self._tables[place], self._groups[table.name] = table.groups(folder.path / table.name)

    def add(self, rows: Iterable[Any], environment: str) -> None:
        """Keep rows, all of a group together, each with the identifier of the environment where it has a place.

        A `Cleared` among the rows removes its group.
        """
        new: dict[str, list[Any]] = {}
        cleared: set[tuple[type, Key]] = set()
        for row in rows:
            if isinstance(row, Cleared):
                cleared.add((row.row, tuple(map(str, row.key))))
                continue
            table = next(one for one in self._tables if type(row) is one.row and one.takes(row))
            new.setdefault(table.name, []).append(row)
        for table in self._tables:
            found = new.get(table.name, [])
            if ENVIRONMENT in table.columns:
                found = [replace(row, environment=environment) for row in found]
            if not table.keys:
                self._new.setdefault(table.name, []).extend(found)
                continue
            before, fresh = self._groups[table.name], _grouped(table, map(table.cells, found))
            kept = {key: group for key, group in before.items() if key in fresh or (table.row, key) not in cleared}
            if fresh or len(kept) < len(before):
                self._groups[table.name] = kept | fresh
                self._write(table, chain.from_iterable(self._groups[table.name].values()))

    def end(self) -> None:
        """Write the tables without keys that have new rows."""
        for table in self._tables:
            if rows := self._new.get(table.name):
                self._write(table, map(table.cells, rows))
                self._replaced.add(table.name)

    def measured(self, environments: set[str]) -> set[tuple[type, Key]]:
        """The groups, by the dataclass and the key of their rows, all of whose rows are of these environments."""
        return {
            (table.row, key)
            for table in self._tables
            if ENVIRONMENT in table.columns
            for key, group in self._groups.get(table.name, {}).items()
            if all(cells[ENVIRONMENT] in environments for cells in group)
        }

    def environments(self, before: set[str], entered: set[str]) -> set[str]:
        """The identifiers of the environments that the folder's rows were measured in.

        Where a table has no column for them, its rows may be of any earlier environment. So all of `before` are kept,
        unless this command has replaced every file.
        """
        if self._replaced == {table.name for table in self._tables}:
            return entered
        for table in self._tables:
            if ENVIRONMENT not in table.columns and stored(self._folder.path / table.name).exists():
                return before | entered
        groups = chain.from_iterable(groups.values() for groups in self._groups.values())
        return {cells[ENVIRONMENT] for cells in chain.from_iterable(groups)}

    def _write(self, table: Table, rows: Iterable[Cells]) -> None:
        self._folder.write(table.name, table.content(rows))


def _grouped(table: Table, rows: Iterable[Cells]) -> Groups:
    groups: Groups = {}
    for cells in rows:
        groups.setdefault(tuple(cells[column] for column in table.keys), []).append(cells)
    return groups
