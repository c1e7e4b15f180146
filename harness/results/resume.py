"""Which rows of a results folder a resumed sweep need not measure again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

from harness.results.records import ResultsFolder
from harness.results.rivals import qualifying
from harness.results.times import COLD, HOT, SEPARATED, mean_column

Key = tuple[str, ...]


class _Stored(NamedTuple):
    """A row of the folder by its key, with the mean of its hot runs."""

    key: Key
    provider: str
    algorithm: str
    mean_us: float | None


def done(folder: ResultsFolder, environments: Collection[str], device: str, other_times: bool) -> frozenset[Key]:
    """The keys of the rows that were measured in one of these environments and lack nothing.

    device: its name under results/. other_times: whether a row that qualifies for separated and cold times lacks
    something without them. Such a row is measured again as a whole: its case was interrupted.
    """
    found = {key for key in folder.rows if folder.cell(key, "environment") in environments}
    return frozenset(found - _without_other_times(folder, found, device) if other_times else found)


def _without_other_times(folder: ResultsFolder, keys: Collection[Key], device: str) -> set[Key]:
    cases: dict[Key, list[_Stored]] = defaultdict(list)
    for key in keys:
        *case, provider, algorithm, precision = key
        mean = folder.cell(key, mean_column(HOT))
        cases[(*case, precision)].append(_Stored(key, provider, algorithm, float(mean) if mean else None))
    return {
        row.key
        for rows in cases.values()
        for row in qualifying(rows, device)
        if not all(folder.cell(row.key, mean_column(time)) for time in (SEPARATED, COLD))
    }
