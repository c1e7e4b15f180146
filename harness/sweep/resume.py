"""The rows of a results folder that a resumed sweep need not measure again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from harness.contenders import registry
from harness.store.times import COLD, HOT, SEPARATED, mean_column
from harness.sweep.records import ResultsFolder
from harness.sweep.rivals import lacking_times

Done = dict[tuple[int, ...], frozenset[tuple[str, str]]]
"""The (provider, algorithm) pairs that need not be measured, by the case's key."""


class _Stored(NamedTuple):
    """A row of the folder, as `rivals.lacking_times` asks for it."""

    provider: str
    algorithm: str
    status: str
    mean_us: float | None
    has_every_time: bool


def done(
    folder: ResultsFolder,
    environments: Collection[str],
    of_own: Collection[str],
    precision: str,
    device: str,
    other_times: bool,
) -> Done:
    """The algorithms of each case that were measured in one of these environments and lack nothing.

    of_own: the environments that count for a contender of one's own, those with the same file. device: its name under
    results/. other_times: whether a row that qualifies for separated and cold times lacks something without them. Such
    a row is measured again as a whole: its case was interrupted. Only a row that is "ok" can lack something: one over
    the limit of workspace stays as it is, with a time or without.
    """
    cases: dict[tuple[int, ...], list[_Stored]] = {}
    for key, cells in folder.rows.items():
        *case, provider, algorithm, measured = key
        same = of_own if registry.OWN and provider == registry.OWN.stem else environments
        if measured == precision and cells["environment"] in same:
            hot, *others = (cells[mean_column(time)] for time in (HOT, SEPARATED, COLD))
            row = _Stored(provider, algorithm, cells["status"], float(hot) if hot else None, all(others))
            cases.setdefault(tuple(map(int, case)), []).append(row)
    return {
        case: frozenset({row[:2] for row in rows} - (lacking_times(rows, device) if other_times else set()))
        for case, rows in cases.items()
    }
