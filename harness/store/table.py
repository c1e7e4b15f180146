"""The CSV files of experiments, results/DEVICE/FOLDER/NAME: what each has, how to get it, and how its rows are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import ResultsError
from harness.store.csv_file import check, csv_text, rows_of, rule_of, text_frame, with_numbers
from harness.store.files import is_empty, stored, write_whole
from harness.store.locked_folder import LockedFolder

ENVIRONMENT = "environment"  # the column, always the last one, with the identifier of the report in environment.json
Groups = dict[tuple[str, ...], list[Sequence[object]]]  # the cells of rows by those of their key columns


def wide(columns: Sequence[str], cells: Callable[[Any], Sequence[object]] = tuple) -> Any:
    """A field of a dataclass of rows that has several columns, and how its value, a tuple, becomes their cells."""
    return field(default=(), metadata={"columns": tuple(columns), "cells": cells})


@dataclass(frozen=True, slots=True)
class Table:
    """A kind of CSV file in results/DEVICE/FOLDER, made of a dataclass.

    row: the dataclass. Its fields are the columns, in order, and those of type str hold no numbers; a field that `wide`
    made has several columns of numbers. command: the one that writes the file, such as "latency". absent: the columns
    that files of older versions lack, with the text of their cells there. keys: the number of the first columns that
    name a group of rows. Newer rows of a group take the place of its older ones; without keys a command replaces the
    whole file when it has ended. takes: which rows of the dataclass are in this file.
    """

    folder: str
    name: str
    row: type
    command: str
    absent: Mapping[str, str] = field(default_factory=dict)
    keys: int = 0
    takes: Callable[[Any], bool] = lambda row: True

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, in order."""
        return tuple(chain.from_iterable(one.metadata.get("columns", (one.name,)) for one in fields(self.row)))

    @property
    def text(self) -> tuple[str, ...]:
        """The columns that hold no numbers."""
        return tuple(one.name for one in fields(self.row) if one.type in ("str", str))

    def cells(self, row: Any) -> list[object]:
        """The cells of a row, in the order of the columns."""
        found: list[object] = []
        for one in fields(self.row):
            value = getattr(row, one.name)
            found += one.metadata["cells"](value) if one.metadata else [value]
        return found

    @property
    def remedy(self) -> str:
        """The end of a message that the file is missing."""
        return f"measure first with 'python -m harness {self.command}' on a GPU"

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

    def write(self, folder: Path, rows: Iterable[Any]) -> Path:
        """Write the file of a folder with these rows, whatever it held, and return its path."""
        write_whole(folder / self.name, csv_text(self.columns, map(self.cells, rows)))
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
        """Raises ResultsError where a file is damaged or has other columns."""
        self._folder, self._tables = folder, tables
        self._new: dict[str, list[Any]] = {}  # the rows of tables without keys, by their names
        self._replaced: set[str] = set()
        self._groups = {table.name: self._stored(table) for table in tables if table.keys}

    def add(self, rows: Iterable[Any], environment: str) -> None:
        """Keep rows, all of a group together, each with the identifier of the environment where it has a place.

        A `Cleared` among the rows removes its group.
        """
        new: dict[str, list[Any]] = {}
        cleared: set[tuple[type, tuple[str, ...]]] = set()
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

    def environments(self, before: set[str], entered: str) -> set[str]:
        """The identifiers of the environments that the folder's rows were measured in.

        Where a table has no column for them, its rows may be of any earlier environment. So all of `before` are kept,
        unless this command has replaced every file.
        """
        if self._replaced == {table.name for table in self._tables}:
            return {entered}
        for table in self._tables:
            if ENVIRONMENT not in table.columns and stored(self._folder.path / table.name).exists():
                return before | {entered}
        groups = chain.from_iterable(groups.values() for groups in self._groups.values())
        return {str(cells[-1]) for cells in chain.from_iterable(groups)}

    def _stored(self, table: Table) -> Groups:
        path = self._folder.path / table.name
        if is_empty(stored(path)):
            return {}
        (_, header), *rows = rows_of(path)
        if header != [column for column in table.columns if column in header or column not in table.absent]:
            raise ResultsError(f"{path} has other columns than this version writes: move it away, or use --out")
        named = ({**table.absent, **dict(zip(header, cells, strict=True))} for _, cells in rows)
        return _grouped(table, ([cells[column] for column in table.columns] for cells in named))

    def _write(self, table: Table, rows: Iterable[Sequence[object]]) -> None:
        self._folder.write(table.name, csv_text(table.columns, rows))


def _grouped(table: Table, rows: Iterable[Sequence[object]]) -> Groups:
    groups: Groups = {}
    for cells in rows:
        groups.setdefault(tuple(map(str, cells[: table.keys])), []).append(cells)
    return groups
